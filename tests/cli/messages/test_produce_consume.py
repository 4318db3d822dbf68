"""produce and consume: pipes, loads, filters, ends and interruptions."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.cli.conftest import CommandLine
from tests.helpers.waiting import wait_for

from cometmq.testing import ProcessCluster


def test_lines_go_in_and_come_out(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "lines", "--queues", "1")
    sent = cometmq("produce", "lines", stdin="one\n\ntwo\nzwölf\nno newline")
    assert sent.code == 0
    assert sent.out == ""
    assert sent.err.startswith("Sent 4 messages")
    received = cometmq("consume", "lines", "--from-beginning", "--until-end")
    assert received.code == 0
    assert received.out == "one\ntwo\nzwölf\nno newline\n"


def test_json_lines_carry_everything(cometmq: CommandLine, tmp_path: Path) -> None:
    cometmq("topic", "create", "jsonl", "--queues", "1")
    described = [{"body": "a", "tags": "x", "keys": ["k1", "k2"], "properties": {"p": "1"}}, {"body": {"deep": [1]}}]
    lines = tmp_path / "lines"
    lines.write_text("\n".join(map(json.dumps, described)))
    assert cometmq("produce", "jsonl", "--json", "--file", str(lines)).code == 0
    first, second = cometmq("consume", "jsonl", "--from-beginning", "--until-end", "-o", "jsonl").lines()
    assert (first["body"], first["tags"], first["keys"], first["properties"]["p"]) == ("a", "x", ["k1", "k2"], "1")
    assert json.loads(second["body"]) == {"deep": [1]}
    bad = cometmq("produce", "jsonl", "--json", stdin='{"body": "fine"}\nnot json\n')
    assert bad.code == 2
    assert "line 2 is not a valid message" in bad.err


def test_tag_filter_and_maximum(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "tagged", "--queues", "1")
    for tag in ("red", "green", "blue"):
        cometmq("produce", "tagged", "--tag", tag, stdin=f"{tag}-1\n{tag}-2\n")
    got = cometmq("consume", "tagged", "--from-beginning", "--until-end", "--tag", "red || blue")
    assert got.out.split() == ["red-1", "red-2", "blue-1", "blue-2"]
    assert cometmq("consume", "tagged", "--from-beginning", "--max", "1").out == "red-1\n"


def test_bytes_of_the_command_line_that_are_no_text(cometmq: CommandLine) -> None:
    """A body has them as they were typed; where text is needed the sentence names them."""
    odd = os.fsdecode(b"caf\xe9")
    cometmq("topic", "create", "typed", "--queues", "1")
    assert cometmq("produce", "typed", "--body", odd).code == 0
    (row,) = cometmq("consume", "typed", "--from-beginning", "--until-end", "-o", "jsonl").lines()
    assert base64.b64decode(row["body_base64"]) == b"caf\xe9"
    for words in (
        ("produce", "typed", "--body", "x", "--key", odd),
        ("message", "query", "--topic", "typed", "--key", odd),
        ("message", "get", odd, "--topic", "typed"),
        ("topic", "describe", odd),
        ("group", "describe", odd),
        ("acl", "test", odd, "pub", "Topic:typed"),
    ):
        refused = cometmq(*words)
        assert refused.code == 1, words
        assert "'\\udce9', which is only half of a character" in refused.err, words


def test_sql_filter() -> None:
    with ProcessCluster(broker_keys={"enablePropertyFilter": "true"}) as cluster:
        cometmq = CommandLine(cluster.namesrv_address)
        cometmq("topic", "create", "amounts", "--queues", "1")
        for amount in ("5", "50", "500"):
            cometmq("produce", "amounts", "--property", f"amount={amount}", stdin=f"{amount}\n")
        read = ("consume", "amounts", "--from-beginning", "--until-end", "--sql")
        assert cometmq(*read, "amount > 5").out.split() == ["50", "500"]
        assert cometmq(*read, "amount BETWEEN 6 AND 60", "--group", "readers").out.split() == ["50"]
        bad = cometmq(*read, "amount > > 5")
        assert bad.code == 1
        assert "not '>', at character 10" in bad.err
        assert cometmq(*read, "amount > 5", "--tag", "x").code == 2


def test_sql_without_the_filter_at_the_broker(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "unfiltered", "--queues", "1")
    refused = cometmq("consume", "unfiltered", "--from-beginning", "--until-end", "--sql", "amount > 5")
    assert refused.code == 1
    assert "does not support consumer to filter message by SQL92" in refused.err


def test_load_and_results_as_json(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "load", "--queues", "4")
    sent = cometmq("produce", "load", "--count", "1000", "--size", "64", "--batch", "50", "-o", "jsonl")
    rows = sent.lines()
    assert len({(row["queue_id"], row["queue_offset"]) for row in rows}) == 1000
    assert {row["status"] for row in rows} == {"SEND_OK"}
    assert "1,000 messages (64.0 kB)" in sent.err
    one_by_one = cometmq("produce", "load", "--count", "20", "--batch", "1", "--rate", "1000")
    assert one_by_one.code == 0
    assert sum(row["messages"] for row in cometmq("topic", "stats", "load", "-o", "json").json()) == 1020


def test_sharding_key_keeps_one_queue_and_the_order(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "sharded", "--queues", "4")
    lines = [str(number) for number in range(500)]
    assert cometmq("produce", "sharded", "--sharding-key", "s", "--batch", "7", stdin="\n".join(lines)).code == 0
    got = cometmq("consume", "sharded", "--from-beginning", "--until-end", "-o", "jsonl").lines()
    assert len({row["queue_id"] for row in got}) == 1
    assert [row["body"] for row in got] == lines


def test_binary_bodies_stay_whole_in_json(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "binary", "--queues", "1")
    cometmq("produce", "binary", stdin=b"\xff\xfe\n")
    (row,) = cometmq("consume", "binary", "--from-beginning", "--until-end", "-o", "jsonl").lines()
    assert row["body_base64"] == "//4="


def test_follow_mode_ends_cleanly_on_interrupt(cometmq: CommandLine, cluster: ProcessCluster) -> None:
    cometmq("topic", "create", "followed", "--queues", "1")
    following = cometmq.start(
        "consume", "followed", "--group", "followers", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert following.stdout is not None
    members = ("group", "describe", "followers", "-o", "json")

    def follower_is_a_member() -> bool:
        described = cometmq(*members)
        return described.code == 0 and len(described.json()) == 1

    wait_for(follower_is_a_member, "the follower is a member of its group")
    cometmq("produce", "followed", "--body", "now")
    assert following.stdout.readline() == b"now\n"
    following.send_signal(signal.SIGINT)
    out, err = following.communicate(timeout=60)
    assert (following.returncode, out) == (0, b"")
    assert b"Traceback" not in err
    (offset,) = cometmq("group", "offsets", "followers", "--topic", "followed", "-o", "json").json()
    assert offset["lag"] == 0, "what was written is committed"


def test_broken_pipe_is_no_failure(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "cut", "--queues", "1")
    cometmq("produce", "cut", "--count", "20000", "--size", "100")
    consuming = cometmq.start("consume", "cut", "--from-beginning", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert consuming.stdout is not None
    assert b"CometMQ" in consuming.stdout.readline()
    consuming.stdout.close()
    assert consuming.wait(60) == 0
    assert consuming.stderr is not None
    assert b"rror" not in consuming.stderr.read()
    consuming.stderr.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("produce", "t", "--body", "b", "--count", "3"), "one of --body"),
        (("produce", "t", "--body", "b", "--property", "x"), "name=value"),
        (("produce", "t", "--body", "b", "--property", "x="), "without a value is not stored"),
        (("produce", "t", "--body", "b", "--property", "x=1", "--property", "x=2"), "x already has the value 1"),
        (("produce", "t", "--body", "b", "--delay", "1s", "--delay-level", "3"), "one of --delay"),
        (
            ("produce", "t", "--body", "b", "--delay", "soon"),
            "must be a duration such as 500ms, 90s, 1h30m or 2d",
        ),
        (("produce", "t", "--body", "b", "--delay", "1s 2"), "must be a duration such as"),
        (("produce", "t", "--body", "b", "--delay", ""), "must be a duration such as"),
        (("produce", "t", "--body", "b", "--deliver-at", "9" * 18), "after the year 9999"),
        (("produce", "t", "--body", "b", "--delay-level", "0"), "--delay-level"),
        (("produce", "a/b", "--body", "b"), "topic name"),
        (("produce", "t", "--body", "b", "--group", "bad group"), "group name"),
        (("consume", "t", "--from-beginning", "--since", "2026-01-01"), "one of --from-beginning"),
        (
            ("consume", "t", "--since", "yesterday"),
            "1h for an hour ago or milliseconds since 1970, not 'yesterday'",
        ),
        (("consume", "t", "--since", "1969-07-20"), "must be in 1970 or later, not 1969-07-20"),
        (("consume", "a" * 128), "topic name"),
        (("consume", "t", "--group", "a/b"), "group name"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else "",
)
def test_wrong_use(cometmq: CommandLine, arguments: tuple[str, ...], words: str) -> None:
    refused = cometmq(*arguments)
    assert refused.code == 2
    assert words in refused.err


def test_refused_messages_are_told(cometmq: CommandLine) -> None:
    refused = cometmq("produce", "SCHEDULE_TOPIC_XXXX", "--body", "x")
    assert refused.code == 1
    assert "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden" in refused.err
    unknown = cometmq("consume", "never-made")
    assert unknown.code == 1
    assert "never-made" in unknown.err
