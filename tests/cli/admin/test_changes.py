"""Changes of topics, groups and offsets: nothing changes before it was shown and confirmed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cli.conftest import CommandLine

from cometmq.client.sync import SyncPushConsumer


def settings(cometmq: CommandLine, topic: str) -> tuple[int, int, str]:
    (row,) = cometmq("topic", "describe", topic, "-o", "json").json()
    return row["read_queues"], row["write_queues"], row["permission"]


def test_create_changes_no_topic_that_exists(cometmq: CommandLine) -> None:
    create = ("topic", "create", "kept", "--queues", "3")
    assert cometmq(*create).code == 0
    same = cometmq(*create)
    assert (same.code, same.err) == (0, "Topic kept already exists with these settings on broker-0.\n")
    for other in (("--queues", "2"), (), ("--queues", "3", "--permission", "r"), ("--queues", "3", "--order")):
        refused = cometmq("topic", "create", "kept", *other)
        assert refused.code == 1
        assert refused.err == (
            "cometmq: topic kept exists on broker-0 with 3 queues, permission rw; nothing was created "
            "(change it with cometmq topic alter kept)\n"
        )
    assert settings(cometmq, "kept") == (3, 3, "rw")


def test_alter_shows_old_and_new_and_keeps_what_is_not_named(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "altered", "--queues", "3")
    unconfirmed = cometmq("topic", "alter", "altered", "--permission", "r")
    assert unconfirmed.code == 2
    assert unconfirmed.out.splitlines()[-1].split() == ["broker-0", "permission", "rw", "r"]
    assert "nothing was changed (add --yes to confirm)" in unconfirmed.err
    assert settings(cometmq, "altered") == (3, 3, "rw")
    assert cometmq("topic", "alter", "altered", "--permission", "r", "--yes").code == 0
    assert settings(cometmq, "altered") == (3, 3, "r")
    assert cometmq("topic", "alter", "altered", "--write-queues", "2", "--yes").code == 0
    assert settings(cometmq, "altered") == (3, 2, "r")
    again = cometmq("topic", "alter", "altered", "--write-queues", "2")
    assert (again.code, again.out) == (0, "")
    assert "nothing was changed" in again.err
    assert cometmq("topic", "alter", "altered").code == 2
    assert cometmq("topic", "alter", "never-made", "--queues", "2", "--yes").code == 1


def test_alter_says_what_becomes_of_expired_messages(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "expiring", "--queues", "1")
    shown = cometmq("topic", "alter", "expiring", "--expired", "dead-letter")
    assert shown.out.splitlines()[-1].split() == ["broker-0", "expired", "messages", "skip", "dead-letter"]
    assert cometmq("topic", "alter", "expiring", "--expired", "dead-letter", "--yes").code == 0
    assert "nothing was changed" in cometmq("topic", "alter", "expiring", "--expired", "dead-letter").err
    assert cometmq("topic", "alter", "expiring", "--queues", "2", "--yes").code == 0
    assert cometmq("topic", "create", "expiring", "--queues", "2").code == 0
    assert cometmq("topic", "alter", "expiring", "--expired", "skip", "--yes").code == 0
    assert cometmq("topic", "alter", "expiring", "--expired", "keep").code == 2


def test_queues_with_messages_are_hidden_only_on_demand(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "shrunk", "--queues", "4")
    cometmq("produce", "shrunk", "--count", "8", "--batch", "1")
    refused = cometmq("topic", "alter", "shrunk", "--queues", "2", "--yes")
    assert refused.code == 2
    assert "4 messages in 2 queues (broker-0/2, broker-0/3) would become unreadable" in refused.err
    assert settings(cometmq, "shrunk") == (4, 4, "rw")
    shrunk = cometmq("topic", "alter", "shrunk", "--queues", "2", "--yes", "--hide-messages")
    assert shrunk.code == 0
    assert "transactions) of broker-0/2-3 go to other queues" in " ".join((shrunk.out + shrunk.err).split())
    assert settings(cometmq, "shrunk") == (2, 2, "rw")


def test_groups_change_only_by_alter(cometmq: CommandLine) -> None:
    assert cometmq("group", "create", "steady", "--max-retries", "3").code == 0
    assert cometmq("group", "create", "steady", "--max-retries", "3").code == 0
    refused = cometmq("group", "create", "steady")
    assert refused.code == 1
    assert "max retries 3, 1 retry queue; nothing was created" in refused.err
    altered = cometmq("group", "alter", "steady", "--max-retries", "5", "--yes")
    assert altered.code == 0
    assert altered.out.splitlines()[-1].split() == ["broker-0", "max", "retries", "3", "5"]


@pytest.fixture(scope="module")
def consumed(cometmq: CommandLine) -> CommandLine:
    """A group that has consumed ten messages in each of two queues."""
    cometmq("topic", "create", "moved", "--queues", "2")
    cometmq("produce", "moved", "--count", "20", "--batch", "1")
    assert cometmq("consume", "moved", "--group", "movers", "--from-beginning", "--max", "20").code == 0
    return cometmq


def offsets(cometmq: CommandLine) -> list[int]:
    rows = cometmq("group", "offsets", "movers", "--topic", "moved", "-o", "json").json()
    return [row["consumer_offset"] for row in rows]


@pytest.mark.parametrize(
    ("target", "to", "again", "skipped"),
    [
        (("--earliest",), [0, 0], [10, 10], [0, 0]),
        (("--to-offset", "4"), [4, 4], [6, 6], [0, 0]),
        (("--to-offset", "4", "--queue", "1"), [4], [6], [0]),
        (("--by", "-3"), [7, 7], [3, 3], [0, 0]),
        (("--by", "100"), [10, 10], [0, 0], [0, 0]),
        (("--to-time", "0"), [0, 0], [10, 10], [0, 0]),
    ],
    ids=str,
)
def test_reset_is_a_preview(
    consumed: CommandLine, target: tuple[str, ...], to: list[int], again: list[int], skipped: list[int]
) -> None:
    shown = consumed("group", "reset", "movers", "--topic", "moved", *target, "-o", "json")
    assert shown.code == 0
    assert shown.err == "Nothing was changed; add --execute to move the offsets.\n"
    rows: list[dict[str, Any]] = shown.json()
    assert [row["from"] for row in rows] == [10] * len(to)
    assert [row["to"] for row in rows] == to
    assert [row["again"] for row in rows] == again
    assert [row["skipped"] for row in rows] == skipped
    assert offsets(consumed) == [10, 10]


def test_reset_moves_exactly_what_it_showed(consumed: CommandLine) -> None:
    reset = ("group", "reset", "movers", "--topic", "moved", "--execute")
    assert consumed(*reset, "--to-offset", "2", "--queue", "0").code == 0
    assert offsets(consumed) == [2, 10]
    assert consumed(*reset, "--by", "5", "--queue", "0").code == 0
    assert offsets(consumed) == [7, 10]
    assert consumed(*reset, "--latest").code == 0
    assert offsets(consumed) == [10, 10]


def test_a_group_with_members_is_neither_reset_nor_deleted(consumed: CommandLine) -> None:
    consumer = SyncPushConsumer("movers", lambda messages: None, consumed.namesrv)
    consumer.subscribe("moved")
    with consumer:
        refused = consumed("group", "reset", "movers", "--topic", "moved", "--earliest", "--execute")
        assert refused.code == 1
        assert "group movers has 1 active member" in refused.err
        assert "add --force" in refused.err
        kept = consumed("group", "delete", "movers", "--yes")
        assert kept.code == 1
        assert "nothing was deleted" in kept.err
    assert offsets(consumed) == [10, 10]


def test_a_mistyped_group_is_not_reset(consumed: CommandLine) -> None:
    refused = consumed("group", "reset", "moverz", "--topic", "moved", "--earliest", "--execute")
    assert refused.code == 1
    assert refused.err == "cometmq: group moverz does not exist (run cometmq group list to see all groups)\n"
    for wrong in ((), ("--earliest", "--latest"), ("--by", "1", "--to-offset", "0")):
        assert consumed("group", "reset", "movers", "--topic", "moved", *wrong).code == 2
    assert consumed("group", "reset", "movers", "--topic", "moved", "--earliest", "--queue", "9").code == 2


def test_contradicting_subscriptions_are_shown(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "disputed", "--queues", "2")
    first = SyncPushConsumer("split", lambda messages: None, cometmq.namesrv)
    first.subscribe("disputed", "red")
    second = SyncPushConsumer("split", lambda messages: None, cometmq.namesrv)
    second.subscribe("disputed", "blue")
    with first, second:
        shown = cometmq("group", "describe", "split", "-o", "json")
        checked = cometmq("doctor", "--cluster", "-o", "json")
    assert sorted(row["subscriptions"] for row in shown.json()) == [["disputed:blue"], ["disputed:red"]]
    assert "Contradiction: topic disputed: members subscribe to it differently" in shown.err
    findings = {row["check"]: row for row in checked.json()}
    assert checked.code == 1
    assert (findings["subscriptions"]["state"], findings["broker-0 answers"]["state"]) == ("problem", "ok")
    assert "split" in findings["subscriptions"]["found"]
