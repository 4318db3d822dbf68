"""SIGKILL while lite topics are written and read: none of their messages is lost, and each one is read in order.

A message may come only when all earlier ones of its lite topic are acknowledged, or come with it. It may come again
only when its acknowledgement was not answered.
"""

from __future__ import annotations

import random
import threading
import time
from itertools import groupby

import pytest
from tests.broker.lite.subscribing import Got
from tests.crash import loading

from cometmq.message.properties import LITE_TOPIC
from cometmq.message.record import iter_records
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.bodies import SubscriptionGroupConfig, encode_body
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.lite.bodies import (
    LiteSubscriptionAction,
    LiteSubscriptionCtlRequestBody,
    LiteSubscriptionDTO,
)
from cometmq.remoting.lite.headers import LiteSubscriptionCtlRequestHeader, PopLiteMessageRequestHeader
from cometmq.remoting.pop_headers import AckMessageRequestHeader
from cometmq.testing import ProcessCluster

pytestmark = pytest.mark.crash

PARENT = "CrashSessions"
GROUP = "crash-readers"
ROUNDS = 3
WORKERS = 3
LITES = 20
INVISIBLE_MS = 500


class Ledger:
    """What producers and consumers were answered; one for all threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sent: dict[str, list[bytes]] = {}
        """The messages of each lite topic that were answered, in order."""
        self.acknowledged: set[bytes] = set()
        self.in_doubt: set[bytes] = set()
        """Acknowledged, but answered by the kill."""
        self.wrong: list[str] = []

    def delivered(self, lite: str, bodies: list[bytes]) -> None:
        with self.lock:
            self.wrong += [f"{body!r} came after its acknowledgement" for body in bodies if body in self.acknowledged]
            numbers = [int(body.partition(b"/")[2]) for body in bodies]
            if numbers != sorted(numbers):
                self.wrong.append(f"{bodies} came in this order")
            done = self.acknowledged | self.in_doubt | set(bodies)
            early = [body for body in self.sent.get(lite, ()) if int(body.partition(b"/")[2]) < numbers[-1]]
            self.wrong += [f"{bodies} came before {body!r}" for body in early if body not in done]


def set_up(address: str) -> None:
    fields = {"topic": PARENT, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "defaultTopic": "TBW102"}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    fields["attributes"] = "+message.type=LITE"
    attributes = {"+lite.bind.topic": PARENT}
    group = SubscriptionGroupConfig(group_name=GROUP, attributes=attributes, retry_max_times=10_000)
    with BlockingConnection(address, 60) as connection:
        assert connection.invoke(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=fields).code == 0
        made = connection.invoke(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(group))
        assert made.code == 0, made


def subscribe(connection: BlockingConnection, client_id: str, lites: list[str]) -> None:
    change = LiteSubscriptionDTO(
        action=LiteSubscriptionAction.COMPLETE_ADD,
        client_id=client_id,
        group=GROUP,
        topic=PARENT,
        lite_topic_set=lites,
        version=time.time_ns() // 1_000_000,
    )
    body = encode_body(LiteSubscriptionCtlRequestBody(subscription_set=[change]))
    answer = connection.invoke(RequestCode.LITE_SUBSCRIPTION_CTL, LiteSubscriptionCtlRequestHeader(), body)
    assert answer.code == 0, answer


def pop(connection: BlockingConnection, client_id: str, ledger: Ledger, poll_ms: int = 0) -> list[Got]:
    header = PopLiteMessageRequestHeader(
        client_id=client_id,
        consumer_group=GROUP,
        topic=PARENT,
        max_msg_num=16,
        invisible_time=INVISIBLE_MS,
        poll_time=poll_ms,
        born_time=time.time_ns() // 1_000_000,
    )
    answer = connection.invoke(RequestCode.POP_LITE_MESSAGE, header)
    if answer.code:
        return []
    found = [Got(record, 0, answer.ext_fields) for record in iter_records(answer.body)]
    for lite, messages in groupby(found, lambda message: message.lite):
        ledger.delivered(lite, [message.body for message in messages])
    return found


def ack(connection: BlockingConnection, message: Got, ledger: Ledger) -> None:
    """Acknowledge a message in its time; later, a pop may have it already."""
    if time.time_ns() // 1_000_000 > message.handle.pop_time + INVISIBLE_MS - 100:
        return
    with ledger.lock:
        ledger.in_doubt.add(message.body)
    header = AckMessageRequestHeader(
        *(GROUP, PARENT, 0, message.handle.encode(), message.offset), lite_topic=message.lite
    )
    answer = connection.invoke(RequestCode.ACK_MESSAGE, header)
    assert answer.code == 0, answer
    if time.time_ns() // 1_000_000 < message.handle.pop_time + INVISIBLE_MS:
        with ledger.lock:
            ledger.acknowledged.add(message.body)
            ledger.in_doubt.discard(message.body)


def load(address: str, seed: int, ledger: Ledger) -> None:
    """Write and read some lite topics, and acknowledge about two thirds, until the broker is gone."""
    rng = random.Random(seed)
    lites = [f"session-{seed}-{number}" for number in range(LITES)]
    client_id = f"client-{seed}"
    try:
        with BlockingConnection(address, 60) as connection:
            subscribe(connection, client_id, lites)
            for count in range(1_000_000):
                lite, body = rng.choice(lites), b"%d/%d" % (seed, count)
                properties = f"{LITE_TOPIC}\x01{lite}"
                loading.send(connection, PARENT, body, properties, queue_id=rng.randrange(4))
                with ledger.lock:
                    ledger.sent.setdefault(lite, []).append(body)
                if count % 10:
                    continue
                for message in pop(connection, client_id, ledger):
                    if rng.random() < 0.66:
                        ack(connection, message, ledger)
    except BlockingConnectionError:
        return


def drain(address: str, ledger: Ledger) -> None:
    """Pop and acknowledge until nothing comes for longer than messages are invisible."""
    with BlockingConnection(address, 60) as connection:
        subscribe(connection, "drain", sorted(ledger.sent))
        quiet_until = time.monotonic() + 4 * INVISIBLE_MS / 1000
        while time.monotonic() < quiet_until:
            for message in pop(connection, "drain", ledger, poll_ms=200):
                ack(connection, message, ledger)
                quiet_until = time.monotonic() + 4 * INVISIBLE_MS / 1000


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_lite_topics_are_read_in_order_over_kills(flush: str) -> None:
    rng = random.Random(11)
    ledger = Ledger()
    keys = {"flushDiskType": flush, "mappedFileSizeCommitLog": str(1 << 20), "autoCreateTopicEnable": "false"}
    with ProcessCluster(broker_keys=keys) as cluster:
        address = cluster.broker_addresses[0]
        set_up(address)
        for number in range(ROUNDS):
            seeds = range(number * WORKERS, (number + 1) * WORKERS)
            loading.kill_under_load(cluster, lambda seed: load(address, seed, ledger), seeds, rng.uniform(1.0, 2.0))
        drain(address, ledger)
    sent = {body for bodies in ledger.sent.values() for body in bodies}
    assert len(ledger.acknowledged) > 100
    assert not ledger.wrong, ledger.wrong[:5]
    assert sent - ledger.in_doubt <= ledger.acknowledged, f"{len(sent - ledger.acknowledged)} are lost"
    assert len(ledger.in_doubt) < len(sent) // 10
