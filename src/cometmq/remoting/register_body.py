"""The body of REGISTER_BROKER (103): a broker's topics, plain or compressed (``RegisterBrokerBody``).

Plain, it is JSON::

    {"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{…},"topicConfigTable":{topic:{…}}}}

Compressed (header field ``compressed``), it is a zlib stream of, big-endian::

    int32 length, DataVersion as JSON
    int32 number of topics, then for each: int32 length, "name readQueues writeQueues perm filterType"
    int32 length, list of filter servers as JSON

What 5.x appends to that (queue mappings of static topics) is passed over, as is the flag and the order
of a topic, which the compressed form does not carry.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Mapping
from typing import Final

import msgspec

from cometmq.fastjson import FastjsonError, dumps, loads
from cometmq.limits import MAX_REGISTRATION_BYTES
from cometmq.remoting.bodies import (
    BodyError,
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    decode_body,
    encode_body,
    encode_json,
)

_INT: Final = struct.Struct(">i")
_FIELDS: Final = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Registration:
    """What a broker says of itself: topics by name, their version, and its filter servers."""

    data_version: DataVersion
    topics: Mapping[str, TopicConfig]
    filter_servers: list[str] = dataclasses.field(default_factory=list)


def encode_registration(registration: Registration, *, compressed: bool = False) -> bytes:
    """Encode a registration's body."""
    if not compressed:
        wrapper = TopicConfigSerializeWrapper(
            data_version=registration.data_version, topic_config_table=dict(registration.topics)
        )
        return encode_json(
            RegisterBrokerBody(topic_config_serialize_wrapper=wrapper, filter_server_list=registration.filter_servers)
        )
    pieces = [_chunk(encode_body(registration.data_version)), _INT.pack(len(registration.topics))]
    for topic in registration.topics.values():
        text = (
            f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} {topic.perm} "
            f"{topic.topic_filter_type}"
        )
        pieces.append(_chunk(text.encode()))
    pieces.append(_chunk(dumps(registration.filter_servers)))
    return zlib.compress(b"".join(pieces))


def decode_registration(body: bytes, *, compressed: bool = False) -> Registration:
    """Decode a registration's body; an empty one is a broker without topics.

    :raises BodyError: it is neither form, or larger than MAX_REGISTRATION_BYTES once decompressed.
    """
    if not body:
        return Registration(DataVersion(timestamp=0, counter=0), {})
    if compressed:
        return _decode_compressed(body)
    plain = decode_body(RegisterBrokerBody, body)
    wrapper = plain.topic_config_serialize_wrapper
    return Registration(wrapper.data_version, wrapper.topic_config_table, plain.filter_server_list)


def _chunk(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _decode_compressed(body: bytes) -> Registration:
    decompressor = zlib.decompressobj()
    try:
        data = decompressor.decompress(body, MAX_REGISTRATION_BYTES)
        if decompressor.unconsumed_tail:
            raise BodyError(f"the registration is larger than {MAX_REGISTRATION_BYTES} bytes")
        chunk, at = _take(data, 0)
        version = decode_body(DataVersion, chunk)
        (count,) = _INT.unpack_from(data, at)
        at += _INT.size
        topics: dict[str, TopicConfig] = {}
        for _ in range(count):
            chunk, at = _take(data, at)
            topic = _parse_topic(chunk.decode())
            topics[topic.topic_name] = topic
        chunk, _ = _take(data, at)
        filters = msgspec.convert(loads(chunk), list[str])
    except (zlib.error, struct.error, UnicodeDecodeError, FastjsonError, msgspec.ValidationError) as error:
        raise BodyError(f"the registration cannot be read: {error}") from error
    return Registration(version, topics, filters)


def _take(data: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _INT.unpack_from(data, at)
    start = at + _INT.size
    if not 0 <= length <= len(data) - start:
        raise BodyError(f"the registration is cut off at byte {at}")
    return data[start : start + length], start + length


def _parse_topic(text: str) -> TopicConfig:
    fields = text.split(" ")
    if len(fields) < _FIELDS:
        raise BodyError(f"not a topic of a registration: {text[:200]!r}")
    name, read_queues, write_queues, perm, filter_type = fields[:_FIELDS]
    try:
        return TopicConfig(
            topic_name=name,
            read_queue_nums=int(read_queues),
            write_queue_nums=int(write_queues),
            perm=int(perm),
            topic_filter_type=filter_type,
        )
    except ValueError as error:
        raise BodyError(f"not a topic of a registration: {text[:200]!r}") from error
