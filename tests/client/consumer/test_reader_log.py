"""A queue that cannot be read is reported once, however long it lasts, and its return once."""

from __future__ import annotations

import logging

import pytest

from cometmq.client.consumer.pulling import LASTING_FAILURES, Trouble
from cometmq.client.errors import BrokerError, RemotingConnectError
from cometmq.errors import CometMQError
from cometmq.remoting.bodies import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 3)
AWAY = RemotingConnectError("127.0.0.1:1", "cannot connect to 127.0.0.1:1: connection refused")
REFUSED = BrokerError("127.0.0.1:1", 16, "the topic is not readable", "pulling")


def warnings(caplog: pytest.LogCaptureFixture, error: CometMQError, times: int) -> list[str]:
    trouble = Trouble(QUEUE)
    with caplog.at_level(logging.DEBUG, "cometmq"):
        for _ in range(times):
            trouble.seen(error, 1.0)
        trouble.over(7)
        trouble.over(8)
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]


def test_an_outage_is_one_warning_and_its_end_one_line(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings(caplog, AWAY, 500) == [
        "cannot read queue 3 of orders at broker-a, trying again every 1 s: "
        "cannot connect to 127.0.0.1:1: connection refused",
        "reading queue 3 of orders at broker-a again, from offset 7",
    ]


def test_a_refusal_counts_when_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings(caplog, REFUSED, LASTING_FAILURES - 1) == []
    assert len(warnings(caplog, REFUSED, LASTING_FAILURES + 5)) == 2
