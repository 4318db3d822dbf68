"""The messages in a pop response, with their queue offsets and original topics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cometmq.limits import MAX_PROPERTIES_BYTES
from cometmq.message.layout import RECORD
from cometmq.message.pop_info import ReceiptHandle
from cometmq.message.properties import POP_CK, PROPERTY_SEPARATOR, SHARDING_KEY, PropertiesText
from cometmq.message.record import RecordError, decode_record, encode_record

Chunks = list[bytes | memoryview]
"""Records in pieces of the log."""
_SIZE: Final = RECORD.struct("size")
_SIZE_AND_QUEUE_OFFSET: Final = RECORD.struct("size", "queue_offset")


def record_offsets(chunks: Chunks) -> list[int]:
    """Return the queue offset of each record."""
    return [offset for offset, _ in iterate_records(chunks)]


def iterate_records(chunks: Chunks) -> Iterator[tuple[int, bytes | memoryview]]:
    """Yield each record with its queue offset."""
    for chunk in chunks:
        at = 0
        while at < len(chunk):
            size, queue_offset = _SIZE_AND_QUEUE_OFFSET.unpack_from(chunk, at)
            yield queue_offset, chunk[at : at + size]
            at += size


def message_group(record: bytes | memoryview) -> str:
    """Return the message group of a record, or an empty string."""
    try:
        return decode_record(record, check_crc=False).properties.get(SHARDING_KEY, "")
    except RecordError:
        return ""


def to_original_topic(records: bytes, topic: str, handle: ReceiptHandle) -> bytes:
    """Return messages from a retry topic with their original topic and a receipt handle."""
    written: list[bytes] = []
    at = 0
    while at < len(records):
        size = _SIZE.unpack_from(records, at)[0]
        try:
            record = decode_record(records, at, check_crc=False)
        except RecordError:
            written.append(records[at : at + size])
        else:
            own = handle._replace(queue_id=record.queue_id, queue_offset=record.queue_offset)
            longer = PropertiesText(record.properties_text).plus({POP_CK: own.encode()}).text + PROPERTY_SEPARATOR
            written.append(
                encode_record(
                    topic=topic,
                    queue_id=record.queue_id,
                    queue_offset=record.queue_offset,
                    physical_offset=record.physical_offset,
                    body=record.body,
                    properties_text=longer if len(longer.encode()) <= MAX_PROPERTIES_BYTES else record.properties_text,
                    flag=record.flag,
                    sys_flag=record.sys_flag,
                    born_timestamp=record.born_timestamp,
                    born_host=record.born_host,
                    store_timestamp=record.store_timestamp,
                    store_host=record.store_host,
                    reconsume_times=record.reconsume_times,
                    prepared_transaction_offset=record.prepared_transaction_offset,
                )
            )
        at += size
    return b"".join(written)
