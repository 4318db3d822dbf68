"""A write to a CometMQ broker that is busy for a while: the job waits, and every row is there once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.spark.sinking import stored
from tests.spark.topics import Topics

from cometmq.broker.limits import MAX_UNFLUSHED_TOTAL_BYTES
from cometmq.broker.turn.waiters import SendWaiters
from cometmq.remoting.server_connection import ServerConnection
from cometmq.testing import SyncCluster

pytestmark = pytest.mark.spark
REFUSED = 5


@pytest.fixture(scope="module")
def broker() -> Iterator[Topics]:
    """One whose sends wait for the disk, of which it bears so many."""
    with SyncCluster(broker_keys={"flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": "200000"}) as cluster:
        topics = Topics(cluster.namesrv_address, cluster.run(lambda cluster: cluster.broker(0).address))
        topics.broker_name = "broker-0"
        yield topics


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[ServerConnection]:
    """The sends that it refuses: all of them, until they are so many."""
    limit = "cometmq.broker.turn.waiters.MAX_UNFLUSHED_TOTAL_BYTES"
    found: list[ServerConnection] = []
    full = SendWaiters.full

    def counted(waiters: SendWaiters, connection: ServerConnection) -> bool:
        if not full(waiters, connection):
            return False
        found.append(connection)
        if len(found) == REFUSED:
            monkeypatch.setattr(limit, MAX_UNFLUSHED_TOTAL_BYTES)
        return True

    monkeypatch.setattr(limit, 0)
    monkeypatch.setattr(SendWaiters, "full", counted)
    return found


@pytest.mark.parametrize("guarantee", ["at-least-once", "effectively-once", "exactly-once"])
def test_a_write_waits_for_a_busy_broker(
    spark: Any, broker: Topics, refused: list[ServerConnection], guarantee: str
) -> None:
    topic = broker.create(queues=4)
    options = {"namesrvAddr": broker.namesrv, "topic": topic, "deliveryGuarantee": guarantee, "maxBatchBytes": 50_000}
    rows = spark.range(0, 6000, numPartitions=2).selectExpr("lpad(string(id), 100, '0') AS value")
    rows.write.format("rocketmq").options(**options).mode("append").save()
    assert len(refused) == REFUSED
    assert sorted(int(of.body) for records in stored(broker, topic, 4) for of in records) == list(range(6000))
