"""Stored messages as the bytes of protobuf messages: the same as protobuf's own library writes."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core import CORE
from cometmq.java_values import parse_long
from cometmq.message.hosts import encode_host
from cometmq.message.layout import host_flags
from cometmq.message.message import MessageExt, split_records
from cometmq.message.record import encode_record
from cometmq.message.sysflag import COMPRESSED
from cometmq.proxy import received as module
from cometmq.proxy.backend.backend import Reply
from cometmq.proxy.converter import RESERVED, resource_of, timestamp, type_of
from cometmq.proxy.errors import ProxyError
from cometmq.proxy.message_bytes import to_proto
from cometmq.proxy.protocol import v2
from cometmq.proxy.received import Received, read_pop
from cometmq.remoting.pop_headers import PopMessageResponseHeader

INT32_MAX = 2**31 - 1
V4, V6 = encode_host("10.1.2.3", 10_911), encode_host("2001:db8::1", 10_911)
NAMES = (
    *("TAGS", "KEYS", "UNIQ_KEY", "__SHARDINGKEY", "TRAN_MSG", "DELAY", "__BORN_HOST", "TRACE_CONTEXT", "CLUSTER"),
    *("TIMER_DELIVER_MS", "TIMER_OUT_MS", "_SYS_MSG_PRIORITY_", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"),
    *("__LITE_TOPIC", "region", "größe", "a"),
)
VALUES = (
    st.sampled_from(("true", "1", "-5", "0", "2147483648", "9" * 19, "9" * 18, "x", " a  b ", "k1 k2 ", "é\u3000"))
    | st.integers(-(2**63), 2**63).map(str)
    | st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), max_size=30)
)
PROPERTIES = st.lists(st.tuples(st.sampled_from(NAMES) | st.text("ab\u00e4", max_size=3), VALUES), max_size=8)
HEADER = PopMessageResponseHeader(
    pop_time=1_700_000_001_000,
    invisible_time=60_000,
    revive_qid=0,
    rest_num=5,
    start_offset_info="0 3 1000;0 -1 5;0 0 7",
)


def stored(
    properties: str = "",
    body: bytes = b"body",
    *,
    queue_id: int = 3,
    offset: int = 1_000,
    sys_flag: int = 0,
    born_ms: int = 1_700_000_000_123,
    hosts: tuple[bytes, bytes] = (V4, V4),
    retries: int = 0,
) -> bytes:
    return encode_record(
        topic="T",
        queue_id=queue_id,
        queue_offset=offset,
        physical_offset=offset * 400,
        body=body,
        properties_text=properties,
        flag=0,
        sys_flag=sys_flag | host_flags(*hosts),
        born_timestamp=born_ms,
        born_host=hosts[0],
        store_timestamp=1_700_000_000_456,
        store_host=hosts[1],
        reconsume_times=retries,
        prepared_transaction_offset=0,
    )


def number_of(text: str | None) -> int | None:
    with suppress(ValueError):
        return None if text is None else parse_long(text)
    return None


def by_protobuf(message: MessageExt, topic: str) -> v2.Message:
    """The message as protobuf's library makes it, field by field."""
    values = message.properties
    body = message.stored_body
    is_gzip = bool(message.sys_flag & COMPRESSED) and body.startswith(b"\x1f\x8b")
    if message.sys_flag & COMPRESSED and not is_gzip:
        body = zlib.decompress(body)
    system = v2.SystemProperties(
        message_id=message.msg_id,
        body_digest=v2.Digest(type=v2.DigestType.MD5, checksum=hashlib.md5(body).hexdigest().upper()),
        body_encoding=v2.Encoding.GZIP if is_gzip else v2.Encoding.IDENTITY,
        message_type=type_of(values),
        born_timestamp=timestamp(message.born_timestamp),
        born_host=values.get("__BORN_HOST") or message.born_host,
        store_timestamp=timestamp(message.store_timestamp),
        store_host=message.store_host,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        delivery_attempt=min(message.reconsume_times + 1, INT32_MAX),
        keys=(values.get("KEYS", "").rstrip(" ") or None) and values["KEYS"].rstrip(" ").split(" "),
        tag=values.get("TAGS"),
        message_group=values.get("__SHARDINGKEY"),
        trace_context=values.get("TRACE_CONTEXT"),
        lite_topic=values.get("__LITE_TOPIC"),
    )
    due = number_of(values.get("TIMER_DELIVER_MS") or values.get("TIMER_OUT_MS"))
    if due is not None:
        system.delivery_timestamp.CopyFrom(timestamp(due))
    priority = number_of(values.get("_SYS_MSG_PRIORITY_"))
    if priority is not None and 0 <= priority <= INT32_MAX:
        system.priority = priority
    if "DLQ_ORIGIN_TOPIC" in values:
        system.dead_letter_queue.topic = values["DLQ_ORIGIN_TOPIC"]
        system.dead_letter_queue.message_id = values.get("DLQ_ORIGIN_MESSAGE_ID", "")
    user = {name: value for name, value in values.items() if name not in RESERVED}
    return v2.Message(topic=resource_of(topic), user_properties=user, system_properties=system, body=body)


def received(body: bytes, topic: str = "T", header: PopMessageResponseHeader = HEADER) -> list[Received]:
    return list(read_pop(Reply(0, None, header, body), topic=topic, broker="broker a", max_attempts=2**32))


def in_python(body: bytes, topic: str) -> Received:
    """The message as it is read without the compiled core."""
    with patch.object(module, "_CORE", None):
        (one,) = received(body, topic)
    return one


@pytest.mark.skipif(CORE is None, reason="there is no compiled core")
def test_the_core_reads_usual_messages() -> None:
    """What Python must read is listed: all else would be slow without being noticed."""
    assert module._CORE is not None
    usual = stored(
        "KEYS\x01a b\x02TAGS\x01t\x02UNIQ_KEY\x0101\x02__SHARDINGKEY\x01g\x02user\x01v\x02TIMER_OUT_MS\x0117000000\x02",
        gzip.compress(b"text"),
        sys_flag=COMPRESSED,
    )
    rest: tuple[Any, ...] = (b"\x12\x01T", [(3, "1000 1 2 0 0 b 3")], [], 17)
    assert module._CORE.read(usual + stored(), *rest) is not None
    for unusual in (
        stored(hosts=(V6, V4)),
        stored(hosts=(V4, V6)),
        stored("POP_CK\x015 1 2 0 1 b 3 9"),
        stored("TIMER_OUT_MS\x01-5"),
        stored("_SYS_MSG_PRIORITY_\x01x"),
        stored(body=zlib.compress(b"text"), sys_flag=COMPRESSED),
        stored(queue_id=8),
        stored("\x02".join(f"p{number}\x01v" for number in range(65))),
        stored()[:-1],
        stored() + b"\0\0\0",
    ):
        assert module._CORE.read(usual + unusual, *rest) is None


@given(
    properties=PROPERTIES,
    body=st.binary(max_size=200),
    queue_id=st.sampled_from((3, 0, -1)),
    offset=st.sampled_from((0, 127, 128, 2**62)) | st.integers(0, 2**53),
    born_ms=st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2**42),
    hosts=st.tuples(st.sampled_from((V4, V6)), st.sampled_from((V4, V6))),
    retries=st.sampled_from((0, 1, 16, INT32_MAX)),
    topic=st.sampled_from(("T", "space%T", "%RETRY%space%T")),
)
def test_a_message_has_the_fields_that_protobufs_library_writes(
    properties: list[tuple[str, str]],
    body: bytes,
    queue_id: int,
    offset: int,
    born_ms: int,
    hosts: tuple[bytes, bytes],
    retries: int,
    topic: str,
) -> None:
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties)
    record = stored(text, body, queue_id=queue_id, offset=offset % 2**53, born_ms=born_ms, hosts=hosts, retries=retries)
    (message,) = split_records(record)
    expected = by_protobuf(message, topic)
    assert to_proto(message, topic=topic) == expected
    (one,) = received(record, topic)
    start = {3: 1000, -1: 5, 0: 7}[queue_id]
    place = message.queue_offset, message.commit_log_offset
    expected.system_properties.receipt_handle = one.handle
    assert one.handle == f"{start} 1700000001000 60000 0 0 broker\x1fa {queue_id} {place[0]} {place[1]}"
    assert one == in_python(record, topic)
    assert v2.ReceiveMessageResponse.FromString(one.response) == v2.ReceiveMessageResponse(message=expected)
    assert (one.attempt, one.tag, one.message_id) == (retries + 1, message.tags, message.msg_id)


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_a_gzip_body_is_passed_on_and_others_are_decompressed(compress: object) -> None:
    record = stored(body=compress(b"text" * 100), sys_flag=COMPRESSED)  # type: ignore[operator]
    (message,) = split_records(record)
    (one,) = received(record)
    assert to_proto(message, topic="T") == by_protobuf(message, "T")
    given = v2.ReceiveMessageResponse.FromString(one.response).message
    assert (given.system_properties.body_encoding == v2.Encoding.GZIP) == (compress is gzip.compress)


def test_a_message_of_a_retry_topic_has_its_own_handle() -> None:
    own = "5 1700000001000 60000 0 1 broker\x1fa 3 9"
    (one,) = received(stored(f"1ST_POP_TIME\x015\x02POP_CK\x01{own}\x02", queue_id=8, retries=2))
    assert (one.handle, one.attempt) == (f"{own} {1_000 * 400}", 3)


def test_deliveries_of_ordered_pops_are_counted_by_offset() -> None:
    header = PopMessageResponseHeader(
        *(1_700_000_001_000, 60_000, 999, 0, "0 3 1000", "", "0 qo3%1001 4;0 3 1"),
    )
    body = stored(offset=1_000) + stored(offset=1_001)
    assert [one.attempt for one in received(body, header=header)] == [1, 5]


def test_a_message_with_too_many_attempts_is_not_encoded() -> None:
    """Its body may be the reason why no client could take it."""
    record = stored(body=b"not zlib", sys_flag=COMPRESSED, retries=17)
    (one,) = read_pop(Reply(0, None, HEADER, record), topic="T", broker="b", max_attempts=17)
    assert (one.response, one.attempt) == (b"", 18)


@pytest.mark.parametrize(
    ("info", "record"), [("0 4 1000", stored()), ("0 3", stored()), ("0 3 1000", stored("POP_CK\x01x"))]
)
def test_a_malformed_response_is_refused(info: str, record: bytes) -> None:
    header = PopMessageResponseHeader(1_700_000_001_000, 60_000, 0, 0, info)
    with pytest.raises(ProxyError, match="cannot read the broker's response to a pop"):
        received(record, header=header)
