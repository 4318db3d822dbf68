"""Addresses by listener: what users write, what brokers register, and whose client is whose."""

from __future__ import annotations

import pytest

from cometmq.message.listeners import (
    Advertised,
    format_advertised,
    format_registered,
    parse_advertised,
    parse_listeners,
    parse_registered,
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("broker-0.brokers", {"": Advertised("broker-0.brokers", 0)}),
        ("192.0.2.1:30911", {"": Advertised("192.0.2.1", 30911)}),
        ("[::1]", {"": Advertised("::1", 0)}),
        ("2001:db8::7", {"": Advertised("2001:db8::7", 0)}),
        ("[2001:db8::7]:30911", {"": Advertised("2001:db8::7", 30911)}),
        ("inside, out-side=localhost:1", {"": Advertised("inside", 0), "out-side": Advertised("localhost", 1)}),
    ],
)
def test_an_advertised_address_is_read_and_written(text: str, found: dict[str, Advertised]) -> None:
    assert parse_advertised(text) == found
    assert parse_advertised(format_advertised(found)) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0.0.0.0", "an address to listen on"),
        ("host:0", "port 0"),
        ("host:70000", "host:port"),
        ("ho st", "HOST:PORT"),
        ("http://host", "host:port"),
        ("1x=host", "listener name"),
        ("=host", "listener name"),
        ("a=h,a=g", "is defined twice"),
        ("h,g", "address for every client is defined twice"),
        (",".join(f"n{i}=h" for i in range(17)), "the maximum is 16"),
    ],
)
def test_a_wrong_address_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_advertised(text)


@pytest.mark.parametrize("text", ["outside", "a=70000", "a=10.0.0.1/8", "a=1,a=2", "a=x"])
def test_a_wrong_listener_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"listener|port|NAME"):
        parse_listeners(text)


def test_a_client_belongs_to_its_port_then_to_its_network() -> None:
    listeners = parse_listeners("outside=19876, vpn=10.8.0.0/16, six=2001:db8::/32")
    assert listeners.ports == {"outside": 19876}
    assert listeners.of("outside", "10.8.1.1") == "outside"
    assert [listeners.of("", ip) for ip in ("10.8.1.1", "10.9.1.1", "2001:db8::1", "fe80::1%eth0")] == [
        "vpn",
        "",
        "six",
        "",
    ]


@pytest.mark.parametrize("text", ["outside=host", "host:1", "outside=host:1," * 20, "a=" + "h" * 6000 + ":1"])
def test_a_registration_has_names_and_ports(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_registered(text)


def test_registered_addresses_come_back() -> None:
    addresses = {"outside": "192.0.2.1:30911", "six": "[2001:db8::7]:10911"}
    assert parse_registered(format_registered(addresses)) == addresses
