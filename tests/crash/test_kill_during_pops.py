"""SIGKILL while messages are popped, acknowledged and changed: none is lost, none comes after its acknowledgement.

Every delivery is counted. A message may be delivered again only after its time, or when its delivery was not answered
before the kill.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import pytest
from tests.crash import loading

from cometmq.message.pop_info import ReceiptHandle, parse_handle, read_offset_info, real_topic
from cometmq.message.properties import POP_CK
from cometmq.message.record import StoredRecord, iter_records
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.pop_headers import AckMessageRequestHeader, PopMessageRequestHeader
from cometmq.testing import ProcessCluster

pytestmark = pytest.mark.crash

TOPIC = "CrashPop"
GROUP = "crash-pop"
ROUNDS = 3
WORKERS = 3
INVISIBLE_MS = 800


class Ledger:
    """What producers and consumers were answered; one for all threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sent: set[bytes] = set()
        self.acknowledged: set[bytes] = set()
        self.in_doubt: set[bytes] = set()
        """Acknowledged, but answered by the kill or too late."""
        self.deliveries: Counter[bytes] = Counter()
        self.wrong: list[str] = []

    def delivered(self, body: bytes) -> None:
        with self.lock:
            self.deliveries[body] += 1
            if body in self.acknowledged:
                self.wrong.append(f"{body!r} came after its acknowledgement")


def pop(connection: BlockingConnection, poll_ms: int = 0) -> list[tuple[StoredRecord, ReceiptHandle]]:
    header = PopMessageRequestHeader(
        consumer_group=GROUP,
        topic=TOPIC,
        queue_id=-1,
        max_msg_nums=16,
        invisible_time=INVISIBLE_MS,
        poll_time=poll_ms,
        born_time=time.time_ns() // 1_000_000,
        init_mode=0,
        exp_type="TAG",
        exp="*",
    )
    answer = connection.invoke(RequestCode.POP_MESSAGE, header)
    return [] if answer.code else [(record, handle_of(record, answer)) for record in iter_records(answer.body)]


def handle_of(record: StoredRecord, answer: RemotingCommand) -> ReceiptHandle:
    """The handle of a message, as Java's client makes it."""
    kept = record.properties.get(POP_CK)
    if kept is not None:
        return parse_handle(kept)
    assert record.queue_offset in read_offset_info(answer.ext_fields["msgOffsetInfo"])["0", record.queue_id]
    popped = int(answer.ext_fields["popTime"])
    return ReceiptHandle(0, popped, INVISIBLE_MS, 0, "0", "broker-a", record.queue_id, record.queue_offset)


def ack(connection: BlockingConnection, handle: ReceiptHandle) -> bool:
    """Acknowledge a message in its time; False when that has nearly passed, so that nobody may count on it."""
    if time.time_ns() // 1_000_000 > handle.pop_time + handle.invisible_time - 100:
        return False
    topic = real_topic(TOPIC, GROUP, handle.topic_type)
    header = AckMessageRequestHeader(GROUP, topic, handle.queue_id, handle.encode(), handle.queue_offset)
    answer = connection.invoke(RequestCode.ACK_MESSAGE, header)
    assert answer.code == 0, answer
    return time.time_ns() // 1_000_000 < handle.pop_time + handle.invisible_time


def end(connection: BlockingConnection, body: bytes, handle: ReceiptHandle, ledger: Ledger) -> None:
    """Acknowledge a message, and note whether that counts."""
    with ledger.lock:
        ledger.in_doubt.add(body)
    if ack(connection, handle):
        with ledger.lock:
            ledger.acknowledged.add(body)
            ledger.in_doubt.discard(body)


def load(address: str, seed: int, ledger: Ledger) -> None:
    """Send, pop, and acknowledge about half, until the broker is gone."""
    rng = random.Random(seed)
    try:
        with BlockingConnection(address, 60) as connection:
            for count in range(1_000_000):
                body = b"%d/%d" % (seed, count)
                loading.send(connection, TOPIC, body, "", queue_id=rng.randrange(4), queues=4)
                ledger.sent.add(body)
                if count % 10:
                    continue
                for record, handle in pop(connection):
                    ledger.delivered(record.body)
                    if rng.random() < 0.5:
                        end(connection, record.body, handle, ledger)
    except BlockingConnectionError:
        return


def drain(address: str, ledger: Ledger) -> None:
    """Pop and acknowledge until nothing comes for longer than messages are invisible."""
    with BlockingConnection(address, 60) as connection:
        quiet_until = time.monotonic() + 3 * INVISIBLE_MS / 1000
        while time.monotonic() < quiet_until:
            for record, handle in pop(connection, poll_ms=200):
                ledger.delivered(record.body)
                end(connection, record.body, handle, ledger)
                quiet_until = time.monotonic() + 3 * INVISIBLE_MS / 1000


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_was_popped_at_a_kill_comes_again_unless_it_was_acknowledged(flush: str) -> None:
    rng = random.Random(11)
    ledger = Ledger()
    with ProcessCluster(broker_keys={"flushDiskType": flush, "mappedFileSizeCommitLog": str(1 << 20)}) as cluster:
        address = cluster.broker_addresses[0]
        for number in range(ROUNDS):
            seeds = range(number * WORKERS, (number + 1) * WORKERS)
            loading.kill_under_load(cluster, lambda seed: load(address, seed, ledger), seeds, rng.uniform(1.0, 2.0))
        drain(address, ledger)
    assert not ledger.wrong, ledger.wrong[:5]
    assert ledger.sent <= ledger.deliveries.keys(), f"{len(ledger.sent - ledger.deliveries.keys())} are lost"
    assert ledger.sent - ledger.in_doubt <= ledger.acknowledged, "what was never acknowledged came again and again"
    assert len(ledger.in_doubt) < len(ledger.sent) // 10
