"""Screens of the commands on terminals of 80 and 120 columns, kept as text in ``screens``.

``UPDATE_SCREENS=1`` in the environment writes them anew; read what changed.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.cli.conftest import COMMAND_SECONDS, CommandLine
from tests.helpers import forks

from cometmq import __version__

SCREENS = Path(__file__).parent / "screens"
FORMAT = "{queue_id}/{queue_offset} {keys} {body}"
COMMANDS = (
    ("topic", "list"),
    ("topic", "create", "screen-orders", "--queues", "8"),
    ("topic", "describe", "screen-orders"),
    ("topic", "alter", "screen-orders", "--queues", "4", "--permission", "r"),
    ("topic", "stats", "screen-orders"),
    ("topic", "stats", "no-such-topic"),
    ("topic", "route", "screen-orders"),
    ("topic", "delete", "screen-orders"),
    ("group", "list"),
    ("group", "describe", "screen-billing"),
    ("group", "offsets", "screen-billing"),
    ("group", "reset", "screen-billing", "--topic", "screen-orders", "--earliest"),
    ("group", "delete", "no-such-group", "--yes"),
    ("message", "query", "--topic", "screen-orders", "--key", "k-1"),
    ("message", "at", "--topic", "screen-orders", "--queue", "1", "--offset", "2"),
    ("message", "get", "screen"),
    ("consume", "screen-orders", "--last", "2", "--format", FORMAT),
    ("consume", "screen-orders", "--last", "1", "-o", "jsonl"),
    ("consume", "screen-orders", "--lats", "1"),
    ("produce", "screen-sent", "--body", "x", "--sharding-key", "s"),
    ("delay", "waiting"),
    ("delay", "list"),
    ("transaction", "list"),
    ("dlq", "list"),
    ("dlq", "read", "screen-billing"),
    ("cluster", "list"),
    ("cluster", "status"),
    ("cluster", "slaves"),
    ("broker", "config", "get", "fileReservedTime", "flushDiskType"),
    ("broker", "config", "set", "fileReservedTime=48"),
    ("broker", "config", "diff"),
    ("namesrv", "config", "get", "logLevel"),
    ("user", "list"),
    ("acl", "list"),
    ("doctor", "--cluster"),
    ("watch", "--times", "1", "topic", "list"),
    ("topik", "list"),
)
"""The main commands, on a cluster that they change by one topic."""


@pytest.fixture(scope="module")
def orders(cometmq: CommandLine) -> CommandLine:
    """A topic with three messages, of which a group has consumed all."""
    assert cometmq("topic", "create", "screen-orders", "--queues", "2").code == 0
    for number in range(3):
        keys = ("--key", f"k-{number}", "--sharding-key", "s")
        assert cometmq("produce", "screen-orders", "--body", f"order {number}", *keys).code == 0
    read = ("consume", "screen-orders", "--group", "screen-billing", "--from-beginning", "--max", "3")
    assert cometmq(*read).code == 0
    return cometmq


def screen(
    command: CommandLine,
    words: tuple[str, ...],
    columns: int,
    more: Mapping[str, str] = {},
    *,
    typing: bool = False,
) -> str:
    """Everything that a command writes to a terminal: stdout and stderr; with ``typing`` stdin is one too."""
    ours, theirs = pty.openpty()
    whole = {**command.environment, "COLUMNS": str(columns), "LINES": "100", "TERM": "xterm", "TZ": "UTC", **more}
    stdin = theirs if typing else subprocess.DEVNULL
    process = forks.start(
        [sys.executable, "-m", "cometmq", *words], stdin=stdin, stdout=theirs, stderr=theirs, env=whole
    )
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # the terminal hangs up
        while piece := os.read(ours, 65_536):
            said += piece
    os.close(ours)
    process.wait(COMMAND_SECONDS)
    return said.decode().replace("\r\n", "\n")


def steady(text: str) -> str:
    """Replace what is different in each run, by as many characters."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d", "2026-01-31 12:00:00", text)
    text = re.sub(r"(127\.0\.0\.1:)\d{5}", r"\g<1>10911", text)
    text = re.sub(r"\b[0-9A-F]{32}\b", "0" * 32, text)
    text = re.sub(r"\x1b\[[0-9;]*[HJK]", "", text)
    text = re.sub(r"\d\d:\d\d:\d\d$", "12:00:00", text, flags=re.MULTILINE)
    text = re.sub(r"(T| )12:00:00\.\d{3}", r"\g<1>12:00:00.000", text)
    text = re.sub(r"\d+% used", "20% used", text).replace(__version__, "0.1.0")
    text = re.sub(rf"^({_NUMBERS})( +)[\d.]+", r"\1\2 0", text, flags=re.MULTILINE)
    return "\n".join(_without_numbers(line.rstrip()) for line in text.split("\n"))


_NUMBERS = "In/s|Out/s|Messages today|Log bytes|Disk %"
"""Titles of the numbers that differ in each run."""


def _without_numbers(line: str) -> str:
    if not line.startswith("broker-0  127.0.0.1:10911  ok "):
        return line
    return re.sub(r" +\d+(\.\d+)?(?= |$)", lambda found: "0".rjust(len(found[0])), line)


@pytest.mark.parametrize("columns", [80, 120])
def test_screens_are_as_kept(orders: CommandLine, columns: int) -> None:
    shown = "".join(f"$ cometmq {' '.join(words)}\n{steady(screen(orders, words, columns))}\n" for words in COMMANDS)
    kept = SCREENS / f"{columns}.txt"
    if os.environ.get("UPDATE_SCREENS"):
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(shown)
    assert shown == kept.read_text()
    assert orders("topic", "delete", "screen-sent", "--yes").code == 0
    tables = [
        line
        for line in shown.splitlines()
        if not line.startswith(("cometmq: ", "Topic screen-sent did not exist ", "$ ", "{"))
    ]
    assert max(map(len, tables)) <= columns


def test_colours_are_for_terminals_and_may_be_switched_off(orders: CommandLine) -> None:
    words = ("cluster", "status")
    assert "\x1b[32mok" in screen(orders, words, 200)
    assert "\x1b[32m" not in screen(orders, words, 200, {"NO_COLOR": "1"})
    assert "\x1b" not in orders(*words).out


def test_a_long_table_goes_through_the_pager_of_a_terminal(orders: CommandLine) -> None:
    words = ("broker", "config", "get")
    pager = {"PAGER": "sed s/^/paged:/", "LINES": "20"}
    paged = screen(orders, words, 80, pager, typing=True).splitlines()
    assert len(paged) > 20
    assert all(line.startswith("paged:") for line in paged)
    assert "paged:" not in screen(orders, words, 80, pager), "nobody types"
    assert "paged:" not in screen(orders, ("cluster", "list"), 80, pager, typing=True), "it fits"
