"""SIGKILL of slaves and masters while producers send, and failovers: what a SYNC_MASTER answered OK is never lost."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
from tests.crash.reading import read_queue

from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import SendMessageRequestHeaderV2
from cometmq.testing import ProcessCluster

pytestmark = pytest.mark.crash

TOPIC = "KilledReplicas"
QUEUES = 4
WRITERS = 4
ENOUGH = 100
ROUNDS = 2
PATIENCE_S = 90
STORED = (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT)
KEYS = {
    "brokerRole": "SYNC_MASTER",
    "slaveTimeout": "60000",
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "20000",
}


class Load:
    """Producers that send to the master until it is gone."""

    def __init__(self, address: str, seed: int, acknowledged: set[bytes]) -> None:
        self._address = address
        self._acknowledged = acknowledged
        self._enough = threading.Event()
        self._before = len(acknowledged)
        self._threads = [threading.Thread(target=self._send, args=(seed * 100 + n,)) for n in range(WRITERS)]
        for thread in self._threads:
            thread.start()

    def _send(self, seed: int) -> None:
        rng = random.Random(seed)
        try:
            with BlockingConnection(self._address, PATIENCE_S) as connection:
                for count in range(1_000_000):
                    body = b"%d/%d:" % (seed, count) + rng.randbytes(rng.randint(0, 2000))
                    header = SendMessageRequestHeaderV2(
                        producer_group="crash",
                        topic=TOPIC,
                        default_topic="TBW102",
                        default_topic_queue_nums=QUEUES,
                        queue_id=rng.randrange(QUEUES),
                        sys_flag=0,
                        born_timestamp=1,
                        flag=0,
                        properties=f"KEYS\x01k{seed}-{count}",
                    )
                    answer = connection.invoke(RequestCode.SEND_MESSAGE_V2, header, body)
                    assert answer.code in STORED, answer.remark
                    if answer.code == ResponseCode.SUCCESS:
                        self._acknowledged.add(body)
                    if len(self._acknowledged) > self._before + ENOUGH:
                        self._enough.set()
        except BlockingConnectionError:
            return

    def enough(self) -> None:
        """Wait until a slave has acknowledged enough of it."""
        assert self._enough.wait(PATIENCE_S), "no slave acknowledges"
        self._enough.clear()
        self._before = len(self._acknowledged)

    def end(self, kill: Callable[[], None]) -> None:
        """Kill the master under it."""
        kill()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def test_what_a_sync_master_acknowledged_outlives_kills_and_failovers() -> None:
    acknowledged: set[bytes] = set()
    with ProcessCluster(slaves=1, broker_keys=KEYS) as cluster:
        for number in range(ROUNDS):
            load = Load(cluster.broker_addresses[0], number, acknowledged)
            load.enough()
            cluster.kill_slave()
            cluster.start_slave()
            load.enough()
            load.end(lambda: cluster.kill_broker(0))
            cluster.promote_slave()
            address = cluster.broker_addresses[0]
            found = [record for queue in range(QUEUES) for record in read_queue(address, TOPIC, queue)]
            bodies = {record.body for record in found}
            assert acknowledged <= bodies, f"{len(acknowledged - bodies)} of {len(acknowledged)} are lost"
            assert len(found) == len(bodies), "nothing is there twice"
            if number + 1 < ROUNDS:
                cluster.empty_slave()
                cluster.start_slave()
