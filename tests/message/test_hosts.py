"""Addresses as people and configuration files write them."""

from __future__ import annotations

import ipaddress

from cometmq.message.hosts import decode_host, encode_host, own_ip, split_addresses


def test_addresses_are_split_and_stand_once() -> None:
    assert split_addresses("a:1; b:2;;a:1,c:3") == ("a:1", "b:2", "c:3")
    assert split_addresses(" ; ") == ()


def test_the_own_address_can_be_stored() -> None:
    assert ipaddress.ip_address(own_ip())
    assert decode_host(encode_host(own_ip(), 10_911)) == (own_ip(), 10_911)
