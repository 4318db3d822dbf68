"""SIGKILL while producers send: what was acknowledged is there afterwards, where the answer said, once."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
from tests.crash.loading import kill_under_load, send
from tests.crash.reading import read_queue

from cometmq.message.record import StoredRecord
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.testing import ProcessCluster

pytestmark = pytest.mark.crash

TOPIC = "KilledUnderLoad"
QUEUES = 4
WRITERS = 6
ROUNDS = 3

Place = tuple[int, int]
"""Queue id and queue offset."""


class Ledger:
    """The messages of producers and their answers; one for all threads."""

    def __init__(self) -> None:
        self.acknowledged: dict[Place, bytes] = {}
        self.attempted: set[bytes] = set()
        self.lock = threading.Lock()


def load(address: str, seed: int, ledger: Ledger) -> None:
    """Send until the broker is gone, and remember every acknowledgement."""
    rng = random.Random(seed)
    try:
        with BlockingConnection(address, 60) as connection:
            for count in range(1_000_000):
                body = b"%d/%d:" % (seed, count) + rng.randbytes(rng.randint(0, 2000))
                with ledger.lock:
                    ledger.attempted.add(body)
                properties = f"KEYS\x01k{seed}-{count}\x02TAGS\x01Tag{count % 3}"
                where = send(connection, TOPIC, body, properties, queue_id=rng.randrange(QUEUES), queues=QUEUES)
                with ledger.lock:
                    assert (where.queue_id, where.queue_offset) not in ledger.acknowledged
                    ledger.acknowledged[where.queue_id, where.queue_offset] = body
    except BlockingConnectionError:
        return


def read_all(address: str) -> dict[Place, StoredRecord]:
    """Every message of the topic, pulled; a queue has no gaps."""
    found: dict[Place, StoredRecord] = {}
    for queue_id in range(QUEUES):
        for offset, record in enumerate(read_queue(address, TOPIC, queue_id)):
            assert (record.topic, record.queue_id, record.queue_offset) == (TOPIC, queue_id, offset)
            found[queue_id, offset] = record
    return found


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_was_acknowledged_before_a_kill_is_there_after_it_and_nothing_else(flush: str) -> None:
    rng = random.Random(7)
    ledger = Ledger()
    keys = {"flushDiskType": flush, "mappedFileSizeCommitLog": str(1 << 20), "mappedFileSizeConsumeQueue": "20000"}
    with ProcessCluster(broker_keys=keys) as cluster:
        address = cluster.broker_addresses[0]
        for number in range(ROUNDS):
            before = len(ledger.acknowledged)
            seeds = range(number * WRITERS, (number + 1) * WRITERS)
            kill_under_load(cluster, lambda seed: load(address, seed, ledger), seeds, rng.uniform(0.5, 1.5))
            assert len(ledger.acknowledged) > before, "nothing was sent before the kill"
        found = read_all(address)
    assert {place: found[place].body for place in ledger.acknowledged} == ledger.acknowledged
    bodies = Counter(record.body for record in found.values())
    assert set(bodies) <= ledger.attempted, "nothing is there that nobody sent"
    assert max(bodies.values()) == 1, "nothing is there twice"
