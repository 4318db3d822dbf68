"""Bytes of others reach no terminal as an order: every command against a broker full of hostile names and bodies."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.conftest import CommandLine

from cometmq.cli.servers.logs import LogLine
from cometmq.client.sync import SyncProducer
from cometmq.message.message import Message
from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.codes import RequestCode
from cometmq.testing import ProcessCluster
from cometmq.visible import json_text, visible

ESC = "\x1b]0;owned\x07\x1b[2J\x1b[31m"
HOSTILE = f"{ESC}\x9b31m\x7f\u202egnp.exe\u2066\u2028\r\nforged line\tend"
TOPIC, GROUP = "hostile", "hostile-group"
ORDERS = set(map(chr, [*range(10), *range(11, 32), *range(0x7F, 0xA0)])) | set("\u202e\u2066\u2028\u2029\u200f")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ä 中文\u3000 €", "plain ä 中文\u3000 €"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b31m\x7f\0", "\\x9b31m\\x7f\\x00"),
        ("abc\u202edef", "abc\\u202edef"),
        ("a\r\nb\tc", "a\\r\\nb\\tc"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_is_not_printable_is_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text(st.characters(codec=None)))
def test_nothing_escapes(text: str) -> None:
    assert not ORDERS & set(visible(text, lines=True))
    assert not (ORDERS | {"\n"}) & set(visible(text))
    written = json_text({text: [text]}, indent=2)
    assert not ORDERS & set(written)
    assert json.loads(written) == {text: [text]}, "programs lose nothing"


def test_names_from_outside_forge_no_line_of_a_log() -> None:
    record = logging.LogRecord("x", logging.WARNING, "", 0, "group %s", (HOSTILE,), None)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        record.exc_info = sys.exc_info()
    first, *rest = LogLine().format(record).split("\n")
    assert first.endswith(f"x: group {visible(HOSTILE)}")
    assert not ORDERS & set("".join(rest))


@pytest.fixture(scope="module")
def hostile(cluster: ProcessCluster, cometmq: CommandLine) -> CommandLine:
    """Messages, a dead letter, clients and statistics with names as hostile as a broker takes them."""
    assert cometmq("topic", "create", TOPIC, "--queues", "1").code == 0
    for name in (TOPIC, f"%DLQ%{GROUP}"):
        with SyncProducer("hostile-producers", cluster.namesrv_address) as producer:
            message = Message(name, HOSTILE.encode(), tags=f"{ESC}t\u202e\n", keys=(f"k\n{ESC}\u202e", "key"))
            message.properties["hostile"] = HOSTILE.replace("\x01", "").replace("\x02", "")
            producer.send(message)
    address = cometmq("cluster", "list", "-o", "json").json()[0]["address"]
    client = BlockingConnection(address)
    heartbeat = {
        "clientID": HOSTILE,
        "consumerDataSet": [
            {
                "groupName": GROUP,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [
                    {"topic": TOPIC, "subString": f"{ESC}t", "expressionType": "TAG", "tagsSet": [f"{ESC}t"]}
                ],
            }
        ],
    }
    assert client.invoke(RequestCode.HEART_BEAT, body=json.dumps(heartbeat).encode()).code == 0
    waiting = "".join(
        f"{name}\x01{value}\x02" for name, value in (("TIMER_DELAY_SEC", "86400"), ("KEYS", ESC), ("TAGS", ESC))
    )
    half = "".join(f"{name}\x01{value}\x02" for name, value in (("TRAN_MSG", "true"), ("PGROUP", ESC), ("KEYS", ESC)))
    for flags, properties in (("0", waiting), ("4", half)):
        fields = {
            "a": "p",
            "b": TOPIC,
            "c": "TBW102",
            "d": "4",
            "e": "0",
            "f": flags,
            "g": "1",
            "h": "0",
            "i": properties,
        }
        assert client.invoke(RequestCode.SEND_MESSAGE_V2, ext=fields, body=HOSTILE.encode()).code == 0
    offset = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "0"}
    assert client.invoke(RequestCode.UPDATE_CONSUMER_OFFSET, ext=offset).code == 0
    hold_open.append(client)
    return cometmq


hold_open: list[BlockingConnection] = []


@pytest.fixture(scope="module", autouse=True)
def _close() -> Iterator[None]:
    yield
    for client in hold_open:
        client.close()


COMMANDS = [
    ("topic", "list"),
    ("topic", "describe", TOPIC),
    ("topic", "stats", TOPIC),
    ("group", "list"),
    ("group", "describe", GROUP),
    ("cluster", "list"),
    ("cluster", "status"),
    ("message", "query", "--topic", TOPIC, "--key", "key"),
    ("message", "at", "--topic", TOPIC, "--queue", "0", "--offset", "0"),
    ("delay", "list"),
    ("transaction", "list"),
    ("dlq", "list"),
    ("dlq", "read", GROUP),
    ("delay", "waiting"),
    ("group", "offsets", GROUP),
    ("topic", "route", TOPIC),
    ("cluster", "slaves"),
    ("doctor",),
]
QUOTING = [words for words in COMMANDS if words[1:2] in (("query",), ("at",), ("read",)) or words[0] == "transaction"]
JSON_LINES = [
    ("consume", TOPIC, "--from-beginning", "--until-end", "-o", "jsonl"),
    ("dlq", "export", GROUP),
    ("dlq", "resend", GROUP, "--all", "--dry-run"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_gives_orders_of_others_to_the_terminal(hostile: CommandLine, words: tuple[str, ...]) -> None:
    shown = hostile(*words)
    assert not ORDERS & set(shown.out + shown.err)
    assert "\nforged line" not in shown.out


@pytest.mark.parametrize("words", QUOTING, ids=" ".join)
def test_json_loses_nothing_and_gives_no_orders(hostile: CommandLine, words: tuple[str, ...]) -> None:
    written = hostile(*words, "-o", "json")
    assert not ORDERS & set(written.out + written.err)
    assert ESC in "".join(texts_of(written.json()))


def texts_of(value: Any) -> Iterator[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts_of(item)
    elif isinstance(value, dict):
        yield from texts_of([*value, *value.values()])


@pytest.mark.parametrize("words", JSON_LINES, ids=" ".join)
def test_lines_for_programs_are_whole_and_harmless(hostile: CommandLine, words: tuple[str, ...]) -> None:
    written = hostile(*words)
    assert not ORDERS & set(written.out + written.err)
    (line,) = written.lines()
    assert HOSTILE in texts_of(line)


def test_csv_is_for_programs_and_loses_nothing(hostile: CommandLine) -> None:
    written = hostile("message", "query", "--topic", TOPIC, "--key", "key", "-o", "csv")
    (row,) = csv.DictReader(io.StringIO(written.out, newline=""))
    assert row["body"] == HOSTILE


def test_bodies_are_as_they_are_in_a_pipe_and_harmless_on_a_terminal(hostile: CommandLine) -> None:
    words = ("consume", TOPIC, "--from-beginning", "--until-end")
    piped = subprocess.run(
        [sys.executable, "-m", "cometmq", *words], env=hostile.environment, capture_output=True, check=True, timeout=120
    )
    assert piped.stdout == HOSTILE.encode() + b"\n"
    ours, theirs = pty.openpty()
    with hostile.start(*words, stdout=theirs, stderr=subprocess.DEVNULL) as process:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # the terminal hangs up
            while piece := os.read(ours, 65_536):
                said += piece
        os.close(ours)
        assert process.wait(60) == 0
    assert not (ORDERS - {"\r"}) & set(said.decode())
    assert b"gnp.exe" in said


def test_errors_that_quote_names_are_harmless(hostile: CommandLine, tmp_path: Path) -> None:
    for words in (
        ("message", "query", "--topic", TOPIC, "--key", ESC),
        ("message", "get", ESC),
        ("topic", "describe", ESC),
        ("group", "describe", ESC),
        ("consume", ESC),
        ("consume", TOPIC, "--sql", ESC),
        ("topic", ESC),
        ("broker", "-o", f"{ESC}=1"),
        ("broker", "-c", str(tmp_path / ESC.replace("/", ""))),
    ):
        failed = hostile(*words)
        assert failed.code in (1, 2), words
        assert not ORDERS & set(failed.out + failed.err), words


def test_warnings_of_a_file_are_harmless(hostile: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"{ESC}=1\nlistenPort=\x1b[31m\nmessageDelayLevel=\x1b[31m\n")
    failed = hostile("broker", "-c", str(file))
    assert failed.code == 1
    assert not ORDERS & set(failed.err)
