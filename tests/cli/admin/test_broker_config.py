"""The configuration of running brokers: shown, changed after a preview, compared; levels and forms of logs."""

from __future__ import annotations

import json
import logging

from tests.cli.conftest import CommandLine

from cometmq.cli.servers.logs import JsonLine
from cometmq.testing import ProcessCluster


def test_config_is_shown_changed_and_compared(cometmq: CommandLine) -> None:
    (row,) = cometmq("broker", "config", "get", "fileReservedTime", "-o", "json").json()
    assert (row["broker"], row["value"]) == ("broker-0", "72")
    assert "did you mean fileReservedTime?" in cometmq("broker", "config", "get", "fileReservedTim").err
    unconfirmed = cometmq("broker", "config", "set", "fileReservedTime=48")
    assert unconfirmed.code == 2
    assert unconfirmed.out.splitlines()[-1].split() == ["broker-0", "fileReservedTime", "72", "48"]
    assert cometmq("broker", "config", "get", "fileReservedTime", "-o", "json").json() == [row]
    assert cometmq("broker", "config", "set", "fileReservedTime=48", "--yes").code == 0
    different = {row["key"]: row for row in cometmq("broker", "config", "diff", "--defaults", "-o", "json").json()}
    assert different["fileReservedTime"] == {"key": "fileReservedTime", "default": "72", "broker-0": "48"}
    assert "flushDiskType" not in different
    fixed = cometmq("broker", "config", "set", "flushDiskType=SYNC_FLUSH", "--yes")
    assert fixed.code == 1
    assert "flushDiskType cannot be changed while running" in fixed.err
    assert cometmq("broker", "config", "diff").code == 1
    assert cometmq("broker", "config", "set", "fileReservedTime").code == 2
    twice = cometmq("broker", "config", "set", "fileReservedTime=48", "fileReservedTime=72", "--yes")
    assert (twice.code, "already has the value 48" in twice.err) == (2, True)


def test_the_level_of_the_log_changes_while_a_broker_runs(cometmq: CommandLine, cluster: ProcessCluster) -> None:
    def made(topic: str) -> bool:
        assert cometmq("topic", "create", topic, "--queues", "1").code == 0
        return any(f"topicName={topic}," in log.read_text() for log in cluster.data.glob("*.log"))

    assert made("seen")
    assert cometmq("broker", "config", "set", "logLevel=WARNING", "--yes").code == 0
    assert not made("unseen")
    assert cometmq("broker", "config", "set", "logLevel=", "--yes").code == 0
    assert made("seen-again")


def test_keys_of_a_nameserver_are_shown_and_changed(cometmq: CommandLine) -> None:
    (row,) = cometmq("namesrv", "config", "get", "logLevel", "-o", "json").json()
    assert row == {"nameserver": cometmq.namesrv, "key": "logLevel", "value": ""}
    assert (
        "no nameserver has the key logLevle; did you mean logLevel?"
        in cometmq("namesrv", "config", "get", "logLevle").err
    )
    unconfirmed = cometmq("namesrv", "config", "set", "logLevel=ERROR")
    assert unconfirmed.code == 2
    assert unconfirmed.out.splitlines()[-1].split() == [cometmq.namesrv, "logLevel", "–", "ERROR"]
    assert cometmq("namesrv", "config", "set", "logLevel=ERROR", "--yes").code == 0
    assert cometmq("namesrv", "config", "get", "logLevel", "-o", "json").json()[0]["value"] == "ERROR"
    assert cometmq("namesrv", "config", "set", "logLevel=", "--yes").code == 0
    wrong = cometmq("namesrv", "config", "set", "logLevel=LOUD", "--yes")
    assert wrong.code == 1
    assert "DEBUG, INFO, WARNING or ERROR" in wrong.err


def test_json_log_lines_are_whole() -> None:
    record = logging.LogRecord("cometmq.x", logging.WARNING, "", 0, "two\nlines of %s", ("\x1b[31m",), None)
    line = JsonLine().format(record)
    assert "\n" not in line
    assert "\x1b" not in line
    assert json.loads(line)["message"] == "two\nlines of \x1b[31m"
