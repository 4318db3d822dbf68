"""A cluster with several nameservers, as the blocking client sees it."""

from __future__ import annotations

from cometmq.client.blocking.cluster import BlockingCluster, ClusterOptions
from cometmq.client.sync import SyncAdmin
from cometmq.testing import SyncCluster


def test_a_topic_is_found_that_the_first_nameserver_does_not_know() -> None:
    with SyncCluster() as other, SyncCluster() as known:
        with SyncAdmin(known.namesrv_address) as admin:
            admin.create_topic("T", queues=2)
        cluster = BlockingCluster(ClusterOptions((other.namesrv_address, known.namesrv_address), topics=("T", "none")))
        assert [queue.queue_id for queue in cluster.queues()] == [0, 1]
        assert cluster.route("none") is None
