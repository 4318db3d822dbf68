"""SIGKILL while delayed messages fall due and failed ones are handed back: nothing is lost, nothing comes twice."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest
from tests.crash import loading
from tests.crash.reading import read_queue
from tests.helpers.pace import Patience

from cometmq.message.ids import decode_offset_msg_id
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import ConsumerSendMsgBackRequestHeader
from cometmq.testing import ProcessCluster

pytestmark = pytest.mark.crash

ROUNDS = 3
GROUP = "crash_workers"
SETTLED_S = 60.0


def send(connection: BlockingConnection, topic: str, body: bytes, level: int) -> int:
    """Send one message; where it was stored in the log."""
    stored = loading.send(connection, topic, body, f"UNIQ_KEY\x01{body.decode()}\x02DELAY\x01{level}")
    return decode_offset_msg_id(stored.msg_id)[2]


def load_until_cut_off(
    cluster: ProcessCluster, address: str, seed: int, delayed: set[bytes], failed: set[bytes]
) -> None:
    """Send delayed messages, and others that are handed back at once; the broker is killed in the middle."""
    rng = random.Random(seed)
    end = time.monotonic() + rng.uniform(1.2, 2.2)  # past the first due messages
    with BlockingConnection(address, 60) as connection:
        try:
            for count in range(1_000_000):
                if time.monotonic() > end:
                    cluster.brokers[0].kill()
                body = b"%d-%d" % (seed, count)
                if count % 2:
                    send(connection, "CrashDelayed", body, 1)
                    delayed.add(body)
                else:
                    offset = send(connection, "CrashFailed", body, 0)
                    back = ConsumerSendMsgBackRequestHeader(offset=offset, group=GROUP, delay_level=1)
                    answer = connection.invoke(RequestCode.CONSUMER_SEND_MSG_BACK, back)
                    assert answer.code == 0, answer.remark
                    failed.add(body)
        except BlockingConnectionError:
            return


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_waited_at_a_kill_comes_once(flush: str) -> None:
    delayed: set[bytes] = set()
    failed: set[bytes] = set()
    keys = {"flushDiskType": flush, "mappedFileSizeCommitLog": str(1 << 20), "mappedFileSizeConsumeQueue": "20000"}
    with ProcessCluster(broker_keys=keys) as cluster:
        address = cluster.broker_addresses[0]
        for seed in range(ROUNDS):
            load_until_cut_off(cluster, address, seed, delayed, failed)
            cluster.brokers[0].start()
        patience = Patience(SETTLED_S)
        arrived: set[bytes] = set()
        while not delayed | failed <= arrived and not patience.is_over:
            retried = read_queue(address, f"%RETRY%{GROUP}")
            arrived = {record.body for record in [*read_queue(address, "CrashDelayed"), *retried]}
        delivered = Counter(record.body for record in read_queue(address, "CrashDelayed"))
    assert delayed, "nothing was sent before the kill"
    assert delayed <= set(delivered)
    assert max(delivered.values()) == 1
    again = Counter(record.body for record in retried)
    assert failed <= set(again)
    assert max(again.values()) == 1
    assert {record.reconsume_times for record in retried} == {1}
