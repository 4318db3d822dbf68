"""SIGKILL while transactions begin and end: what was answered stays so, every message is delivered once at most."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.crash import loading
from tests.crash.reading import read_queue

from cometmq.message.ids import decode_offset_msg_id
from cometmq.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import EndTransactionRequestHeader
from cometmq.testing import ProcessCluster

pytestmark = pytest.mark.crash

TOPIC = "KilledTransactions"
GROUP = "killed"
WRITERS = 4
ROUNDS = 3


class Ledger:
    """The requests of producers and their answers; one for all threads."""

    def __init__(self) -> None:
        self.halves: dict[bytes, EndTransactionRequestHeader] = {}
        """Body → how to commit it; of every half message that was answered."""
        self.ended: dict[bytes, int] = {}
        self.in_doubt: dict[bytes, int] = {}
        """Asked for, but not answered before the kill."""


def transact(address: str, seed: int, ledger: Ledger) -> None:
    """Begin transactions; commit, roll back or leave open, until the broker is gone."""
    rng = random.Random(seed)
    try:
        with BlockingConnection(address, 60) as connection:
            for count in range(1_000_000):
                body = b"%d/%d" % (seed, count)
                end = begin(connection, body)
                ledger.halves[body] = end
                how = rng.choice([TRANSACTION_COMMIT, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, 0])
                if how:
                    ledger.in_doubt[body] = how
                    assert connection.invoke(RequestCode.END_TRANSACTION, ending(end, how)).code == 0
                    ledger.ended[body] = ledger.in_doubt.pop(body)
    except BlockingConnectionError:
        return


def begin(connection: BlockingConnection, body: bytes) -> EndTransactionRequestHeader:
    properties = f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02UNIQ_KEY\x01{body.decode()}\x02"
    stored = loading.send(connection, TOPIC, body, properties, group=GROUP)
    return EndTransactionRequestHeader(
        producer_group=GROUP,
        tran_state_table_offset=stored.queue_offset,
        commit_log_offset=decode_offset_msg_id(stored.msg_id)[2],
        commit_or_rollback=TRANSACTION_COMMIT,
        msg_id=body.decode(),
    )


def ending(end: EndTransactionRequestHeader, how: int) -> EndTransactionRequestHeader:
    return EndTransactionRequestHeader(
        end.producer_group, end.tran_state_table_offset, end.commit_log_offset, how, end.msg_id
    )


def read_all(address: str) -> list[bytes]:
    return [record.body for record in read_queue(address, TOPIC)]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_transactions_survive_kills(flush: str) -> None:
    rng = random.Random(11)
    ledger = Ledger()
    keys = {
        "flushDiskType": flush,
        "mappedFileSizeCommitLog": str(1 << 20),
        "transactionTimeOut": "0",
        "transactionCheckInterval": "100",
        "transactionCheckMax": "1000000",
    }
    with ProcessCluster(broker_keys=keys) as cluster:
        address = cluster.broker_addresses[0]
        for number in range(ROUNDS):
            seeds = range(number * WRITERS, (number + 1) * WRITERS)
            loading.kill_under_load(cluster, lambda seed: transact(address, seed, ledger), seeds, rng.uniform(0.5, 1.2))
        before = Counter(read_all(address))
        with BlockingConnection(address, 60) as connection:
            for _ in range(2):
                for end in ledger.halves.values():
                    assert connection.invoke(RequestCode.END_TRANSACTION, end).code == 0
        after = Counter(read_all(address))
    assert ledger.ended, "nothing was ended before the kill"
    committed = {body for body, how in ledger.ended.items() if how == TRANSACTION_COMMIT}
    rolled_back = {body for body, how in ledger.ended.items() if how == TRANSACTION_ROLLBACK}
    assert committed <= before.keys() <= committed | ledger.in_doubt.keys()
    assert max(after.values()) == 1, "nothing is delivered twice"
    assert not rolled_back & after.keys()
    left = ledger.halves.keys() - committed - rolled_back
    doubtful = {body for body, how in ledger.in_doubt.items() if how == TRANSACTION_ROLLBACK}
    assert left - doubtful <= after.keys(), "what was open can still be committed"
