"""Places, ends, forms and files of produce and consume."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from tests.cli.conftest import CommandLine

from cometmq.client import Message
from cometmq.client.sync import SyncProducer

ALL = ("--from-beginning", "--until-end")


def stored(cometmq: CommandLine, topic: str, *options: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = cometmq("consume", topic, *(options or ALL), "-o", "jsonl").lines()
    return rows


def test_what_consume_writes_produce_reads_without_loss(cometmq: CommandLine) -> None:
    for topic in ("first", "second"):
        assert cometmq("topic", "create", topic, "--queues", "1").code == 0
    messages = [
        Message("first", b"\0\xff\n", tags="x", keys=("a", "b"), properties={"p": "1", "__SHARDINGKEY": "s"}, flag=7),
        Message("first", "zwölf\u2028".encode(), delay=timedelta(milliseconds=1)),
        Message("first", b'{"a": 1}', keys=("k",)),
    ]
    with SyncProducer("rounds", cometmq.namesrv) as producer:
        for message in messages:
            producer.send(message)
    lines = cometmq("consume", "first", "--from-beginning", "--max", "3", "-o", "jsonl").out
    assert cometmq("produce", "second", "--json", stdin=lines).code == 0
    again = cometmq("consume", "second", "--from-beginning", "--max", "3", "-o", "jsonl").lines()

    def essence(row: dict[str, object]) -> str:
        properties = row["properties"]
        assert isinstance(properties, dict)
        kept = {name: properties.get(name) for name in ("p", "__SHARDINGKEY", "TIMER_DELAY_MS")}
        body = row.get("body") or row["body_base64"]
        return json.dumps([body, row["tags"], row["keys"], row["flag"], kept])

    assert sorted(map(essence, again)) == sorted(essence(json.loads(line)) for line in lines.splitlines())
    assert base64.b64encode(b"\0\xff\n").decode() in {row.get("body_base64") for row in again}


def test_a_wrong_field_is_named_and_nothing_is_sent(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "strict", "--queues", "1")
    wrong = cometmq("produce", "strict", "--json", stdin='{"body": "x", "tag": "y"}\n')
    assert wrong.code == 2
    assert "unknown field tag; did you mean tags?" in wrong.err
    assert stored(cometmq, "strict") == []


def test_a_topic_that_a_message_makes_is_told(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "invoices", "--queues", "1")
    made = cometmq("produce", "invoicse", "--body", "x")
    assert made.code == 0
    assert made.err.startswith(
        "Topic invoicse did not exist and was created with 4 queues on broker-0. Did you mean invoices?\n"
    )
    assert "did not exist" not in cometmq("produce", "invoicse", "--body", "x").err


@pytest.mark.parametrize("options", [ALL, (), ("--group", "blind", "--until-end")], ids=str)
def test_a_topic_that_may_not_be_read_ends_at_once(cometmq: CommandLine, options: tuple[str, ...]) -> None:
    cometmq("topic", "create", "write-only", "--queues", "1", "--permission", "w")
    refused = cometmq("consume", "write-only", *options, timeout_s=60)
    assert refused.code == 1
    assert "topic write-only is not readable" in refused.err


def test_a_member_without_a_queue_ends_with_the_others(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "narrow", "--queues", "1")
    cometmq("produce", "narrow", "--body", "x")
    both = [
        cometmq.start("consume", "narrow", "--group", "crowd", *ALL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    outs = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert b"x\n" in outs


@pytest.fixture(scope="module")
def ten(cometmq: CommandLine) -> CommandLine:
    """Ten messages in two queues, the last two stored later."""
    cometmq("topic", "create", "ten", "--queues", "2")
    cometmq("produce", "ten", "--batch", "1", "--key", "old", stdin="".join(f"{number}\n" for number in range(8)))
    cometmq("produce", "ten", "--batch", "1", "--key", "new", "--tag", "t", stdin="8\n9\n")
    return cometmq


def test_places_and_ends(ten: CommandLine) -> None:
    def read(*options: str) -> list[str]:
        return sorted(ten("consume", "ten", *options).out.split())

    assert read("--offset", "-1", "--until-end") == ["8", "9"]
    assert len(read("--offset", "3", "--until-end")) == 4
    assert len(read("--offset", "earliest", "--until-end", "--queue", "0")) == 5
    assert read("--last", "3") == ["7", "8", "9"]
    assert read("--last", "1", "--key", "old") == ["7"]
    assert len(read("--last", "100")) == 10
    assert read("--from-beginning", "--until-end", "--key", "new") == ["8", "9"]
    assert len(read("--since", "1h", "--until-end")) == 10
    assert read("--from-beginning", "--until", "2020-01-01") == []
    rows = {row["body"]: row for row in stored(ten, "ten")}
    assert read("--from-beginning", "--until", str(rows["7"]["stored"])) == [str(number) for number in range(8)]
    assert read("--since", str(rows["8"]["stored"]), "--until-end") == ["8", "9"]


@pytest.mark.parametrize("end", [("--until-end",), ("--until", "1m"), ("--until", "2020-01-01", "--until-end")])
@pytest.mark.parametrize("begin", [(), ("--offset", "latest")])
def test_an_end_before_the_place_where_it_begins_is_wrong_use(
    ten: CommandLine, begin: tuple[str, ...], end: tuple[str, ...]
) -> None:
    """Without a place it begins at the end of each queue: it would show nothing, as if nothing were stored."""
    refused = ten("consume", "ten", *begin, *end)
    assert (refused.code, refused.out) == (2, "")
    assert "start with --from-beginning, --since or --offset" in refused.err


def test_forms(ten: CommandLine) -> None:
    template = "{queue_offset} {tags} {keys} {properties[CLUSTER]} {body}"
    assert ten("consume", "ten", "--last", "1", "--format", template).out == "4 t new DefaultCluster 9\n"
    assert ten("consume", "ten", "--last", "2", "--format", r"{body}\t", "--delimiter", ";").out == "8\t;9\t;"
    (line,) = ten("consume", "ten", "--last", "1", "--properties").out.splitlines()
    assert line.endswith("CLUSTER=DefaultCluster\t9")


def test_the_last_of_one_millisecond_are_in_the_order_of_storage(cometmq: CommandLine) -> None:
    """One request for each message, to two queues in turn, as fast as the broker takes them."""
    cometmq("topic", "create", "dense", "--queues", "2")
    with SyncProducer("dense", cometmq.namesrv) as producer:
        for number in range(200):
            producer.send(Message("dense", str(number).encode()))
    rows = cometmq("consume", "dense", "--last", "200", "-o", "jsonl").lines()
    assert [row["body"] for row in rows] == [str(number) for number in range(200)]
    assert any(one["stored"] == next_one["stored"] for one, next_one in pairwise(rows)), "none share a millisecond"


def test_files_are_sent_whole_or_by_lines(cometmq: CommandLine, tmp_path: Path) -> None:
    cometmq("topic", "create", "files", "--queues", "1")
    bodies = [bytes(range(256)) * 20, b"one\ntwo\n", b" "]
    paths = []
    for number, body in enumerate(bodies):
        path = tmp_path / str(number)
        path.write_bytes(body)
        paths += ["--file", str(path)]
    assert cometmq("produce", "files", *paths, "--whole").err.startswith("Sent 3 messages")
    read = subprocess.run(
        [sys.executable, "-m", "cometmq", "consume", "files", *ALL, "--delimiter", "<>"],
        env=cometmq.environment,
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert read.stdout.split(b"<>") == [*bodies, b""]
    cometmq("topic", "create", "pieces", "--queues", "1")
    assert cometmq("produce", "pieces", "--delimiter", r"\0", stdin=b"a\nb\0\0 \0c").err.startswith("Sent 3 messages")
    assert [row["body"] for row in stored(cometmq, "pieces")] == ["a\nb", " ", "c"]


@pytest.mark.parametrize(
    "options",
    [
        ("--group", "g", "--last", "1"),
        ("--group", "g", "--key", "k"),
        ("--last", "1", "--max", "1"),
        ("--offset", "3", "--from-beginning"),
        ("--offset", "middle"),
        ("--format", "{bodi}"),
        ("--format", "{body}", "--properties"),
        ("--delimiter", r"\q"),
    ],
    ids=" ".join,
)
def test_options_that_do_not_go_together(offline: CommandLine, options: tuple[str, ...]) -> None:
    assert offline("consume", "t", *options).code == 2


def test_a_life_time_is_sent_shown_and_copied(cometmq: CommandLine) -> None:
    for topic in ("lived", "copied"):
        cometmq("topic", "create", topic, "--queues", "1")
    assert cometmq("produce", "lived", "--body", "x", "--ttl", "1h").code == 0
    (row,) = stored(cometmq, "lived")
    properties = row["properties"]
    assert isinstance(properties, dict)
    assert properties["COMETMQ_TTL_MS"] == "3600000"
    shown = cometmq("message", "get", str(row["offset_msg_id"]), "-o", "json").json()
    assert shown["expires"] == row["expires"]
    assert shown["expires"] > shown["stored"]
    assert cometmq("consume", "lived", *ALL, "--format", "{expires}\\n").out.strip() == row["expires"]
    assert cometmq("produce", "copied", "--json", stdin=json.dumps(row)).code == 0
    (copy,) = stored(cometmq, "copied")
    assert copy["expires"] > row["expires"]  # type: ignore[operator]


def test_an_expired_message_is_shown_to_tools_only(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "gone", "--queues", "1")
    assert cometmq("produce", "gone", "--body", "x", "--ttl", "1ms").code == 0
    assert cometmq("produce", "gone", "--body", "y").code == 0
    assert [row["body"] for row in stored(cometmq, "gone")] == ["x", "y"]
    assert [row["body"] for row in stored(cometmq, "gone", "--group", "g", "--until-end", "--from-beginning")] == ["y"]


@pytest.mark.parametrize("ttl", ["0s", "-1s", "100000d", "soon"])
def test_a_life_time_that_makes_no_sense_is_refused(offline: CommandLine, ttl: str) -> None:
    assert offline("produce", "t", "--body", "x", "--ttl", ttl).code == 2
