"""SIGKILL of slaves and masters while producers send, and failovers: what a SYNC_MASTER answered OK is never lost."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable

import pytest
from tests.crash.reading import read_queue
from tests.helpers.waiting import block_for, wait_for

from cometmq.remoting.admin_bodies import HARuntimeInfo
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.bodies import decode_body
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


def check(address: str, acknowledged: set[bytes]) -> None:
    """Every acknowledged message is there, and nothing is there twice."""
    found = [record for queue in range(QUEUES) for record in read_queue(address, TOPIC, queue)]
    bodies = {record.body for record in found}
    assert acknowledged <= bodies, f"{len(acknowledged - bodies)} of {len(acknowledged)} are lost"
    assert len(found) == len(bodies), "nothing is there twice"


def slaves_in_sync(address: str) -> int:
    """The number of slaves that the master waits for and that have everything."""
    with BlockingConnection(address, PATIENCE_S) as connection:
        return decode_body(HARuntimeInfo, connection.invoke(RequestCode.GET_BROKER_HA_STATUS).body).in_sync_slave_nums


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
            check(cluster.broker_addresses[0], acknowledged)
            if number + 1 < ROUNDS:
                cluster.empty_slave()
                cluster.start_slave()


@pytest.mark.parametrize("seed", [1, 2])
def test_of_two_slaves_the_one_that_reports_last_may_be_promoted(seed: int) -> None:
    """One slave is frozen for a moment, as by a busy disk; the master is killed in this moment, and it is promoted."""
    acknowledged: set[bytes] = set()
    rng = random.Random(seed)
    with ProcessCluster(slaves=2, broker_keys=KEYS) as cluster:
        address = cluster.broker_addresses[0]
        load = Load(address, seed, acknowledged)
        load.enough()
        wait_for(lambda: slaves_in_sync(address) == 2, "both slaves are in sync under load")
        load.enough()
        late = rng.choice([1, 2])
        pid = cluster.slaves[0, late].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        block_for(rng.uniform(0.2, 1.0))
        load.end(lambda: cluster.kill_broker(0))
        cluster.kill_slave(0, 3 - late)
        os.kill(pid, signal.SIGCONT)
        cluster.promote_slave(0, late)
        check(cluster.broker_addresses[0], acknowledged)
