"""Producer sequences, CometMQ's extension that lets a broker recognize messages that are sent twice.

A producer numbers the messages that it sends to each queue, starting at 0 in each *batch* of its work. A batch request
(SEND_BATCH_MESSAGE) whose own properties have ``PRODUCER_SEQUENCE`` carries the messages ``first <= number < first +
count``; the broker stores the property with the first of these messages. When a producer starts, the broker stores a
record of its own with such a property and no messages. Format: ``1;batch;epoch;first;count;crc;producer;note``.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from cometmq.limits import MAX_BATCH_MESSAGES, MAX_PRODUCER_ID_CHARS, MAX_PRODUCER_NOTE_CHARS

_VERSION: Final = "1"
_PRODUCER: Final = re.compile(rf"[\w.:%|-]{{1,{MAX_PRODUCER_ID_CHARS}}}", re.ASCII)
_NOTE: Final = re.compile(rf"[^\x00-\x1f;]{{0,{MAX_PRODUCER_NOTE_CHARS}}}")
_MAX_INT64: Final = 2**63 - 1


class SequenceError(ValueError):
    """A producer sequence is invalid."""


class ProducerSequence(msgspec.Struct, frozen=True, gc=False):
    """The sequence numbers of the messages in one request."""

    producer: str
    batch: int
    """The batch number; message numbers restart at 0 in each batch."""
    epoch: int
    """The producer's epoch from the response to OPEN_PRODUCER; it identifies one run of the producer."""
    first: int
    count: int
    """The number of messages; 0 in the record that marks the start of a run."""
    crc: int
    """CRC32 of the batch's messages in this queue, up to the last message in this request."""
    note: str = ""
    """Data that the producer stores for its own use and the broker does not interpret."""

    @property
    def end(self) -> int:
        """The number that follows the last message's number."""
        return self.first + self.count

    def text(self) -> str:
        """Format the property value."""
        numbers = f"{self.batch};{self.epoch};{self.first};{self.count};{self.crc}"
        return f"{_VERSION};{numbers};{self.producer};{self.note}"


class ProducerLane(msgspec.Struct, frozen=True):
    """A producer's progress in storing messages in one queue."""

    next: int
    """The number of the first message that is not stored yet."""
    crc: int | None = None
    """CRC32 of all messages before ``next``, or ``None`` if a broker crash split a request."""
    note: str = ""


class ProducerLanes(msgspec.Struct, frozen=True):
    """Body of the OPEN_PRODUCER response: the queues with messages of the batch, by ``topic/queueId``."""

    lanes: dict[str, ProducerLane]


def is_producer_id(name: str) -> bool:
    """Return whether a producer name contains only letters, digits and ``. _ : % | -``."""
    return _PRODUCER.fullmatch(name) is not None


def parse_sequence(text: str) -> ProducerSequence:
    """Parse the property value.

    :raises SequenceError: the value is invalid; the message says in which way.
    """
    parts = text.split(";")
    if len(parts) != 8 or parts[0] != _VERSION:
        raise SequenceError("the value does not have the form 1;batch;epoch;first;count;crc;producer;note")
    if not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts[1:6]):
        raise SequenceError("its numbers must be whole and at least 0")
    batch, epoch, first, count, crc = map(int, parts[1:6])
    if max(batch, epoch, first + count) > _MAX_INT64 or not 0 <= count <= MAX_BATCH_MESSAGES or crc >> 32:
        raise SequenceError("one of its numbers is too large")
    if not is_producer_id(parts[6]):
        raise SequenceError("the producer name may contain only letters, digits and . _ : % | -")
    if _NOTE.fullmatch(parts[7]) is None:
        raise SequenceError("the note is too long or contains control characters")
    return ProducerSequence(parts[6], batch, epoch, first, count, crc, parts[7])
