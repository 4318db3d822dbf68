"""Addresses as people and configuration files write them."""

from __future__ import annotations

import ipaddress

import pytest

from cometmq.message.hosts import (
    address_here,
    decode_host,
    encode_host,
    ip_of,
    own_ip,
    parse_address,
    parse_network,
    parsed_ip,
    split_addresses,
    stored_ip,
    unmapped,
)


def test_addresses_are_split_and_stand_once() -> None:
    assert split_addresses("a:1; b:2;;a:1,c:3") == ("a:1", "b:2", "c:3")
    assert split_addresses(" ; ") == ()
    assert split_addresses(" http://a:1;http://b:2,a:1; https://c:3") == ("a:1", "b:2", "https://c:3")


def test_the_own_address_can_be_stored() -> None:
    assert ipaddress.ip_address(own_ip())
    assert decode_host(encode_host(own_ip(), 10_911)) == (own_ip(), 10_911)


@pytest.mark.parametrize(
    ("host", "stored", "plain"),
    [
        ("10.0.0.1", "10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1", "10.0.0.1"),
        ("::FFFF:a00:1", "10.0.0.1", "10.0.0.1"),
        ("0:0:0:0:0:ffff:10.0.0.1", "10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1%eth0", "10.0.0.1", "10.0.0.1"),
        ("::1", "::1", "::1"),
        ("FE80:0:0:0:0:0:0:1%eth0", "fe80::1", "FE80:0:0:0:0:0:0:1%eth0"),
        ("::10.0.0.1", "::10.0.0.1", "::10.0.0.1"),
        ("64:ff9b::a00:1", "64:ff9b::a00:1", "64:ff9b::a00:1"),
        ("localhost", None, "localhost"),
        ("::ffff:10.0.0", None, "::ffff:10.0.0"),
        ("", None, ""),
    ],
)
def test_an_address_is_stored_without_mapping_and_zone(host: str, stored: str | None, plain: str) -> None:
    assert stored_ip(host) == stored
    assert unmapped(host) == plain
    if stored is not None:
        assert decode_host(encode_host(host, 1)) == (stored, 1)
        assert parsed_ip(host) == ipaddress.ip_address(stored)


def test_a_stored_address_that_is_mapped_is_read_as_ipv4() -> None:
    mapped = ipaddress.IPv6Address("::ffff:10.0.0.1").packed + bytes((0, 0, 0x2A, 0x9F))
    assert decode_host(mapped) == ("10.0.0.1", 10_911)


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("::ffff:10.0.0.1", "10.0.0.1/32"),
        ("fe80::1%eth0", "fe80::1/128"),
        ("::ffff:0:0/90", None),
        ("2001:db8::/32", "2001:db8::/32"),
        ("10.0.0.1/8", None),
        ("x", None),
    ],
)
def test_networks_of_mapped_addresses_are_those_of_ipv4(text: str, network: str | None) -> None:
    if network is not None:
        assert str(parse_network(text)) == network
        return
    with pytest.raises(ValueError, match=r"network|host bits"):
        parse_network(text)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("[::1]:9876", ("::1", 9876)),
        ("::1:9876", ("::1", 9876)),
        ("fe80:0:0:0:0:0:0:1%eth0:10911", ("fe80:0:0:0:0:0:0:1%eth0", 10_911)),
        ("[fe80::1%eth0]:10911", ("fe80::1%eth0", 10_911)),
        ("[::ffff:127.0.0.1]:1", ("::ffff:127.0.0.1", 1)),
        ("::ffff:127.0.0.1:1", ("::ffff:127.0.0.1", 1)),
    ],
)
def test_addresses_of_ipv6_are_read_with_brackets_and_in_javas_form(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text) == parsed


@pytest.mark.parametrize("text", ["fe80::1", "2001:db8::1", "1:2:3:4:5:6:7:8", "a:b:1", "[::1]", "::"])
def test_an_address_of_ipv6_without_a_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        parse_address(text)


@pytest.mark.parametrize("host", ["a..b", ".a", "a" * 64, "ü" * 63, "a\0b", "\ud800"])
def test_what_can_be_no_name_is_refused_and_has_no_address(host: str) -> None:
    with pytest.raises(ValueError, match="labels of 1 to 63 characters"):
        parse_address(f"{host}:1")
    with pytest.raises(OSError, match=r"labels of 1 to 63|not known"):
        ip_of(host)


@pytest.mark.parametrize("host", ["a.b.", "my_broker", "a-" * 31, "münchen.example"])
def test_names_are_read(host: str) -> None:
    assert parse_address(f"{host}:1") == (host, 1)


@pytest.mark.parametrize(
    ("host", "at"),
    [("", "127.0.0.1:1"), ("0.0.0.0", "127.0.0.1:1"), ("::", "[::1]:1"), ("::1", "[::1]:1"), ("a", "a:1")],
)
def test_a_server_is_reached_on_its_own_machine(host: str, at: str) -> None:
    assert address_here(host, 1) == at
