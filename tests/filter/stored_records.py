"""Records with properties, as a broker stores them."""

from __future__ import annotations

from cometmq.message.hosts import encode_host
from cometmq.message.record import MESSAGE_MAGIC_V2, encode_record

V4, V6 = encode_host("10.0.0.1", 10911), encode_host("::1", 10911)


def record(
    properties_text: str, *, born: bytes = V4, stored: bytes = V4, body: bytes = b"body", topic: str = "T"
) -> bytes:
    return encode_record(
        topic=topic,
        queue_id=3,
        queue_offset=7,
        physical_offset=1_000,
        body=body,
        properties_text=properties_text,
        born_timestamp=1,
        born_host=born,
        store_timestamp=2,
        store_host=stored,
    )


def as_v2(v1: bytes, topic: str) -> bytes:
    """The record as RocketMQ 5 stores it for long topics: another magic, two bytes for the topic's length."""
    at = v1.rindex(bytes((len(topic),)) + topic.encode())
    size = (len(v1) + 1).to_bytes(4, "big")
    return size + MESSAGE_MAGIC_V2.to_bytes(4, "big", signed=True) + v1[8:at] + b"\0" + v1[at:]
