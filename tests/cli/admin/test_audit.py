"""``cometmq audit``: filters, forms, damaged lines, hostile names, and a log that is followed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.cli.conftest import CommandLine

from cometmq.auth.audit.entry import encoded

ENTRIES = (
    {"time": "2026-01-31T12:00:00.000Z", "event": "started"},
    {
        "time": "2026-01-31T12:00:01.000Z",
        "event": "request",
        "account": "operators",
        "address": "10.0.0.7:50112",
        "request": "DELETE_TOPIC_IN_BROKER",
        "allowed": True,
        "resources": ["Topic:Orders Delete"],
        "fields": {"topic": "Orders"},
    },
    {
        "time": "2026-01-31T13:00:00.000Z",
        "event": "denied",
        "account": None,
        "claimed": "evil\x1b[2J\nname",
        "address": "[2001:db8::7]:50112",
        "request": "SEND_MESSAGE_V2",
        "allowed": False,
        "resources": ["Topic:Prices Pub"],
        "times": 9,
        "why": "Check signature failed",
    },
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "audit" / "audit.log"
    path.parent.mkdir()
    path.with_name("audit.log.1").write_bytes(encoded(ENTRIES[0]) + encoded(ENTRIES[1]))
    path.write_bytes(b"half a li\n" + encoded(ENTRIES[2]))
    return tmp_path


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ((), (0, 1, 2)),
        (("--denied",), (2,)),
        (("--account", "operators"), (1,)),
        (("--account", "evil\x1b[2J\nname"), (2,)),
        (("--address", "2001:db8::7"), (2,)),
        (("--request", "delete"), (1,)),
        (("--resource", "Topic:Prices"), (2,)),
        (("--since", "2026-01-31T12:30:00Z"), (2,)),
        (("--until", "2026-01-31T12:00:00.5Z"), (0,)),
        (("--limit", "1"), (2,)),
        (("--limit", "0"), (0, 1, 2)),
        (("--account", "nobody"), ()),
    ],
)
def test_entries_are_chosen(store: Path, options: tuple[str, ...], chosen: tuple[int, ...]) -> None:
    result = CommandLine("127.0.0.1:1")("audit", str(store), *options, "-o", "json")
    assert result.code == 0, result.err
    assert json.loads(result.out) == [ENTRIES[at] for at in chosen]
    assert "skipped 1 invalid line in" in result.err, "damage is told"


@pytest.mark.parametrize("output", ["table", "jsonl", "csv"])
def test_hostile_names_do_not_reach_a_terminal(store: Path, output: str) -> None:
    result = CommandLine("127.0.0.1:1")("audit", str(store / "audit" / "audit.log"), "-o", output)
    assert result.code == 0
    assert "Check signature failed" in " ".join(result.out.split())
    if output != "csv":
        assert "\x1b[2J" not in result.out


def test_a_log_that_is_not_there_is_an_error_with_the_next_step(tmp_path: Path) -> None:
    result = CommandLine("127.0.0.1:1")("audit", str(tmp_path))
    assert result.code == 1
    assert "auditLogEnable=true" in result.err


def test_a_log_is_followed_until_the_reader_is_interrupted(store: Path) -> None:
    arguments = ["audit", str(store), "--follow", "--denied", "-o", "jsonl"]
    with subprocess.Popen(
        [sys.executable, "-c", "from cometmq.cli.main import main; main()", *arguments], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        timer = threading.Timer(20, process.kill)
        timer.start()
        assert json.loads(process.stdout.readline()) == ENTRIES[2]
        late = {**ENTRIES[2], "why": "later"}
        with (store / "audit" / "audit.log").open("ab") as file:
            file.write(encoded(late))
        assert json.loads(process.stdout.readline()) == late
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in (0, 130)
        timer.cancel()
