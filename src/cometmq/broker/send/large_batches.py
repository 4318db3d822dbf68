"""Reads the messages of batches in Python. Those of a large batch are read in slices before it is stored.

The compiled core takes most batches. Python reads the others, and any without the core: a batch of 4 MB can have ten
thousand messages with many keys, or two million properties, which take up to a second to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from cometmq.broker.limits import SLICES_SECONDS
from cometmq.broker.slices import do_in_slices
from cometmq.broker.turn.inner_message import SendProperties, read_properties
from cometmq.broker.turn.targets import RefusedError
from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.batch import BatchError, BatchPiece, decode_batch
from cometmq.message.producer_sequence import ProducerSequence
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.processors import PostponeError, Request
from cometmq.remoting.server_connection import ServerConnection

LARGE_BYTES: Final = 64 * 1024
"""Size of a batch above which its messages are read in slices; smaller ones take at most 15 ms."""


class ReadBatch:
    """The messages of a batch with their properties.

    :param tail: appended to the properties of each message.
    :param sequence: the sequence of the batch if its producer numbers its messages.
    :raises RefusedError: the batch is malformed or empty.
    """

    def __init__(self, body: bytes, tail: str, sequence: ProducerSequence | None) -> None:
        self.sequence: Final = sequence
        self._tail = tail
        try:
            self._pieces: Final = decode_batch(body)
        except BatchError as error:
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}") from error
        if not self._pieces:
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, "the message is illegal: the batch contains no messages")
        self._properties: list[SendProperties] = []

    def messages(self) -> Iterator[tuple[BatchPiece, SendProperties]]:
        """Yield the messages; those that have not been read yet are read now."""
        for number, piece in enumerate(self._pieces):
            if number == len(self._properties):
                self._properties.append(read_properties(piece.properties_text, self._tail))
            yield piece, self._properties[number]

    def read_in_slices(self) -> Iterator[None]:
        """Read the messages, with pauses for other work."""
        until = SYSTEM_CLOCK.monotonic() + SLICES_SECONDS / 2
        for _ in self.messages():
            if SYSTEM_CLOCK.monotonic() >= until:
                yield
                until = SYSTEM_CLOCK.monotonic() + SLICES_SECONDS / 2


class LargeBatches:
    """The batches whose requests wait until their messages have been read."""

    def __init__(self) -> None:
        self._read: dict[int, ReadBatch] = {}
        """By identity of the request, which is kept until it is handled again."""
        self.reading: Final[dict[ServerConnection, list[Callable[[], None]]]] = {}
        """The connections whose batch is being read, each with functions that handle its later requests."""

    def require_turn(self, connection: ServerConnection) -> None:
        """Postpone a request of a connection whose batch is being read. It was postponed before that for its new topic.

        :raises PostponeError: the batch must be stored first.
        """
        waiting = self.reading.get(connection)
        if waiting is not None:
            raise PostponeError(waiting.append)

    def take(self, request: Request[Any]) -> ReadBatch | None:
        """Return the batch of a request that is handled again, or ``None``."""
        return self._read.pop(id(request), None) if self._read else None

    def keep(self, request: Request[Any], batch: ReadBatch) -> None:
        """Keep a batch for the next time that its request is handled."""
        self._read[id(request)] = batch

    def postpone(self, connection: ServerConnection, request: Request[Any], batch: ReadBatch) -> PostponeError:
        """Return the error that postpones a request until its batch has been read in slices.

        The connection is not read meanwhile, so requests remain in order.
        """
        return PostponeError(partial(self._read_first, connection, request, batch))

    def _read_first(
        self, connection: ServerConnection, request: Request[Any], batch: ReadBatch, again: Callable[[], None]
    ) -> None:
        def steps() -> Iterator[None]:
            yield  # the first slice after the decoding is of a later round
            yield from batch.read_in_slices()
            self.keep(request, batch)
            for call in (again, *self.reading.pop(connection)):
                call()
            if connection not in self.reading:  # none of these is a large batch
                connection.work_is_done()

        self.reading[connection] = []
        connection.wait_for_work()
        do_in_slices(steps())
