"""Logs of the servers: what they say of a life, where they write it, and what SIGHUP and logrotate change."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import CommandLine
from tests.cli.servers.test_servers import running, serve_arguments
from tests.helpers.waiting import wait_for

from cometmq.cli.servers.logs import LogFile, LogLine
from cometmq.cli.servers.process import Stopping
from cometmq.client import Message
from cometmq.client.sync import SyncProducer


def messages(file: Path) -> list[str]:
    return [line["message"] for line in map(json.loads, file.read_text().splitlines())]


def test_a_life_is_told_in_a_file_that_logrotate_may_move(offline: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    arguments = serve_arguments(tmp_path / "data", "--log-file", str(file), "--log-format", "json")
    with running(offline, *arguments) as (process, ready):
        namesrv = ready.split()[3].rstrip(",")
        begun = "\n".join(messages(file))
        for part in (
            r"nameserver serves at 127\.0\.0\.1:\d+: CometMQ \d",
            r"broker broker-0 of cluster DefaultCluster is starting: ASYNC_MASTER with id 0, .*: (compiled|Python)",
            r"opened the store in \d+\.\d\d s: 0 topics, log from 0 to 0",
            r"registered with nameserver 127\.0\.0\.1:\d+\n",
            r"broker broker-0 serves clients at 127\.0\.0\.1:\d+ and slaves at port \d+; started in \d+\.\d\d s",
        ):
            assert re.search(part, begun), part
        with SyncProducer("tellers", namesrv) as producer:
            producer.send(Message("told", b"x"))
            wait_for(lambda: "of group tellers joined from" in file.read_text(), "the producer comes")
        wait_for(lambda: "of group tellers left" in file.read_text(), "the producer goes")

        moved = file.rename(tmp_path / "server.log.1")
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: file.exists() and "SIGHUP" in file.read_text(), "the file is made anew")
        file.rename(tmp_path / "server.log.2")
        assert CommandLine(namesrv)("topic", "create", "without-a-signal", "--queues", "1").code == 0
        assert "without-a-signal" in file.read_text()
        process.terminate()
        assert process.wait(60) == 0
    assert messages(file)[-4] == "stopping: SIGTERM"
    assert re.match(r"broker broker-0 stopped in \d+\.\d\d s", messages(file)[-2])
    assert re.match(r"nameserver stopped in \d+\.\d\d s", messages(file)[-1])
    assert "SIGHUP" not in moved.read_text()


def test_a_server_whose_terminal_is_gone_stops_cleanly(offline: CommandLine, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    file = tmp_path / "log"
    command = [sys.executable, "-m", "cometmq", *serve_arguments(tmp_path / "data", "--log-file", str(file))]
    process = subprocess.Popen(
        command,
        env=offline.environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    said = b""
    while b" ready: " not in said:
        said += os.read(ours, 1000)
    process.send_signal(signal.SIGHUP)
    wait_for(lambda: "SIGHUP: reopening" in file.read_text(), "it goes on while the terminal is there")
    os.close(ours)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 0
    assert "stopping: the terminal is gone" in file.read_text()
    assert not list(tmp_path.rglob("abort")), "the store was stopped cleanly"


@pytest.fixture
def nohup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


async def test_nohup_stays_in_force(nohup: None) -> None:
    Stopping().install(is_server=True)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_lines_that_the_file_does_not_take_go_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "logs"
    place.mkdir()
    log = LogFile(place / "server.log")
    log.setFormatter(LogLine())

    def line(text: str) -> logging.LogRecord:
        return logging.LogRecord("cometmq", logging.INFO, "", 0, text, (), None)

    log.handle(line("first"))
    place.rename(tmp_path / "elsewhere")
    log.handle(line("second"))
    log.handle(line("third"))
    said = capsys.readouterr().err.splitlines()
    assert [text.rpartition(" ")[2] for text in said] == ["second", "third"]
    place.mkdir()
    log.handle(line("fourth"))
    log.close()
    assert (place / "server.log").read_text().endswith("fourth\n")


def test_a_log_file_that_cannot_be_opened_is_a_sentence(offline: CommandLine, tmp_path: Path) -> None:
    failed: Any = offline(*serve_arguments(tmp_path, "--log-file", str(tmp_path / "no" / "log")))
    assert failed.code == 1
    assert f"{tmp_path / 'no' / 'log'}: no such file or directory" in failed.err.lower()
