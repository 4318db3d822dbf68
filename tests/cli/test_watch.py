"""watch: a view that is refreshed on a terminal, a line of JSON in a pipe, and only commands that look."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time

import pytest
from tests.cli.conftest import CommandLine

QUICK = ("watch", "--every", "200ms")


def test_each_look_is_a_line_of_json_in_a_pipe(cometmq: CommandLine) -> None:
    assert cometmq("topic", "create", "watched", "--queues", "2").code == 0
    watched = cometmq(*QUICK, "--times", "2", "topic", "stats", "watched")
    assert watched.code == 0
    first, second = watched.lines()
    assert [row["queue_id"] for row in first["result"]] == [row["queue_id"] for row in second["result"]] == [0, 1]
    assert first["code"] == 0
    assert first["time"] < second["time"]
    text = cometmq(*QUICK, "--times", "2", "topic", "stats", "watched", "-o", "csv").out
    assert text.count("topic,") + text.count("broker,") >= 2


def test_a_look_that_fails_is_told_and_the_next_one_tried(offline: CommandLine) -> None:
    watched = offline(*QUICK, "--times", "2", "cluster", "status")
    assert watched.code == 1
    for line in watched.lines():
        assert (line["code"], line["result"]) == (1, None)
        assert line["error"].startswith("cometmq: no nameserver at 127.0.0.1:1")


@pytest.mark.parametrize(
    "words", [("topic", "delete", "t", "-y"), ("produce", "t"), ("topic",), ("broker",), ("watch", "doctor")]
)
def test_only_commands_that_look_are_watched(offline: CommandLine, words: tuple[str, ...]) -> None:
    refused = offline("watch", *words)
    assert refused.code == 2
    assert "cannot be watched" in refused.err
    assert offline("watch", "--every", "1ms", "doctor").code == 2


def test_a_terminal_shows_the_view_in_its_place_until_ctrl_c(cometmq: CommandLine) -> None:
    ours, theirs = pty.openpty()
    environment = {**cometmq.environment, "COLUMNS": "80", "LINES": "10", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "cometmq", *QUICK, "cluster", "status"],
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    said, until = b"", time.monotonic() + 60
    while said.count(b"\x1b[J") < 3 and time.monotonic() < until:
        said += os.read(ours, 65_536)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    os.close(ours)
    views = said.decode().split("\x1b[H")[1:]
    assert len(views) >= 3
    for view in views[:3]:
        lines = [line.split("\x1b[K")[0] for line in view.replace("\r", "").split("\n")]
        assert lines[0].startswith("Every 0.2 s: cometmq cluster status    ")
        assert "more lines" in lines[8], "no view is higher than the terminal"
        assert len(lines) == 10
