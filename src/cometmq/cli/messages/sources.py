"""Message sources for ``cometmq produce``: lines as they arrive, complete files, or a generated load."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Final

from cometmq.cli.failures import WrongUseError
from cometmq.cli.messages.json_line import FIELDS, NO_DELAY, Delays, LineError, parse_line
from cometmq.clock import Clock
from cometmq.message.message import Message

READ_BYTES: Final = 256 * 1024
MAX_LINE_BYTES: Final = 8 * 1024 * 1024
"""Maximum number of bytes in a line, which is enough for the largest message, even as JSON."""
STEPS_PER_SECOND: Final = 20
"""With --rate, messages are sent in this many steps per second."""
_FILLING: Final = b"CometMQ carries this load. "


@dataclass(frozen=True)
class MessageForm:
    """The fields that all messages from one command share."""

    topic: str
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    as_json: bool
    delays: Delays = NO_DELAY
    priority: int | None = None

    def message(self, body: bytes) -> Message:
        """Return a message with this body."""
        return Message(
            self.topic,
            body,
            tags=self.tag,
            keys=self.keys,
            properties=self.properties,
            delay_level=self.delays.delay_level,
            delay=self.delays.delay,
            deliver_at=self.delays.deliver_at,
            priority=self.priority,
        )

    def parse(self, line: bytes, number: int) -> Message:
        """Return the message in one line.

        :raises WrongUseError: the line should be a message in JSON, but is not.
        """
        if not self.as_json:
            return self.message(line)
        try:
            message = parse_line(line, self.topic, tag=self.tag, keys=self.keys, delays=self.delays)
        except LineError as error:
            raise WrongUseError(
                f"line {number} is not a valid message: {error}: {line[:80].decode(errors='replace')}",
                next_step=f"use the fields {', '.join(FIELDS)}, or leave out --json",
            ) from None
        message.properties = self.properties | message.properties
        if message.priority is None:
            message.priority = self.priority
        return message


class Pacer:
    """Limits the sending rate by waiting before the next messages."""

    def __init__(self, per_second: float | None, clock: Clock) -> None:
        self.per_second = per_second
        self._clock = clock
        self._next_at = clock.monotonic()

    def step(self, wanted: int) -> int:
        """Return how many of ``wanted`` messages to send in one step, so that messages are sent evenly."""
        return wanted if self.per_second is None else max(1, min(wanted, int(self.per_second / STEPS_PER_SECOND)))

    async def wait(self, count: int) -> None:
        """Wait until ``count`` more messages may be sent."""
        if self.per_second is None:
            return
        now = self._clock.monotonic()
        if self._next_at > now:
            await self._clock.sleep(self._next_at - now)
        self._next_at = max(self._next_at, now - 1) + count / self.per_second


async def generate_load(
    form: MessageForm, count: int, size: int, batch: int, pacer: Pacer
) -> AsyncGenerator[list[Message]]:
    """Generate ``count`` messages of ``size`` bytes, each starting with its number."""
    filling = (_FILLING * (size // len(_FILLING) + 1))[:size]
    step = pacer.step(batch)
    for first in range(0, count, step):
        numbers = range(first, min(first + step, count))
        await pacer.wait(len(numbers))
        yield [form.message((b"%d " % number + filling)[:size] or b" ") for number in numbers]


async def read_lines(
    form: MessageForm, streams: Iterable[IO[bytes]], batch: int, pacer: Pacer, delimiter: bytes = b"\n"
) -> AsyncGenerator[list[Message]]:
    """Read lines and yield them as they arrive, for input that is typed or piped.

    Empty lines are skipped, since a message needs a body.
    """
    step = pacer.step(batch)
    for stream in streams:
        number = 0
        async for lines in _lines(stream, delimiter):
            for chosen in _slices(lines, step):
                messages = [
                    form.parse(line, number + place) for place, line in enumerate(chosen, 1) if _has_body(form, line)
                ]
                number += len(chosen)
                if messages:
                    await pacer.wait(len(messages))
                    yield messages


async def _lines(stream: IO[bytes], delimiter: bytes) -> AsyncGenerator[list[bytes]]:
    number = 0
    rest = b""
    while True:
        data = await asyncio.to_thread(os.read, stream.fileno(), READ_BYTES)
        lines = (rest + data).split(delimiter)
        rest = lines.pop() if data else b""
        if len(rest) > MAX_LINE_BYTES:
            raise WrongUseError(f"line {number + len(lines) + 1} is longer than {MAX_LINE_BYTES} bytes")
        number += len(lines)
        yield lines
        if not data:
            return


def _has_body(form: MessageForm, line: bytes) -> bool:
    return bool(line.strip()) if form.as_json else line not in (b"", b"\r")


async def read_whole_files(
    form: MessageForm, streams: Iterable[IO[bytes]], pacer: Pacer
) -> AsyncGenerator[list[Message]]:
    """Read each file as one message, whatever its content."""
    for stream in streams:
        body = await asyncio.to_thread(stream.read, MAX_LINE_BYTES + 1)
        if len(body) > MAX_LINE_BYTES:
            raise WrongUseError(f"{stream.name} is longer than {MAX_LINE_BYTES} bytes")
        await pacer.wait(1)
        yield [form.parse(body, 1)]


def _slices(lines: list[bytes], step: int) -> Iterator[list[bytes]]:
    for first in range(0, len(lines), step):
        yield lines[first : first + step]
