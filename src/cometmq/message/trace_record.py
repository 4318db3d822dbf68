r"""The records of a message trace, in the format used by RocketMQ's clients (``TraceDataEncoder``).

The body of a trace message is a sequence of records, each ended by 0x02, with fields separated by 0x01::

    Pub             time region group topic msgId tags keys storeHost bodyLength costTime msgType offsetMsgId success
    SubBefore       time region group requestId msgId retryTimes keys
    SubAfter        requestId msgId costTime success keys contextCode time group
    EndTransaction  time region group topic msgId tags keys storeHost msgType transactionId transactionState fromCheck

Times are in ms since 1970, and costs are in ms. Unknown values are ``null``. Go's client adds its host at the end of
Pub and SubBefore; readers skip additional fields and unknown kinds of records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from cometmq.message.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

FIELD_SEPARATOR: Final = NAME_VALUE_SEPARATOR
RECORD_SEPARATOR: Final = PROPERTY_SEPARATOR
_NULL: Final = "null"
_CLEAN: Final = str.maketrans({FIELD_SEPARATOR: " ", RECORD_SEPARATOR: " "})


class Pub(msgspec.Struct, frozen=True, kw_only=True):
    """The trace record of a sent message."""

    time_ms: int
    region: str | None
    group: str
    topic: str
    msg_id: str
    tags: str | None
    keys: str | None
    store_host: str
    body_bytes: int
    cost_ms: int
    msg_type: int
    """The message type; see :class:`~cometmq.message.properties.MessageType`. Other clients use more types."""
    offset_msg_id: str
    success: bool
    client_host: str | None = None


class SubBefore(msgspec.Struct, frozen=True, kw_only=True):
    """The trace record of a message about to be passed to a listener."""

    time_ms: int
    region: str | None
    group: str
    request_id: str
    """The request id, which is also in the SubAfter record of the same call."""
    msg_id: str
    retry_times: int
    keys: str | None
    client_host: str | None = None


class SubAfter(msgspec.Struct, frozen=True, kw_only=True):
    """The trace record of a listener call's result."""

    request_id: str
    msg_id: str
    cost_ms: int
    success: bool
    keys: str | None
    context_code: int
    """The result: 0 success, 1 timeout, 2 exception, 3 null returned, 4 failure."""
    time_ms: int | None = None
    group: str | None = None


class EndTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """The trace record of a half message's commit or rollback."""

    time_ms: int
    region: str | None
    group: str
    topic: str
    msg_id: str
    tags: str | None
    keys: str | None
    store_host: str
    msg_type: int
    transaction_id: str
    transaction_state: str
    """The outcome: ``COMMIT_MESSAGE``, ``ROLLBACK_MESSAGE`` or ``UNKNOW``."""
    from_transaction_check: bool


TraceRecord = Pub | SubBefore | SubAfter | EndTransaction


def encode_trace(record: TraceRecord) -> str:
    """Encode one trace record."""
    own = [text for name, text in _texts(record) if name != "client_host"]
    return FIELD_SEPARATOR.join([type(record).__name__, *own]) + RECORD_SEPARATOR


def _texts(record: TraceRecord) -> Iterator[tuple[str, str]]:
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if value is None:
            yield name, _NULL
        elif isinstance(value, bool):
            yield name, "true" if value else "false"
        else:
            yield name, str(value).translate(_CLEAN)


def decode_trace(body: bytes) -> list[TraceRecord]:
    """Decode the records in a trace message, and ignore everything else."""
    records: list[TraceRecord] = []
    for text in body.decode(errors="replace").split(RECORD_SEPARATOR):
        kind, *fields = text.split(FIELD_SEPARATOR)
        expected = _KINDS.get(kind)
        if expected is not None:
            names = expected.__struct_fields__
            values = {name: None if value == _NULL else value for name, value in zip(names, fields, strict=False)}
            try:
                records.append(msgspec.convert(values, expected, strict=False))
            except msgspec.ValidationError:
                continue
    return records


_KINDS: Final[dict[str, type[TraceRecord]]] = {
    kind.__name__: kind for kind in (Pub, SubBefore, SubAfter, EndTransaction)
}
