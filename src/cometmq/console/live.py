"""Streams of server-sent events, whose number is limited."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Final

from starlette.responses import StreamingResponse

from cometmq.console.limits import MAX_STREAMS, MAX_STREAMS_OF_ONE
from cometmq.errors import CometMQError

KEEP_ALIVE_SECONDS: Final = 15.0


class TooManyStreamsError(CometMQError):
    """Too many live pages are open."""


class Streams:
    """Counts the open live pages, and ends them when the console stops."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self._open: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """Return the number of open live pages."""
        return self._open.total()

    @contextmanager
    def one(self, address: str) -> Iterator[None]:
        """Reserve one stream for a browser at an address.

        :raises TooManyStreamsError: too many streams are open.
        """
        if self.count >= MAX_STREAMS or self._open[address] >= MAX_STREAMS_OF_ONE:
            raise TooManyStreamsError(
                "too many live pages are open", next_step="close some of them, then reload the page"
            )
        self._open[address] += 1
        try:
            yield
        finally:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]


def event(name: str, data: Any) -> bytes:
    """Return one event with JSON data on one line."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def event_stream(events: AsyncIterator[bytes], *, status: int = 200) -> StreamingResponse:
    """Return the response to an ``EventSource``."""
    return StreamingResponse(
        events, status, {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, media_type="text/event-stream"
    )
