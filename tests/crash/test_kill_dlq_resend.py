"""SIGKILL of ``cometmq dlq resend`` at many steps: repeated with its ledger, it sends every dead letter once."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from tests.cli.conftest import CommandLine
from tests.helpers.pace import Patience
from tests.helpers.waiting import wait_for

from cometmq.client import ConsumeFromWhere, Message, PushConfig
from cometmq.client.consumer.listener import Retry
from cometmq.client.sync import SyncProducer, SyncPushConsumer
from cometmq.testing import ProcessCluster

pytestmark = pytest.mark.crash

LETTERS = 24
PATIENCE_S = 60.0


def entries(ledger: Path) -> list[str]:
    """The whole lines of a ledger, oldest first."""
    content = ledger.read_text() if ledger.exists() else ""
    return content[: content.rfind("\n") + 1].splitlines()


def give_up(namesrv: str) -> None:
    """Make so many dead letters."""
    with SyncProducer("application", namesrv) as producer:
        for number in range(LETTERS):
            producer.send(Message("orders", b"%d" % number))
    config = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    failed: list[bytes] = []

    def fail(messages: object) -> Retry:
        failed.append(b"")
        return Retry(delay_level=-1)

    consumer = SyncPushConsumer("workers", fail, namesrv, config=config)
    consumer.subscribe("orders")
    with consumer:
        wait_for(lambda: len(failed) >= LETTERS, "all have failed", PATIENCE_S)


def resent(cometmq: CommandLine) -> Counter[str]:
    """Count how often each dead letter was sent to its topic again."""
    read = cometmq("consume", "orders", "--from-beginning", "--until-end", "-o", "jsonl")
    assert read.code == 0, read.err
    return Counter(row["body"] for row in read.lines() if "RESENT_FROM" in row["properties"])


def wait_for_step(resending: subprocess.Popen[bytes], ledger: Path, count: int) -> None:
    """Until the ledger has so many lines."""
    patience = Patience(PATIENCE_S)
    while len(entries(ledger)) < count:
        assert resending.poll() is None, "it ended before it was killed"
        assert not patience.is_over, "it does not go on"


def test_a_killed_resend_is_repeated_and_sends_each_dead_letter_once(tmp_path: Path) -> None:
    with ProcessCluster(data=tmp_path / "cluster") as running:
        cometmq = CommandLine(running.namesrv_address)
        assert cometmq("topic", "create", "orders", "--queues", "2").code == 0
        give_up(running.namesrv_address)
        wait_for(
            lambda: len(cometmq("dlq", "read", "workers", "-o", "jsonl").lines()) == LETTERS, "all are given up", 60
        )
        ledger = tmp_path / "ledger"
        command = ("dlq", "resend", "workers", "--all", "--rate", "10", "--ledger", str(ledger))
        for more in (1, 2, 3, 5):  # lines of the ledger: what is intended, what is sent
            resending = cometmq.start(*command, stderr=subprocess.DEVNULL)
            wait_for_step(resending, ledger, len(entries(ledger)) + more)
            resending.kill()
            resending.wait(PATIENCE_S)

        broker = running.brokers[0]
        resending = cometmq.start(*command, stderr=subprocess.DEVNULL)
        wait_for_step(resending, ledger, len(entries(ledger)) + 2)
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGSTOP)
        try:  # the next one is noted, and stored when nobody is there any more to note that
            patience = Patience(PATIENCE_S)
            while '"intent"' not in entries(ledger)[-1]:
                assert not patience.is_over, "it does not go on"
            resending.kill()
            resending.wait(PATIENCE_S)
        finally:
            os.kill(broker.pid, signal.SIGCONT)

        done = cometmq("dlq", "resend", "workers", "--all", "--ledger", str(ledger))
        assert done.code == 0, done.err
        assert resent(cometmq) == Counter({str(number): 1 for number in range(LETTERS)})
        again = cometmq("dlq", "resend", "workers", "--all", "--ledger", str(ledger))
        assert again.err.strip() == f"Dead letters of workers sent again: 0, sent earlier: {LETTERS}"
