"""SIGKILL while producers send: what was acknowledged is there afterwards, where the answer said, once."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import pytest

from cometmq.message.record import StoredRecord, iter_records
from cometmq.message.sysflag import PULL_SUBSCRIPTION
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from cometmq.testing import ProcessCluster

pytestmark = pytest.mark.crash

TOPIC = "KilledUnderLoad"
QUEUES = 4
WRITERS = 6
ROUNDS = 3

Place = tuple[int, int]
"""Queue id and queue offset."""


class Writers:
    """Threads that send until told to stop or cut off, and remember every acknowledgement."""

    def __init__(self, address: str, seed: int) -> None:
        self._address = address
        self._seed = seed
        self.acknowledged: dict[Place, bytes] = {}
        self.attempted: set[bytes] = set()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(WRITERS)]

    def run_until_cut_off(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _write(self, number: int) -> None:
        rng = random.Random(self._seed * 100 + number)
        try:
            with BlockingConnection(self._address, 10) as connection:
                for count in range(1_000_000):
                    body = b"%d/%d/%d:" % (self._seed, number, count) + rng.randbytes(rng.randint(0, 2000))
                    with self._lock:
                        self.attempted.add(body)
                    header = SendMessageRequestHeaderV2(
                        producer_group="crash",
                        topic=TOPIC,
                        default_topic="TBW102",
                        default_topic_queue_nums=QUEUES,
                        queue_id=rng.randrange(QUEUES),
                        sys_flag=0,
                        born_timestamp=1,
                        flag=0,
                        properties=f"KEYS\x01k{number}-{count}\x02TAGS\x01Tag{count % 3}",
                    )
                    answer = connection.invoke(RequestCode.SEND_MESSAGE_V2, header, body)
                    assert answer.code == 0, answer.remark
                    where = answer.header(SendMessageResponseHeader)
                    with self._lock:
                        assert (where.queue_id, where.queue_offset) not in self.acknowledged
                        self.acknowledged[where.queue_id, where.queue_offset] = body
        except BlockingConnectionError:
            return


def read_all(address: str) -> dict[Place, StoredRecord]:
    """Every message of the topic, pulled."""
    found: dict[Place, StoredRecord] = {}
    with BlockingConnection(address, 10) as connection:
        for queue_id in range(QUEUES):
            offset = 0
            while True:
                header = PullMessageRequestHeader(
                    consumer_group="crash_reader",
                    topic=TOPIC,
                    queue_id=queue_id,
                    queue_offset=offset,
                    max_msg_nums=32,
                    sys_flag=PULL_SUBSCRIPTION,
                    commit_offset=0,
                    suspend_timeout_millis=0,
                    sub_version=0,
                    subscription="*",
                    expression_type="TAG",
                )
                answer = connection.invoke(RequestCode.PULL_MESSAGE, header)
                next_offset = answer.header(PullMessageResponseHeader).next_begin_offset
                if answer.code == ResponseCode.PULL_NOT_FOUND:
                    break
                assert answer.code == 0, answer.remark
                for record in iter_records(answer.body, check_crc=True):
                    assert (record.topic, record.queue_id) == (TOPIC, queue_id)
                    assert record.queue_offset == offset, "a queue has no gaps"
                    found[queue_id, offset] = record
                    offset += 1
                assert next_offset == offset
    return found


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_was_acknowledged_before_a_kill_is_there_after_it_and_nothing_else(flush: str) -> None:
    rng = random.Random(7)
    acknowledged: dict[Place, bytes] = {}
    attempted: set[bytes] = set()
    keys = {"flushDiskType": flush, "mappedFileSizeCommitLog": str(1 << 20), "mappedFileSizeConsumeQueue": "20000"}
    with ProcessCluster(broker_keys=keys) as cluster:
        address = cluster.broker_addresses[0]
        for seed in range(ROUNDS):
            writers = Writers(address, seed)
            writers.run_until_cut_off()
            time.sleep(rng.uniform(0.5, 1.5))  # the length of the load, not a wait for something
            cluster.brokers[0].kill()
            writers.join()
            assert writers.acknowledged, "nothing was sent before the kill"
            acknowledged |= writers.acknowledged
            attempted |= writers.attempted
            cluster.brokers[0].start()
        found = read_all(address)
    assert {place: found[place].body for place in acknowledged} == acknowledged
    bodies = Counter(record.body for record in found.values())
    assert set(bodies) <= attempted, "nothing is there that nobody sent"
    assert max(bodies.values()) == 1, "nothing is there twice"
