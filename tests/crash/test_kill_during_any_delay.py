"""SIGKILL while messages wait for their time, come and are taken back: none is lost, none comes twice or after all."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.crash import loading
from tests.crash.reading import follow_queue, read_queue
from tests.helpers.pace import Patience

from cometmq.remoting.admin_bodies import TimerMetrics
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.bodies import decode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import RecallMessageRequestHeader
from cometmq.testing import ProcessCluster

pytestmark = pytest.mark.crash

TOPIC = "CrashAnyDelay"
WRITERS = 3
ROUNDS = 3
DELAYS_MS = (1, 200, 1_500)
"""Most are due while the load runs, some while the broker is down, the others after its start."""
FENCE = b"the last one"
SETTLED_S = 60.0


class Ledger:
    """The answers to producers; one for all threads."""

    def __init__(self) -> None:
        self.acknowledged: set[bytes] = set()
        self.recalled: set[bytes] = set()
        self.in_doubt: set[bytes] = set()
        """Asked to be taken back, but not answered before the kill."""


def send(connection: BlockingConnection, body: bytes, delay_ms: int) -> str | None:
    """Send one message; what takes it back, if it waits."""
    key = body.decode().replace(" ", "-")
    return loading.send(connection, TOPIC, body, f"UNIQ_KEY\x01{key}\x02TIMER_DELAY_MS\x01{delay_ms}\x02").recall_handle


def load(address: str, seed: int, ledger: Ledger) -> None:
    """Send, and take back what was sent a while ago, until the broker is gone."""
    rng = random.Random(seed)
    handles: list[tuple[bytes, str]] = []
    try:
        with BlockingConnection(address, 60) as connection:
            for count in range(1_000_000):
                body = b"%d/%d" % (seed, count)
                handle = send(connection, body, rng.randint(1, rng.choice(DELAYS_MS)))
                ledger.acknowledged.add(body)
                if handle is not None and rng.random() < 0.5:
                    handles.append((body, handle))
                if len(handles) > 20:
                    take_back(connection, *handles.pop(rng.randrange(20)), ledger)
    except BlockingConnectionError:
        return


def take_back(connection: BlockingConnection, body: bytes, handle: str, ledger: Ledger) -> None:
    ledger.in_doubt.add(body)
    answer = connection.invoke(RequestCode.RECALL_MESSAGE, RecallMessageRequestHeader(TOPIC, handle))
    ledger.in_doubt.remove(body)
    if answer.code == 0:
        ledger.recalled.add(body)
    else:
        assert answer.code == ResponseCode.ILLEGAL_OPERATION, answer.remark  # too late: it comes


def settle(address: str) -> None:
    """Wait until nothing waits any more: the last one has come, and the broker counts none."""
    with BlockingConnection(address, 60) as connection:
        send(connection, FENCE, max(DELAYS_MS) + 1)
        assert any(record.body == FENCE for record in follow_queue(address, TOPIC, wait_s=SETTLED_S))
        patience = Patience(SETTLED_S)
        while TOPIC in decode_body(TimerMetrics, connection.invoke(RequestCode.GET_TIMER_METRICS).body).timing_count:
            assert not patience.is_over, "messages wait that are due"


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_waited_at_a_kill_comes_once_and_what_was_taken_back_never(flush: str) -> None:
    rng = random.Random(7)
    ledger = Ledger()
    keys = {"flushDiskType": flush, "mappedFileSizeCommitLog": str(1 << 20), "mappedFileSizeConsumeQueue": "20000"}
    with ProcessCluster(broker_keys=keys) as cluster:
        address = cluster.broker_addresses[0]
        for number in range(ROUNDS):
            seeds = range(number * WRITERS, (number + 1) * WRITERS)
            loading.kill_under_load(cluster, lambda seed: load(address, seed, ledger), seeds, rng.uniform(1.0, 2.0))
        settle(address)
        delivered = Counter(record.body for record in read_queue(address, TOPIC))
    assert ledger.recalled, "nothing was taken back before the kill"
    assert not ledger.recalled & delivered.keys()
    assert ledger.acknowledged - ledger.recalled - ledger.in_doubt <= delivered.keys()
    assert max(delivered.values()) == 1, "nothing comes twice"
