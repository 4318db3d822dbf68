"""Completion: commands, and names that the cluster knows."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.cli.conftest import CommandLine


def completed(command: CommandLine, *words: str) -> list[str]:
    """The words that a shell offers for the last one."""
    asked = {
        **command.environment,
        "COMP_WORDS": " ".join(("cometmq", *words)),
        "COMP_CWORD": str(len(words)),
        "_COMETMQ_COMPLETE": "bash_complete",
    }
    done = subprocess.run(
        [sys.executable, "-m", "cometmq"], env=asked, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.split()]


def test_names_come_from_the_cluster(cometmq: CommandLine) -> None:
    assert cometmq("topic", "create", "completed", "--queues", "1").code == 0
    assert cometmq("group", "create", "completers").code == 0
    assert completed(cometmq, "topic", "describe", "comp") == ["completed"]
    assert completed(cometmq, "group", "reset", "completers", "--topic", "comp") == ["completed"]
    assert completed(cometmq, "group", "delete", "comp") == ["completers"]
    assert completed(cometmq, "topic", "alter", "--broker", "b") == ["broker-0"]
    assert completed(cometmq, "topic", "al") == ["alter"]


def test_without_a_cluster_names_are_not_completed(offline: CommandLine) -> None:
    assert completed(offline, "topic", "describe", "comp") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_ask_this_command(offline: CommandLine, shell: str) -> None:
    script = offline("completion", shell)
    assert script.code == 0
    assert "_COMETMQ_COMPLETE" in script.out
