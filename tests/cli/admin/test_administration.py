"""topic, group, message and cluster: every command, and what goes wrong with it."""

from __future__ import annotations

import csv
import io
import json
import re
import socket
import threading
from datetime import timedelta
from typing import Any

import pytest
from tests.cli.conftest import CommandLine
from tests.helpers.pace import Patience
from tests.helpers.waiting import wait_for

from cometmq.broker.replication.frames import encode_report
from cometmq.client import ConsumeFromWhere, Message, ProducerConfig, PushConfig
from cometmq.client.sync import SyncProducer, SyncPushConsumer
from cometmq.message.hosts import format_address, parse_address
from cometmq.message.ports import HA_PORT_DISTANCE


def test_topic_from_creation_to_deletion(cometmq: CommandLine) -> None:
    created = cometmq("topic", "create", "life", "--queues", "3")
    assert (created.code, created.out) == (0, "")
    assert "3 queues on broker-0" in created.err

    listed = {row["topic"]: row for row in cometmq("topic", "list", "-o", "json").json()}
    assert listed["life"]["write_queues"] == 3
    assert not {"TBW102", "broker-0", "DefaultCluster"} & listed.keys()
    assert "TBW102" in {row["topic"] for row in cometmq("topic", "list", "--all", "-o", "jsonl").lines()}

    cometmq("produce", "life", "--count", "30", "--batch", "10")
    stats = cometmq("topic", "stats", "life", "-o", "json").json()
    assert sum(row["messages"] for row in stats) == 30
    assert [row["queue_id"] for row in stats] == [0, 1, 2]
    (described,) = cometmq("topic", "describe", "life", "-o", "json").json()
    assert (described["messages"], described["permission"]) == (30, "rw")
    (route,) = cometmq("topic", "route", "life", "-o", "json").json()
    assert route["broker_id"] == 0

    assert cometmq("topic", "alter", "life", "--queues", "5", "--yes").code == 0
    assert cometmq("topic", "describe", "life", "-o", "json").json()[0]["read_queues"] == 5

    refused = cometmq("topic", "delete", "life")
    assert refused.code == 2
    assert "--yes" in refused.err
    assert cometmq("topic", "delete", "life", "--yes").code == 0
    gone = cometmq("topic", "stats", "life")
    assert gone.code == 1
    assert "life" in gone.err


@pytest.mark.parametrize("name", ["../x", "", "a" * 128, "white space"])
def test_forbidden_topic_names_are_wrong_use(cometmq: CommandLine, name: str) -> None:
    refused = cometmq("topic", "create", name)
    assert refused.code == 2
    assert "topic name" in refused.err
    assert "Traceback" not in refused.err


def test_unknown_broker_and_cluster_are_named(cometmq: CommandLine) -> None:
    refused = cometmq("topic", "create", "nowhere", "--broker", "broker-9")
    assert refused.code == 1
    assert "does not know broker broker-9 (it knows broker-0)" in refused.err
    assert "does not know cluster elsewhere" in cometmq("topic", "create", "nowhere", "--cluster", "elsewhere").err


def test_output_forms_agree(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "forms", "--queues", "2")
    as_json = cometmq("topic", "stats", "forms", "-o", "json").json()
    assert cometmq("topic", "stats", "forms", "-o", "jsonl").lines() == as_json
    as_csv = list(csv.DictReader(io.StringIO(cometmq("topic", "stats", "forms", "-o", "csv").out)))
    assert [int(row["queue_id"]) for row in as_csv] == [row["queue_id"] for row in as_json]
    table = cometmq("topic", "stats", "forms").out
    assert "Max offset" in table
    assert "\x1b[" not in table, "no colours into a pipe"


def test_message_is_found_by_either_id_by_key_and_by_place(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "found", "--queues", "1")
    (sent,) = cometmq(
        "produce", "found", "--body", "needle", "--tag", "t", "--key", "k-1", "--property", "p=v", "-o", "json"
    ).json()
    by_offset_id = cometmq("message", "get", sent["offset_msg_id"], "-o", "json").json()
    assert by_offset_id["body"] == "needle"
    assert by_offset_id["properties"]["p"] == "v"
    by_unique_key = cometmq("message", "get", sent["msg_id"], "--topic", "found", "-o", "json").json()
    assert by_unique_key["offset_msg_id"] == sent["offset_msg_id"]
    (by_key,) = cometmq("message", "query", "--topic", "found", "--key", "k-1", "-o", "json").json()
    assert by_key["msg_id"] == sent["msg_id"]
    at = ("message", "at", "--topic", "found", "--queue", "0", "--offset", "0")
    assert cometmq(*at, "--raw").out == "needle"
    assert "needle" in cometmq("message", "get", sent["offset_msg_id"]).out


def test_missing_messages_are_said_to_be_missing(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "lost", "--queues", "1")
    nowhere = cometmq("message", "get", "0" * 32, "--topic", "lost")
    assert nowhere.code == 1
    assert "no message" in nowhere.err
    assert cometmq("message", "get", "not-an-id").code == 2
    of_a_client = cometmq("message", "get", "C000020241B44BF7AF7B693FA46E0000")
    assert of_a_client.code == 2
    assert "add the topic with --topic" in of_a_client.err
    beyond = cometmq("message", "at", "--topic", "lost", "--queue", "0", "--offset", "7")
    assert beyond.code == 1
    assert "no message at offset 7" in beyond.err
    assert cometmq("message", "at", "--topic", "lost", "--queue", "5", "--offset", "0").code == 2
    assert cometmq("message", "query", "--topic", "lost", "--key", "none").code == 1
    assert cometmq("message", "query", "--topic", "lost", "--key", "none", "-o", "json").json() == []


def test_group_progress_and_reset(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "read", "--queues", "2")
    assert cometmq("group", "create", "readers").code == 0
    cometmq("produce", "read", "--count", "40", "--batch", "10")
    first = cometmq("consume", "read", "--group", "readers", "--from-beginning", "--max", "40")
    assert (first.code, len(first.out.splitlines())) == (0, 40)
    offsets = cometmq("group", "offsets", "readers", "--topic", "read", "-o", "json").json()
    assert sum(row["lag"] for row in offsets) == 0
    assert sum(row["consumer_offset"] for row in offsets) == 40

    listed = {row["group"]: row for row in cometmq("group", "list", "-o", "json").json()}
    assert listed["readers"]["lag"] == 0
    assert "TOOLS_CONSUMER" not in listed
    assert cometmq("group", "describe", "readers", "-o", "json").json() == []

    assert cometmq("group", "reset", "readers", "--topic", "read", "--earliest", "--execute").code == 0
    again = cometmq("consume", "read", "--group", "readers", "--until-end")
    assert sorted(again.out.splitlines()) == sorted(first.out.splitlines())
    assert cometmq("group", "reset", "readers", "--topic", "read").code == 2
    assert cometmq("group", "delete", "readers", "--yes").code == 0
    assert "readers" not in {row["group"] for row in cometmq("group", "list", "-o", "json").json()}


def test_cluster_list_and_status(cometmq: CommandLine) -> None:
    (broker,) = cometmq("cluster", "list", "-o", "json").json()
    assert (broker["cluster"], broker["broker"], broker["broker_id"]) == ("DefaultCluster", "broker-0", 0)
    status = cometmq("cluster", "status", "-o", "json")
    assert status.code == 0
    assert status.json()[0]["state"] == "ok"
    assert status.json()[0]["address"] == broker["address"]


def test_cluster_slaves(cometmq: CommandLine) -> None:
    (broker,) = cometmq("cluster", "list", "-o", "json").json()
    assert cometmq("cluster", "slaves", "-o", "json").json() == []
    host, port = parse_address(broker["address"])
    with socket.create_connection((host, port + HA_PORT_DISTANCE)) as slave:
        rows: list[dict[str, Any]] = []

        def shown() -> bool:
            end = rows[0]["has_up_to"] + rows[0]["behind_bytes"] if rows else 0
            slave.sendall(encode_report(end))  # again and again: a silent one is closed
            rows[:] = cometmq("cluster", "slaves", "-o", "json").json()
            return bool(rows) and rows[0]["state"] == "in sync"

        wait_for(shown, "the slave has reported what it lacked and is in sync")
        (row,) = rows
        assert (row["broker"], row["slave"]) == ("broker-0", format_address(*slave.getsockname()))
        assert row["behind_bytes"] >= 0
        assert "in sync" in cometmq("cluster", "slaves").out


@pytest.mark.parametrize(
    "arguments",
    [("topic", "list"), ("group", "list"), ("cluster", "status"), ("consume", "t"), ("produce", "t", "--body", "b")],
    ids=" ".join,
)
def test_no_nameserver_is_one_sentence_with_the_next_step(offline: CommandLine, arguments: tuple[str, ...]) -> None:
    failed = offline(*arguments)
    assert failed.code == 1
    assert failed.err.splitlines()[-1] == (
        "cometmq: no nameserver at 127.0.0.1:1 (start one with cometmq serve, or set another with -n HOST:PORT)"
    )


def test_a_nameserver_whose_name_does_not_resolve_is_told_from_one_that_is_away(offline: CommandLine) -> None:
    failed = offline("topic", "list", "-n", "no-such-host.invalid:9876")
    assert failed.code == 1
    assert "the host name no-such-host.invalid does not resolve: " in failed.err
    assert failed.err.endswith("(check the host name no-such-host.invalid and its DNS)\n")


def test_a_trace_before_anything_was_traced_says_how_to_trace(cometmq: CommandLine) -> None:
    failed = cometmq("message", "trace", "C000020243F3C13569C999295FE60000")
    assert failed.code == 1
    assert failed.err.startswith("cometmq: no message is traced: there is no topic RMQ_SYS_TRACE_TOPIC (enable tracing")


def test_missing_group_is_one_sentence(cometmq: CommandLine) -> None:
    for command in (("describe",), ("offsets",), ("delete", "--yes")):
        failed = cometmq("group", *command, "never-made")
        assert failed.code == 1
        assert failed.err == "cometmq: group never-made does not exist (run cometmq group list to see all groups)\n"


def test_missing_topic_is_one_sentence(cometmq: CommandLine) -> None:
    for command in (("topic", "stats"), ("topic", "describe"), ("consume",)):
        failed = cometmq(*command, "never-made")
        assert failed.code == 1
        assert failed.err.count("\n") == 1
        assert "no route for topic never-made" in failed.err


def test_broker_named_as_nameserver_is_told(cometmq: CommandLine) -> None:
    broker = cometmq("cluster", "list", "-o", "json").json()[0]["address"]
    failed = cometmq("topic", "list", "-n", broker)
    assert failed.code == 1
    assert "that a broker's address is not used for a nameserver" in failed.err


def test_wrong_use(offline: CommandLine) -> None:
    assert offline("tpic").code == 2
    assert "Did you mean topic?" in offline("tpic").err
    assert offline("topic", "list", "-n", "no-port").code == 2
    assert offline("topic", "list", "-o", "yaml").code == 2
    assert offline("--help").code == 0


def test_every_command_has_help(offline: CommandLine) -> None:
    names = re.findall(r"^  (\w+) {2,}", offline("--help").out.partition("Commands:")[2], re.MULTILINE)
    assert {"serve", "broker", "namesrv", "topic", "group", "message", "produce", "consume", "cluster"} <= set(names)
    for name in names:
        shown = offline(name, "--help")
        assert shown.code == 0, name
        assert f"Usage: cometmq {name}" in shown.out


def test_doctor_reports_every_check(offline: CommandLine) -> None:
    findings = json.loads(offline("doctor", "-o", "json").out)
    assert {"Python", "disk space", "open files"} <= {finding["check"] for finding in findings}
    assert all(finding["todo"] for finding in findings if finding["state"] != "ok")


def test_the_way_of_a_message_is_shown(cometmq: CommandLine) -> None:
    lost = cometmq("message", "trace", "AC01")
    assert lost.code == 1
    assert "RMQ_SYS_TRACE_TOPIC" in lost.err
    done = threading.Event()
    producing = ProducerConfig(enable_msg_trace=True)
    consuming = PushConfig(enable_msg_trace=True, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    with SyncProducer("shop", cometmq.namesrv, config=producing) as producer:
        result = producer.send(Message("traced", b"x"))
        plain = producer.send(Message("traced-later", b"y", delay_level=1))
    consumer = SyncPushConsumer("till", lambda messages: done.set(), cometmq.namesrv, config=consuming)
    consumer.subscribe("traced")
    with consumer:
        assert done.wait(60)
    sent, consumed = cometmq("message", "trace", result.msg_id, "-o", "json").json()
    assert (sent["step"], sent["group"], sent["result"], sent["after_ms"]) == ("sent", "shop", "ok", 0)
    assert (sent["topic"], sent["msg_type"], sent["offset_msg_id"]) == ("traced", "NORMAL", result.offset_msg_id)
    assert (consumed["step"], consumed["group"]) == ("consumed", "till")
    assert (consumed["result"], consumed["attempt"]) == ("ok", 1)
    assert consumed["after_ms"] >= 0
    shown = cometmq("message", "trace", result.msg_id).out
    assert "shop" in shown
    assert "till" in shown
    assert "█" in shown
    (delayed,) = cometmq("message", "trace", plain.msg_id, "-o", "jsonl").lines()
    assert delayed["msg_type"] == "DELAY"
    assert cometmq("message", "trace", "AC01").code == 1
    assert cometmq("message", "trace", "AC01", "-o", "json").json() == []


def test_the_commands_write_traces_too(cometmq: CommandLine) -> None:
    (sent,) = cometmq("produce", "told", "--body", "x", "--trace", "--group", "desk", "-o", "json").json()
    taken = cometmq("consume", "told", "--group", "counter", "--from-beginning", "--max", "1", "--trace")
    assert taken.out == "x\n"
    steps = cometmq("message", "trace", sent["msg_id"], "-o", "json").json()
    assert [(step["step"], step["group"], step["result"]) for step in steps] == [
        ("sent", "desk", "ok"),
        ("consumed", "counter", "ok"),
    ]
    alone = cometmq("consume", "told", "--trace")
    assert alone.code == 2
    assert "--group" in alone.err


def test_what_waits(cometmq: CommandLine) -> None:
    with SyncProducer("waiting", cometmq.namesrv) as producer:
        for days in (1, 2, 200):
            producer.send(Message("waits", b"x", delay=timedelta(days=days, seconds=-5)))

    def rows() -> list[dict[str, object]]:
        return list(cometmq("delay", "waiting", "--topic", "waits", "-o", "json").json())

    patience = Patience(60)
    while (found := rows()) == [] or found[0]["waiting"] != 3:
        assert not patience.is_over, found
    (row,) = found
    assert (row["within_hour"], row["within_day"], row["within_30_days"]) == (0, 1, 2)
    assert str(row["last_due"]) > str(row["first_due"])
    assert "In 30 days" in cometmq("delay", "waiting").out


def test_topics_of_other_tools_queues_are_shown_and_taken_in_their_own_spelling(cometmq: CommandLine) -> None:
    topic = "orders%2E%E8%AE%A2%1B"
    cometmq("topic", "create", topic, "--queues", "1")
    assert r"orders.订\x1b" in cometmq("topic", "list").out
    assert [row["topic"] for row in cometmq("topic", "list", "--match", "orders.*", "-o", "json").json()] == [topic]
    refused = cometmq("produce", "orders.订\x1b", "--count", "2")
    assert (refused.code, topic in refused.err) == (2, True), "a mistyped name makes no topic"
    assert cometmq("produce", topic, "--count", "2").code == 0
    for spelling in (topic, "orders.订\x1b"):
        assert cometmq("topic", "describe", spelling, "-o", "json").json()[0]["messages"] == 2
    assert r"Topic orders.订\x1b" in cometmq("topic", "describe", topic).out
