"""The document: its JSON, its limits, and what a member says about one that is not valid."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.failover.document import (
    Document,
    DocumentError,
    Member,
    check_name,
    decode_document,
    encode_document,
    founding_document,
    parse_member,
)

A, B = Member("a", 1), Member("b", 2**62)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
members = st.builds(Member, names, st.integers(0, 2**62))


@st.composite
def documents(draw: st.DrawFn) -> Document:
    found = draw(st.lists(members, min_size=1, max_size=8, unique_by=lambda member: member.name))
    document = founding_document(draw(st.from_regex(r"[0-9a-f]{8,64}", fullmatch=True)), 1, found[0], 0)
    document = document.elected(found[0], frozenset(found), draw(st.text(max_size=600)), draw(st.integers(0, 2**60)))
    for member in found:
        document = document.with_replica(member.name, "10.0.0.1:1", "[::1]:2")
    return document


@given(documents())
def test_a_document_is_read_as_it_was_written(document: Document) -> None:
    assert decode_document(encode_document(document)) == document


def valid() -> dict[str, object]:
    document = founding_document("5e7a1d5e", 1, A, 0).changed(frozenset({A, B}), "b caught up", 5)
    return dict(json.loads(encode_document(document.with_replica("a", "h:1", "h:2"))))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"setId": "x"}, "setId is not a hexadecimal number"),
        ({"epoch": 0}, "epoch is 0"),
        ({"serial": -1}, "serial is -1"),
        ({"master": "c#1"}, "inSync lacks the master c#1"),
        ({"master": "a"}, "'a' is not a member, which has the form name#generation"),
        ({"inSync": ["a#1", "a#1"]}, "inSync has a replica twice"),
        ({"inSync": ["a#1", "a#2"]}, "inSync has a replica twice"),
        ({"inSync": ["a#1", "../x#2"]}, "is not a member"),
        ({"inSync": ["a#1"] + [f"r{n}#1" for n in range(20)]}, "more than 16 replicas"),
        (
            {"replicas": [{"name": "a", "address": "", "haAddress": "", "brokerId": 0}]},
            "two replicas have one brokerId",
        ),
        ({"replicas": [{"name": "a", "address": "x" * 999, "haAddress": "", "brokerId": 1}]}, "300 characters"),
        ({"why": "x" * 600}, "the reason is too long"),
        ({"atMs": -5}, "atMs is -5"),
        ({"epoch": "7"}, "Expected `int`"),
        ({"inSync": None}, "Expected `array`"),
    ],
)
def test_a_document_that_is_not_valid_is_refused_with_the_next_step(changes: dict[str, object], match: str) -> None:
    with pytest.raises(DocumentError, match=match) as error:
        decode_document(json.dumps({**valid(), **changes}).encode())
    assert error.value.next_step is not None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"null", b"x" * 70_000])
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(DocumentError, match="not valid"):
        decode_document(data)


def test_another_format_asks_for_the_same_version() -> None:
    with pytest.raises(DocumentError, match=r"has format 2.*run the same version of CometMQ"):
        decode_document(b'{"format": 2, "everything": "else"}')


def test_unknown_fields_of_a_newer_member_are_ignored() -> None:
    assert decode_document(json.dumps({**valid(), "new": 1}).encode()).master == A


def test_replicas_keep_their_broker_ids() -> None:
    document = founding_document("5e7a1d5e", 1, A, 0)
    for name in "abc":
        document = document.with_replica(name, f"{name}:1", f"{name}:2")
    moved = document.with_replica("b", "new:1", "new:2")
    assert [(one.name, one.broker_id) for one in moved.replicas] == [("a", 1), ("b", 2), ("c", 3)]
    assert replace(moved, replicas=document.replicas) == document


@pytest.mark.parametrize("name", ["", ".", "-a", "a/b", "a#1", "x" * 64, "ä", "a b"])
def test_a_name_must_fit_into_a_key(name: str) -> None:
    with pytest.raises(DocumentError, match="letters, digits"):
        check_name(name)


@pytest.mark.parametrize("text", ["a#-1", "a#", "#1", "a#1#2", "a#99999999999999999999", f"a#{2**62 + 1}"])
def test_a_member_is_a_name_and_a_generation(text: str) -> None:
    with pytest.raises(DocumentError, match="not a member"):
        parse_member(text)
