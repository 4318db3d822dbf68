"""The body of a REGISTER_BROKER request (103): a broker's topics, plain or compressed (``RegisterBrokerBody``).

The plain form is JSON::

    {"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{…},"topicConfigTable":{topic:{…}}}}

The compressed form (header field ``compressed``) is a zlib stream of, big-endian::

    int32 length, DataVersion as JSON
    int32 number of topics, then for each: int32 length, "name readQueues writeQueues perm filterType"
    int32 length, list of filter servers as JSON

Additions in 5.x (queue mappings for static topics) are ignored, as are a topic's flag and order, which the compressed
form lacks.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Mapping
from itertools import islice
from typing import Final

import msgspec

from cometmq.fastjson import FastjsonError, dumps, loads, quote_keys
from cometmq.limits import (
    MAX_ADDRESS_CHARS,
    MAX_DATA_VERSION_BYTES,
    MAX_DIALECT_REGISTRATION_BYTES,
    MAX_FILTER_SERVERS,
    MAX_LOOSE_BODY_BYTES,
    MAX_NAMESRV_TOPICS,
    MAX_REGISTRATION_BYTES,
    MAX_REGISTRATION_VALUES_AT_ONCE,
)
from cometmq.remoting.bodies import (
    Body,
    BodyError,
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    decode_body,
    decode_request,
    encode_body,
    encode_rows,
    encode_table,
)

_TOPICS_PER_PART: Final = 1_000
_PIECE_BYTES: Final = 128 * 1024
"""Size of the parts in which a large registration is decoded."""
_TABLE_BEGINS: Final = b'"topicConfigTable":{'
_ROW_ENDS: Final = b'},"'
_MARK: Final = "\0"
_MARK_ROW: Final = b'"\\u0000":0,'
"""A row that stands for those that were decoded in pieces. Only if it is found in the table was this the table."""
_MAX_ROW_ENDS: Final = 4
"""Maximum number of places that are tried as the end of a row."""
_END: Final = b"}}}"
_INT: Final = struct.Struct(">i")
_FIELDS: Final = 5
_MAX_OBJECTS: Final = 3 * MAX_NAMESRV_TOPICS + 1_000
"""Maximum number of JSON objects in a registration: topics, and in 5.x also their attributes and queue mappings."""
_MAX_FILTER_SERVERS_BYTES: Final = 2 * MAX_FILTER_SERVERS * MAX_ADDRESS_CHARS


@dataclasses.dataclass(frozen=True, slots=True)
class Registration:
    """The content of a registration: topics by name, their version, and filter servers."""

    data_version: DataVersion
    topics: Mapping[str, TopicConfig]
    filter_servers: list[str] = dataclasses.field(default_factory=list)


def encode_registration(registration: Registration, *, compressed: bool = False) -> bytes:
    """Encode a registration body in steps of a thousand topics, so that other threads can run in between."""
    if not compressed:
        wrapper = TopicConfigSerializeWrapper(data_version=registration.data_version, topic_config_table={})
        empty = encode_table(
            RegisterBrokerBody(topic_config_serialize_wrapper=wrapper, filter_server_list=registration.filter_servers)
        )
        assert empty.endswith(_END), empty
        topics = iter(registration.topics.items())
        parts = []
        while some := dict(islice(topics, _TOPICS_PER_PART)):
            parts.append(encode_rows(some))
        return b"".join((empty[: -len(_END)], b",".join(parts), _END))
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
    """Decode a registration body; an empty body means that the broker has no topics.

    The topics are counted before any object is created.

    :raises BodyError: the body is malformed, larger than MAX_REGISTRATION_BYTES once decompressed, or has too many
        topics or filter servers.
    """
    if not body:
        return Registration(DataVersion(timestamp=0, counter=0), {})
    if compressed:
        return _decode_compressed(body)
    if body.count(b"{") > _MAX_OBJECTS:
        raise _too_many_topics()
    try:
        plain = _decode_plain(body)
        table = plain.topic_config_serialize_wrapper.topic_config_table
        if len(table) > MAX_NAMESRV_TOPICS:
            raise _too_many_topics()
        topics = {name: _topic(row) for name, row in table.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if len(body) > MAX_LOOSE_BODY_BYTES:
            raise BodyError(f"the registration is malformed: {error}") from error
        loose = decode_body(RegisterBrokerBody, body)
        wrapper = loose.topic_config_serialize_wrapper
        return Registration(wrapper.data_version, wrapper.topic_config_table, _checked(loose.filter_server_list))
    filters = _decode_filters(bytes(plain.filter_server_list))
    return Registration(plain.topic_config_serialize_wrapper.data_version, topics, filters)


class _Topic(Body):
    """The topic fields that a nameserver reads; 5.x attributes are ignored."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False


class _Topics(Body):
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_config_table: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)
    """The topics, which are decoded one by one so that other threads can run in between."""


class _Plain(Body):
    topic_config_serialize_wrapper: _Topics = msgspec.field(default_factory=_Topics)
    filter_server_list: msgspec.Raw = msgspec.Raw(b"[]")


_plain_decoder: Final = msgspec.json.Decoder(_Plain, strict=False)
_rows_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_topic_decoder: Final = msgspec.json.Decoder(_Topic, strict=False)


def _topic(row: msgspec.Raw) -> TopicConfig:
    topic = _topic_decoder.decode(row)
    return TopicConfig(
        topic_name=topic.topic_name,
        read_queue_nums=topic.read_queue_nums,
        write_queue_nums=topic.write_queue_nums,
        perm=topic.perm,
        topic_filter_type=topic.topic_filter_type,
        topic_sys_flag=topic.topic_sys_flag,
        order=topic.order,
    )


def _decode_plain(body: bytes) -> _Plain:
    rows, rest = _first_rows(body)
    plain = _decode_at_once(rest)
    if not rows:
        return plain
    others = plain.topic_config_serialize_wrapper.topic_config_table
    if others.pop(_MARK, None) is None:  # another object has a table of this name
        return _decode_at_once(body)
    rows.update(others)
    version = plain.topic_config_serialize_wrapper.data_version
    return _Plain(
        topic_config_serialize_wrapper=_Topics(data_version=version, topic_config_table=rows),
        filter_server_list=plain.filter_server_list,
    )


def _first_rows(body: bytes) -> tuple[dict[str, msgspec.Raw], bytes]:
    """Decode the first topics of a large registration in pieces, so that other threads can run in between.

    Return these topics, and the registration with a mark instead of them. What does not consist of whole rows remains
    in it.

    :raises BodyError: there are too many topics; the others are not decoded.
    """
    start = body.find(_TABLE_BEGINS) + len(_TABLE_BEGINS)
    rows: dict[str, msgspec.Raw] = {}
    at = start
    while start >= len(_TABLE_BEGINS) and len(body) - at > 2 * _PIECE_BYTES:
        some, at = _next_rows(body, at)
        if not some:
            break
        rows.update(some)
        if len(rows) > MAX_NAMESRV_TOPICS:
            raise _too_many_topics()
    return rows, body[:start] + _MARK_ROW + body[at:] if rows else body


def _next_rows(body: bytes, at: int) -> tuple[dict[str, msgspec.Raw], int]:
    """Decode a piece of the topics from byte ``at`` on; return no topics if none of the next places ends a row.

    In 5.x, each row has an object of attributes, whose end looks like the end of a row.
    """
    end = at + _PIECE_BYTES
    for _ in range(_MAX_ROW_ENDS):
        end = body.find(_ROW_ENDS, end, end + _PIECE_BYTES) + 1
        if not end:
            break
        try:
            return _rows_decoder.decode(b"{%b}" % body[at:end]), end + 1
        except msgspec.MsgspecError:
            continue
    return {}, at


def _decode_at_once(body: bytes) -> _Plain:
    """Decode JSON in one call, which keeps other threads waiting for as long as it has values."""
    if body.count(b",") > MAX_REGISTRATION_VALUES_AT_ONCE:
        raise BodyError(
            f"a registration can have at most {MAX_REGISTRATION_VALUES_AT_ONCE} values that are not rows of topics in "
            "compact JSON"
        )
    try:
        return _plain_decoder.decode(body)
    except msgspec.DecodeError:
        if len(body) > MAX_DIALECT_REGISTRATION_BYTES:
            raise
        return _plain_decoder.decode(quote_keys(body))  # the queue mappings of static topics (5.x) have numbers as keys


def _decode_filters(text: bytes) -> list[str]:
    if len(text) > _MAX_FILTER_SERVERS_BYTES:
        raise _too_many_filters()
    return _checked(msgspec.convert(loads(text), list[str]))


def _checked(filters: list[str]) -> list[str]:
    if len(filters) > MAX_FILTER_SERVERS or any(len(filter_server) > MAX_ADDRESS_CHARS for filter_server in filters):
        raise _too_many_filters()
    return filters


def _too_many_topics() -> BodyError:
    return BodyError(f"a registration can have at most {MAX_NAMESRV_TOPICS} topics")


def _too_many_filters() -> BodyError:
    return BodyError(
        f"a registration can have at most {MAX_FILTER_SERVERS} filter servers of {MAX_ADDRESS_CHARS} characters"
    )


def _chunk(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _decode_compressed(body: bytes) -> Registration:
    decompressor = zlib.decompressobj()
    try:
        data = decompressor.decompress(body, MAX_REGISTRATION_BYTES)
        if decompressor.unconsumed_tail:
            raise BodyError(f"the registration is larger than {MAX_REGISTRATION_BYTES} bytes")
        chunk, at = _take(data, 0)
        version = decode_request(DataVersion, chunk, MAX_DATA_VERSION_BYTES)
        (count,) = _INT.unpack_from(data, at)
        at += _INT.size
        if count > MAX_NAMESRV_TOPICS:
            raise _too_many_topics()
        topics: dict[str, TopicConfig] = {}
        for _ in range(count):
            chunk, at = _take(data, at)
            topic = _parse_topic(chunk.decode())
            topics[topic.topic_name] = topic
        chunk, _ = _take(data, at)
        filters = _decode_filters(chunk)
    except (zlib.error, struct.error, UnicodeDecodeError, FastjsonError, msgspec.ValidationError) as error:
        raise BodyError(f"the registration is malformed: {error}") from error
    return Registration(version, topics, filters)


def _take(data: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _INT.unpack_from(data, at)
    start = at + _INT.size
    if not 0 <= length <= len(data) - start:
        raise BodyError(f"the registration ends in the middle of a field at byte {at}")
    return data[start : start + length], start + length


def _parse_topic(text: str) -> TopicConfig:
    fields = text.split(" ")
    if len(fields) < _FIELDS:
        raise BodyError(f"malformed topic in the registration: {text[:200]!r}")
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
        raise BodyError(f"malformed topic in the registration: {text[:200]!r}") from error
