"""Priorities on the command line: topics of type PRIORITY, produce --priority, and messages that show theirs."""

from __future__ import annotations

import json

from tests.cli.conftest import CommandLine


def test_from_a_topic_with_a_type_to_messages_with_priorities(cometmq: CommandLine) -> None:
    assert cometmq("topic", "create", "levels", "--queues", "4", "--type", "priority").code == 0
    (row,) = cometmq("topic", "describe", "levels", "-o", "json").json()
    assert row["type"] == "PRIORITY"
    (sent,) = cometmq("produce", "levels", "--body", "urgent", "--priority", "9", "-o", "json").json()
    assert sent["queue_id"] == 3
    shown = cometmq("message", "get", sent["offset_msg_id"], "-o", "json").json()
    shown = shown[0] if isinstance(shown, list) else shown
    assert shown["priority"] == 9
    assert "_SYS_MSG_PRIORITY_" not in shown["properties"]
    assert "9" in cometmq("message", "get", sent["offset_msg_id"]).out
    lines = [{"body": "later", "priority": 1}, {"body": "usual"}]
    assert cometmq("produce", "levels", "--json", "--priority", "2", stdin="\n".join(map(json.dumps, lines))).code == 0
    read = cometmq("consume", "levels", "--from-beginning", "--until-end", "--format", "{body} {priority} {queue_id}")
    assert sorted(read.out.split("\n")[:-1]) == ["later 1 1", "urgent 9 3", "usual 2 2"]


def test_stored_messages_are_copied_with_their_priorities(cometmq: CommandLine) -> None:
    for topic in ("levels-a", "levels-b"):
        cometmq("topic", "create", topic, "--queues", "4", "--type", "PRIORITY")
    cometmq("produce", "levels-a", "--body", "x", "--priority", "2")
    copied = cometmq("consume", "levels-a", "--from-beginning", "--until-end", "-o", "jsonl")
    assert cometmq("produce", "levels-b", "--json", stdin=copied.out).code == 0
    (row,) = cometmq("consume", "levels-b", "--from-beginning", "--until-end", "-o", "jsonl").lines()
    assert (row["priority"], row["queue_id"]) == (2, 2)


def test_the_type_of_a_topic_is_changed_after_its_settings_are_shown(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "typed", "--queues", "2")
    unconfirmed = cometmq("topic", "alter", "typed", "--type", "PRIORITY")
    assert "message type" in unconfirmed.err + unconfirmed.out
    assert cometmq("topic", "alter", "typed", "--type", "PRIORITY", "--yes").code == 0
    assert cometmq("topic", "alter", "typed", "--queues", "3", "--yes").code == 0
    (row,) = cometmq("topic", "describe", "typed", "-o", "json").json()
    assert (row["type"], row["read_queues"]) == ("PRIORITY", 3)
    other = cometmq("topic", "create", "typed", "--queues", "3", "--type", "FIFO")
    assert other.code == 1
    assert "3 queues, permission rw, type PRIORITY" in other.err
    assert cometmq("topic", "create", "typed", "--queues", "3").code == 0


def test_wrong_priorities_are_refused_before_anything_is_sent(cometmq: CommandLine) -> None:
    for wrong in ("-1", "2147483648", "high", "1.5"):
        assert cometmq("produce", "levels-c", "--body", "x", "--priority", wrong).code == 2
    for wrong in ("-1", "2147483648", '"high"', "1.5", "true", "1e2"):
        refused = cometmq("produce", "levels-c", "--json", stdin=f'{{"body": "x", "priority": {wrong}}}')
        assert refused.code == 2
        assert "priority must be a whole number from 0 to 2147483647" in refused.err
    both = cometmq("produce", "levels-c", "--body", "x", "--priority", "1", "--sharding-key", "k")
    assert (both.code, "give only one of --priority and --sharding-key" in both.err) == (2, True)
    assert "levels-c" not in cometmq("topic", "list").out
