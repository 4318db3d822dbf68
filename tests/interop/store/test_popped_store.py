"""A store with popped messages goes from Apache 5.5.0 to CometMQ or back: what is served there, and what is not."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.broker.pop.popping import Got, got
from tests.helpers.waiting import wait_for
from tests.interop.clients import Client, Series
from tests.interop.systems import Deployment, System

from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import GetMaxOffsetRequestHeader
from cometmq.remoting.pop_headers import AckMessageRequestHeader, PopMessageRequestHeader

pytestmark = pytest.mark.interop

TOPIC, COUNT, TAKEN, ACKED = "SwapPopped", 20, 10, 4
PATIENCE_S = 60.0


class Group:
    """A group that pops."""

    def __init__(self, name: str) -> None:
        self.name = name

    def pop(self, connection: BlockingConnection, most: int, invisible_ms: int) -> list[Got]:
        header = PopMessageRequestHeader(
            consumer_group=self.name,
            topic=TOPIC,
            queue_id=-1,
            max_msg_nums=most,
            invisible_time=invisible_ms,
            poll_time=500,
            born_time=int(time.time() * 1000),
            init_mode=0,
            exp_type="TAG",
            exp="*",
            order=False,
        )
        return got(connection.invoke(RequestCode.POP_MESSAGE, header), self.name, TOPIC)

    def ack(self, connection: BlockingConnection, message: Got) -> None:
        handle = message.handle
        header = AckMessageRequestHeader(
            consumer_group=self.name,
            topic=TOPIC if handle.topic_type == "0" else self.retry_topic,
            queue_id=handle.queue_id,
            extra_info=handle.encode(),
            offset=handle.queue_offset,
        )
        assert connection.invoke(RequestCode.ACK_MESSAGE, header).code == 0

    @property
    def retry_topic(self) -> str:
        return f"%RETRY%{self.name}_{TOPIC}"

    def take(self, connection: BlockingConnection, invisible_ms: int) -> tuple[set[bytes], set[bytes]]:
        """Pop some messages and acknowledge a few: those that are in flight then, and the acknowledged ones."""
        taken: list[Got] = []
        while len(taken) < TAKEN:
            taken += self.pop(connection, TAKEN - len(taken), invisible_ms)
        for message in taken[:ACKED]:
            self.ack(connection, message)
        return {message.body for message in taken[ACKED:]}, {message.body for message in taken[:ACKED]}

    def drained(self, connection: BlockingConnection, count: int, quiet_s: float) -> list[bytes]:
        """Everything that comes until there was so much of it, and for some time more; all is acknowledged."""
        found: list[bytes] = []
        ends = time.monotonic() + PATIENCE_S
        while time.monotonic() < ends:
            for message in self.pop(connection, 32, 60_000):
                found.append(message.body)
                self.ack(connection, message)
            if len(found) >= count:
                ends = min(ends, time.monotonic() + quiet_s)
        return found


def max_offset(connection: BlockingConnection, topic: str) -> int:
    answer = connection.invoke(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic=topic, queue_id=0))
    return int(answer.ext_fields.get("offset", 0))


def taken_over(
    deploy: Callable[..., Deployment], java: Client, first: System, second: System, invisible_ms: int
) -> tuple[Deployment, set[bytes], dict[str, tuple[set[bytes], set[bytes]]]]:
    """A store of the first system, in which the group "held" has messages in flight, and "over" had some; stopped."""
    deployment = deploy(first, namesrv=System.COMETMQ, autoCreateTopicEnable="false")
    java.create_topic(deployment.address, deployment.broker.address, TOPIC)
    java.produce(deployment.address, Series(TOPIC, COUNT, body="popped"))
    taken = {}
    with BlockingConnection(deployment.broker.address, 20) as connection:
        over, held = Group("over"), Group("held")
        taken["over"] = over.take(connection, 2_000)
        copies = TAKEN - ACKED
        wait_for(lambda: max_offset(connection, over.retry_topic) >= copies, "the time of messages is over", PATIENCE_S)
        taken["held"] = held.take(connection, invisible_ms)
        everything = set(Group("all").drained(connection, COUNT, 0))
    assert len(everything) == COUNT
    deployment.broker.stop()
    deployment.start_again(second)
    return deployment, everything, taken


def check_drained(deployment: Deployment, expected: dict[str, set[bytes]], quiet_s: float) -> None:
    """Each group gets exactly what is expected; all of them at the same time, since most of it is waiting."""

    def drained(name: str) -> list[bytes]:
        with BlockingConnection(deployment.broker.address, 20) as connection:
            return Group(name).drained(connection, len(expected[name]), quiet_s)

    with ThreadPoolExecutor() as groups:
        for name, found in zip(expected, groups.map(drained, expected), strict=True):
            assert Counter(found) == Counter(expected[name]), name


def test_ours_hands_out_again_what_was_in_flight_at_apaches(deploy: Callable[..., Deployment], java: Client) -> None:
    deployment, everything, taken = taken_over(deploy, java, System.APACHE55, System.COMETMQ, 15_000)
    expected = {name: everything - acknowledged for name, (_, acknowledged) in taken.items()} | {"all": set()}
    check_drained(deployment, expected, 8)
    assert " ERROR " not in deployment.broker.logs()


def test_apaches_serves_what_was_never_in_flight_at_ours_or_is_no_longer(
    deploy: Callable[..., Deployment], java: Client
) -> None:
    deployment, everything, taken = taken_over(deploy, java, System.COMETMQ, System.APACHE55, 600_000)
    expected = {name: everything - acknowledged for name, (_, acknowledged) in taken.items()}
    expected["held"] -= taken["held"][0]
    check_drained(deployment, expected, 3)
    log = (Path(deployment.broker.directory) / "broker.log").read_text()
    assert not [line for line in log.splitlines() if " ERROR " in line and "pop" in line.lower()]
    topics = json.loads((Path(deployment.broker.directory) / "store" / "config" / "topics.json").read_text())
    assert "rmq_sys_pop_log" in topics["topicConfigTable"]
