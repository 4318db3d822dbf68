"""What keeps queues from being read is told once, however long it lasts and however many they are; its end, too."""

from __future__ import annotations

import logging

import pytest

from cometmq.client.consumer.pulling import LASTING_FAILURES, ReadFailureLog
from cometmq.client.errors import BrokerError, RemotingConnectError, RouteNotFoundError
from cometmq.client.outages import BrokerOutages
from cometmq.remoting.bodies import MessageQueue
from cometmq.testing import VirtualClock

QUEUES = [MessageQueue("orders", "broker-a", number) for number in range(8)]
AWAY = RemotingConnectError("127.0.0.1:1", "cannot connect to 127.0.0.1:1: connection refused")
REFUSED = BrokerError("127.0.0.1:1", 16, "the topic is not readable", "pulling")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def outages(clock: VirtualClock) -> BrokerOutages:
    return BrokerOutages(clock)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]


def test_a_restart_of_a_broker_is_one_warning_and_one_line_for_all_its_queues(
    caplog: pytest.LogCaptureFixture, outages: BrokerOutages, clock: VirtualClock
) -> None:
    caplog.set_level(logging.DEBUG, "cometmq")
    troubles = [ReadFailureLog(queue, outages) for queue in QUEUES]
    for _ in range(2):
        caplog.clear()
        for _ in range(20):
            for trouble in troubles:
                trouble.seen(AWAY, 1.0)
                clock.advance(0.125)
        assert outages.level("broker-a") == logging.DEBUG, "for heartbeats and offsets, too"
        troubles[0].over(7)
        troubles[1].seen(RouteNotFoundError("orders", "127.0.0.1:9876"), 1.0)
        for trouble in troubles:
            trouble.over(7)
        assert told(caplog) == [
            "cannot read from broker-a, retrying every 1 s: cannot connect to 127.0.0.1:1: connection refused",
            "broker-a responds again after 20 s",
        ]
        assert outages.level("broker-a") == logging.WARNING
        clock.advance(60)


def test_a_refusal_counts_when_it_lasts_and_for_its_queue_alone(
    caplog: pytest.LogCaptureFixture, outages: BrokerOutages
) -> None:
    caplog.set_level(logging.DEBUG, "cometmq")
    trouble = ReadFailureLog(QUEUES[3], outages)
    for _ in range(LASTING_FAILURES - 1):
        trouble.seen(REFUSED, 1.0)
    trouble.over(7)
    assert told(caplog) == []
    for _ in range(LASTING_FAILURES + 5):
        trouble.seen(REFUSED, 1.0)
    trouble.over(7)
    trouble.over(8)
    assert [text.split(",")[0] for text in told(caplog)] == [
        "cannot read queue 3 of orders on broker-a",
        "reading queue 3 of orders on broker-a again",
    ]
