"""Where `produce` gets its messages from: lines, as they arrive, or a load made up on the way."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import IO, Any, Final

from cometmq.cli.failures import WrongUseError
from cometmq.clock import Clock
from cometmq.message.message import Message

READ_BYTES: Final = 256 * 1024
MAX_LINE_BYTES: Final = 8 * 1024 * 1024
"""Longer than any message may be, even one written as JSON."""
STEPS_PER_SECOND: Final = 20
"""With a rate, messages leave in so many steps a second."""
_FILLING: Final = b"CometMQ carries this load. "


@dataclass(frozen=True)
class MessageForm:
    """What every message of one call has in common."""

    topic: str
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    as_json: bool
    delay_level: int = 0
    delay: timedelta | None = None
    deliver_at: datetime | None = None

    def message(self, body: bytes) -> Message:
        """Make a message with this body."""
        return self._message(body, self.tag, self.keys, self.properties)

    def _message(self, body: bytes, tag: str | None, keys: tuple[str, ...], properties: dict[str, str]) -> Message:
        return Message(
            self.topic,
            body,
            tags=tag,
            keys=keys,
            properties=properties,
            delay_level=self.delay_level,
            delay=self.delay,
            deliver_at=self.deliver_at,
        )

    def parse(self, line: bytes, number: int) -> Message:
        """Make a message of one line.

        :raises WrongUseError: it should be JSON and is not, naming the line.
        """
        if not self.as_json:
            return self.message(line)
        try:
            told: dict[str, Any] = json.loads(line)
            body = told["body"]
            keys = told.get("keys") or self.keys
            properties = {str(name): str(value) for name, value in (told.get("properties") or {}).items()}
            return self._message(
                body.encode() if isinstance(body, str) else json.dumps(body, ensure_ascii=False).encode(),
                told.get("tags") or self.tag,
                (keys,) if isinstance(keys, str) else tuple(map(str, keys)),
                self.properties | properties,
            )
        except (ValueError, KeyError, AttributeError, TypeError):
            raise WrongUseError(
                f"line {number} is no message: {line[:80].decode(errors='replace')}",
                next_step='write {"body": "…", "tags": "…", "keys": ["…"], "properties": {…}}, or leave --json out',
            ) from None


class Pacer:
    """Keeps a rate: waits until the next messages may leave."""

    def __init__(self, per_second: float | None, clock: Clock) -> None:
        self.per_second = per_second
        self._clock = clock
        self._next_at = clock.monotonic()

    def step(self, wanted: int) -> int:
        """How many of `wanted` messages to take at once, so that they leave evenly."""
        return wanted if self.per_second is None else max(1, min(wanted, int(self.per_second / STEPS_PER_SECOND)))

    async def wait(self, count: int) -> None:
        """Wait until `count` more messages may leave."""
        if self.per_second is None:
            return
        now = self._clock.monotonic()
        if self._next_at > now:
            await self._clock.sleep(self._next_at - now)
        self._next_at = max(self._next_at, now - 1) + count / self.per_second


async def from_load(
    form: MessageForm, count: int, size: int, batch: int, pacer: Pacer
) -> AsyncGenerator[list[Message]]:
    """Make up `count` messages of `size` bytes, each with its number at the front."""
    filling = (_FILLING * (size // len(_FILLING) + 1))[:size]
    step = pacer.step(batch)
    for first in range(0, count, step):
        numbers = range(first, min(first + step, count))
        await pacer.wait(len(numbers))
        yield [form.message((b"%d " % number + filling)[:size] or b" ") for number in numbers]


async def from_lines(form: MessageForm, stream: IO[bytes], batch: int, pacer: Pacer) -> AsyncGenerator[list[Message]]:
    """Read lines as they arrive; what is there is sent at once, so that typing and piping both work.

    Empty lines are passed over, since a message needs a body.
    """
    number = 0
    rest = b""
    step = pacer.step(batch)
    while True:
        data = await asyncio.to_thread(os.read, stream.fileno(), READ_BYTES)
        lines = (rest + data).split(b"\n")
        rest = lines.pop() if data else b""
        if len(rest) > MAX_LINE_BYTES:
            raise WrongUseError(f"line {number + len(lines) + 1} is longer than {MAX_LINE_BYTES} bytes")
        for chosen in _slices(lines, step):
            messages = [form.parse(line, number + place) for place, line in enumerate(chosen, 1) if line.strip()]
            number += len(chosen)
            if messages:
                await pacer.wait(len(messages))
                yield messages
        if not data:
            return


def _slices(lines: list[bytes], step: int) -> Iterator[list[bytes]]:
    for first in range(0, len(lines), step):
        yield lines[first : first + step]
