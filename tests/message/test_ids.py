"""Ids and hashes against the vectors of the JDK and of Apache RocketMQ."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.message.hosts import decode_host, encode_host, format_address, parse_address
from cometmq.message.ids import (
    UniqIdGenerator,
    decode_offset_msg_id,
    index_hash,
    java_hash,
    offset_msg_id,
    tags_code,
)
from cometmq.testing import VirtualClock


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("d", 100),
        ("TopicTest#k1", 2746024),
        ("_RECALL_TAG_", -847619372),
        ("中文", 646394),
        ("", 0),
    ],
)
def test_java_hash_is_that_of_the_jdk(text: str, code: int) -> None:
    assert java_hash(text) == code


def test_tags_code_of_no_tag_is_zero() -> None:
    assert tags_code(None) == tags_code("") == 0


def test_index_hash_of_the_smallest_int_is_zero() -> None:
    assert index_hash(-(2**31)) == 0


def test_offset_msg_id_is_apaches() -> None:
    assert offset_msg_id(encode_host("127.0.0.1", 10911), 1234) == "7F00000100002A9F00000000000004D2"


@given(st.ip_addresses().map(str), st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_offset_msg_id_round_trips_for_both_families(ip: str, port: int, offset: int) -> None:
    host = encode_host(ip, port)
    shown_ip, shown_port = decode_host(host)
    assert decode_offset_msg_id(offset_msg_id(host, offset)) == (shown_ip, shown_port, offset)
    assert parse_address(format_address(shown_ip, shown_port)) == (shown_ip, shown_port)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "xyz",
        "7F00",
        "7F00000100002A9F00000000000004D2FF",
        "7F 00000100002A9F000000000004D2",
        "C000020241B44BF7AF7B693FA46E0000",
    ],
)
def test_a_text_that_is_no_offset_msg_id_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="offset message id"):
        decode_offset_msg_id(bad)


@pytest.mark.parametrize("bad", ["", ":1", "host", "host:", "host:x", "host:65536", "host:-1"])
def test_an_address_without_a_port_in_range_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        parse_address(bad)


def test_unique_ids_differ_and_have_the_java_form() -> None:
    clock = VirtualClock()
    make = UniqIdGenerator(clock, b"\x7f\0\0\1")
    ids = make.many(30_000)
    clock.advance(0.001)
    ids += make.many(30_000)
    assert len(set(ids)) == 60_000
    assert all(len(one) == 32 and one.startswith("7F000001") and one == one.upper() for one in ids)


def test_threads_that_share_a_generator_get_different_ids() -> None:
    make = UniqIdGenerator()

    def ids(_: int) -> list[str]:
        return [one for _ in range(500) for one in (make.next(), *make.many(3))]

    with ThreadPoolExecutor(4) as threads:
        found = [one for some in threads.map(ids, range(8)) for one in some]
    assert len(set(found)) == len(found) == 8 * 500 * 4
    assert {len(one) for one in found} == {len(make.next())}, "the first id of a thread has all parts, too"


def test_unique_ids_of_two_generators_differ() -> None:
    clock = VirtualClock()
    assert UniqIdGenerator(clock).next() != UniqIdGenerator(clock).next()


def test_unique_ids_on_an_ipv6_host_have_56_digits() -> None:
    assert len(UniqIdGenerator(VirtualClock(), b"\x20" * 16).next()) == 56
