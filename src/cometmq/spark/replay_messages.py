"""An archived message as it is sent again: the same body, flag and properties, and where it came from.

The property ``REPLAY_ORIGIN`` is ``<replay>/<queue>/<offset>/<born, ms>/<broker>``: it tells a replay what it has sent
already, and consumers what the new broker's header cannot say. Properties that would make a broker hold the message
back, or take it for half of a transaction, are kept under their names with ``REPLAYED_`` before them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.limits import MAX_PROPERTIES_BYTES
from cometmq.message.batch import PIECE_OVERHEAD_BYTES
from cometmq.message.properties import (
    DELAY,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    TIMER_DEL_UNIQKEY,
    TIMER_NAMES,
    TRAN_MSG,
)
from cometmq.message.sysflag import COMPRESSED, COMPRESSION_TYPE_MASK
from cometmq.spark.errors import SinkError

if TYPE_CHECKING:
    import pyarrow as pa

REPLAY_ORIGIN: Final = "REPLAY_ORIGIN"
REPLAYED: Final = "REPLAYED_"
ACTING: Final = frozenset({DELAY, TRAN_MSG, TIMER_DEL_UNIQKEY, "INNER_MULTI_DISPATCH", *TIMER_NAMES})
"""Properties that ask something of a broker; it has been done once."""
_TOUCHED: Final = re.compile(
    f"(?:^|{PROPERTY_SEPARATOR})(?:{'|'.join(sorted(ACTING | {REPLAY_ORIGIN}))}){NAME_VALUE_SEPARATOR}"
)
_ORIGIN: Final = re.compile(r"([^/]*)/(\d{1,10})/(\d{1,19})/-?\d{1,20}/(.*)", re.DOTALL)
_HEAD: Final = struct.Struct(">iiiii")
_SHORT: Final = struct.Struct(">h")

SENT_COLUMNS: Final = (
    *("brokerName", "queueId", "queueOffset", "bornTimestamp", "flag", "sysFlag", "propertiesText"),
    "coalesce(storedBody, body) AS stored",
)
"""What of an archive's rows is needed, as Spark SQL."""


class Origin(NamedTuple):
    """Where a message stood."""

    broker: str
    queue_id: int
    offset: int


class Resent(NamedTuple):
    """One message to send."""

    origin: Origin
    born_ms: int
    flag: int
    sys_flag: int
    """Only how the body is packed."""
    body: bytes
    properties: bytes

    @property
    def packed(self) -> bool:
        """Whether its body is packed: RocketMQ has no such messages in batches."""
        return bool(self.sys_flag & COMPRESSED)

    @property
    def piece(self) -> bytes:
        """It as a message of a batch."""
        size = PIECE_OVERHEAD_BYTES + len(self.body) + len(self.properties)
        head = _HEAD.pack(size, 0, 0, self.flag, len(self.body))
        return b"".join((head, self.body, _SHORT.pack(len(self.properties)), self.properties))


def origin_text(replay_id: str, origin: Origin, born_ms: int) -> str:
    """The value of ``REPLAY_ORIGIN``."""
    return f"{replay_id}/{origin.queue_id}/{origin.offset}/{born_ms}/{origin.broker}"


def origin_of(replay_id: str, text: str | None) -> Origin | None:
    """Undo :func:`origin_text`; ``None`` where it is not of this replay."""
    match = None if text is None else _ORIGIN.fullmatch(text)
    if match is None or match[1] != replay_id:
        return None
    return Origin(match[4], int(match[2]), int(match[3]))


def properties_with(text: str, origin: str) -> str:
    """The properties of a message with its origin, and with those that act on a broker put aside."""
    if _TOUCHED.search(text):
        pieces = []
        for piece in text.split(PROPERTY_SEPARATOR):
            name, _, _ = piece.partition(NAME_VALUE_SEPARATOR)
            if name != REPLAY_ORIGIN:
                pieces.append(REPLAYED + piece if name in ACTING else piece)
        text = PROPERTY_SEPARATOR.join(pieces)
    separator = "" if not text or text.endswith(PROPERTY_SEPARATOR) else PROPERTY_SEPARATOR
    return f"{text}{separator}{REPLAY_ORIGIN}{NAME_VALUE_SEPARATOR}{origin}{PROPERTY_SEPARATOR}"


def messages_of(batch: pa.RecordBatch, replay_id: str) -> Iterator[Resent]:
    """The messages of a batch with ``SENT_COLUMNS``.

    :raises SinkError: one cannot be sent again.
    """
    import pyarrow as pa

    born = batch.column("bornTimestamp").cast(pa.int64())  # a producer may claim a time that no calendar has
    columns: Sequence[list[Any]] = [
        born.to_pylist(),
        *(
            batch.column(name).to_pylist()
            for name in ("brokerName", "queueId", "queueOffset", "flag", "sysFlag", "propertiesText", "stored")
        ),
    ]
    for born_us, broker, queue_id, offset, flag, sys_flag, text, body in zip(*columns, strict=True):
        origin = Origin(broker, queue_id, offset)
        born_ms = born_us // 1000
        properties = properties_with(text or "", origin_text(replay_id, origin, born_ms)).encode()
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise SinkError(
                f"message {offset} of queue {queue_id} of {broker} has no room for the property {REPLAY_ORIGIN}: "
                f"{len(properties)} bytes of properties with it, at most {MAX_PROPERTIES_BYTES} can be stored",
                next_step="leave it out with a predicate (--where)",
            )
        packing = sys_flag & (COMPRESSED | COMPRESSION_TYPE_MASK)
        yield Resent(origin, born_ms, flag, packing if packing & COMPRESSED else 0, body, properties)
