"""Kombu's messages in RocketMQ's, and strangers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.integrations.kombu.envelope import MARK, StrangerError, due_at, from_message, is_due, keys_of, to_message
from cometmq.message.compression import decompress
from cometmq.message.sysflag import COMPRESSED


def payload(**headers: Any) -> dict[str, Any]:
    properties = {"delivery_tag": "t", "delivery_info": {"exchange": "", "routing_key": "q"}, "priority": 0}
    return {
        "body": b"[]",
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers,
        "properties": properties,
    }


def received(body: bytes, **properties: str) -> Any:
    return SimpleNamespace(body=body, properties=properties)


@given(st.binary(), st.dictionaries(st.text(), st.none() | st.integers() | st.text()))
def test_any_body_and_headers_come_back(body: bytes, headers: dict[str, Any]) -> None:
    headers = {name: value for name, value in headers.items() if "\ud800" not in f"{name}{value}"}
    sent = dict(payload(**headers), body=body)
    message = to_message("topic", sent)
    assert from_message(received(message.body, **message.properties)) == sent


@pytest.mark.parametrize(
    "body",
    [b"", b"\n", b"[]\n", b"{}\n", b"\xff\xfe\n", b'{"content-type":1}\n', b'{"headers":[]}\n', b"plain text"],
)
def test_other_bodies_are_those_of_strangers(body: bytes) -> None:
    with pytest.raises(StrangerError):
        from_message(received(body, **{MARK: "1"}))
    with pytest.raises(StrangerError, match="was not sent by Kombu"):
        from_message(received(body))


def test_a_damaged_body_is_that_of_a_stranger() -> None:
    class Damaged:
        properties: ClassVar[dict[str, str]] = {MARK: "1"}

        @property
        def body(self) -> bytes:
            return decompress(b"damaged", COMPRESSED, 100)

    with pytest.raises(StrangerError):
        from_message(cast(Any, Damaged()))


@pytest.mark.parametrize("eta", [None, 7, "", "tomorrow", "9999-99-99", {}, "0001-01-01T00:00:00+14:00"])
def test_an_eta_that_cannot_be_read_is_left_to_celery(eta: Any) -> None:
    assert due_at(payload(task="add", eta=eta)) is None


@pytest.mark.parametrize("limits", [None, [None, None], [60, 0.5], (1, None)])
def test_time_limits_of_celery_are_accepted(limits: Any) -> None:
    body = to_message("topic", payload(task="add", timelimit=limits)).body
    assert from_message(received(body, **{MARK: "1"}))["headers"]["task"] == "add"


def test_etas() -> None:
    assert due_at(payload(task="add", eta="2031-01-01T01:00:00.123+01:00")) == datetime(
        2031, 1, 1, 0, 0, 0, 123_000, UTC
    )
    assert due_at(payload(task="add", eta="2031-01-01T00:00:00")) == datetime(2031, 1, 1, tzinfo=UTC)
    later = datetime.now(UTC) + timedelta(hours=1)
    assert to_message("topic", payload(task="add", eta=later.isoformat())).deliver_at == later
    assert to_message("topic", payload(task="add", eta=later.isoformat()), hold=False).deliver_at is None
    assert to_message("topic", payload(task="add", eta="2001-01-01T00:00:00")).deliver_at is None


def test_a_task_is_due_when_its_eta_has_passed() -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    assert is_due(payload(task="add", eta="2001-01-01T00:00:00"))
    assert not is_due(payload(task="add", eta=later.isoformat()))
    assert not is_due(payload(task="add"))


def test_a_task_that_a_broker_has_held_is_due_when_this_clock_is_behind() -> None:
    held = received(b"", TIMER_DELIVER_MS="1")
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert is_due(payload(task="add", eta=later), held)
    assert not is_due(payload(task="add", eta=later), received(b""))
    soon = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    assert not is_due(payload(task="add", eta=soon), held), "brokers may deliver a little too early"


def test_only_tasks_have_an_eta() -> None:
    assert to_message("topic", payload(eta="2999-01-01T00:00:00")).deliver_at is None
    assert not is_due(payload(eta="2001-01-01T00:00:00"))


def test_the_same_publication_has_the_same_key_and_another_has_not() -> None:
    first = payload(id="task", task="add", retries=0)
    same = dict(payload(id="task", task="add", retries=0))
    same["properties"]["delivery_tag"] = "other"
    assert keys_of(first) == keys_of(same)
    assert keys_of(first)[0] == "task"
    others = [payload(id="task", task="add", retries=1), dict(first, body=b"[1]"), payload(id="task", task="sub")]
    assert len({keys_of(first), *map(keys_of, others)}) == 4
    assert keys_of(payload()) == keys_of(payload(id="has blanks")) == keys_of(payload(id=7)) == ()


@pytest.mark.parametrize(("priority", "level"), [(None, 0), ("x", 0), (-1, 0), (5, 5), (99, 9)])
def test_priorities(priority: Any, level: int) -> None:
    sent = payload()
    sent["properties"]["priority"] = priority
    assert to_message("topic", sent).priority == level
