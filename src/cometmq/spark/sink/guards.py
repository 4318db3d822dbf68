"""What keeps the rows of a repeated task from being stored twice; the weakest guard keeps nothing."""

from __future__ import annotations

from typing import Protocol

from cometmq.spark.sink.placing import Chunk
from cometmq.spark.sink.routes import WriteRoute


class Guard(Protocol):
    """Asked about every chunk, in the order of the rows of each queue."""

    def settle(self, topic: str, route: WriteRoute) -> WriteRoute:
        """Where the rows of a topic go: the queues that it has now, or had when the task first ran."""

    def unsent(self, chunk: Chunk) -> Chunk | None:
        """What of a chunk must be sent; ``None`` if all of it is stored already."""

    def properties(self, chunk: Chunk) -> str:
        """The properties of the request that sends what :meth:`unsent` left."""

    def still_unsent(self, chunk: Chunk) -> Chunk | None:
        """What of a chunk must be sent again, when nobody knows what became of the first request."""

    def finish(self) -> None:
        """All rows were given."""


class AtLeastOnce:
    """Everything is sent, and sent again when in doubt."""

    def settle(self, _topic: str, route: WriteRoute) -> WriteRoute:
        """The queues that the topic has now."""
        return route

    def unsent(self, chunk: Chunk) -> Chunk | None:
        """All of it."""
        return chunk

    def properties(self, _chunk: Chunk) -> str:
        """None."""
        return ""

    def still_unsent(self, chunk: Chunk) -> Chunk | None:
        """All of it."""
        return chunk

    def finish(self) -> None:
        """Nothing is left to be checked."""
