"""The test kit reads beyond retention from a local directory."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.broker.archived.archiving import archive_store, delete_log_files, is_readable
from tests.helpers.waiting import until

from cometmq.client import Message
from cometmq.testing import Cluster

COUNT = 500


async def test_a_consumer_of_the_kit_gets_archived_messages(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    keys = {"mappedFileSizeCommitLog": "262144", "maxMessageSize": "65536", "archive.read": str(lake)}
    bodies = [b"%06d" % number * 200 for number in range(COUNT)]
    async with Cluster(data=tmp_path, broker_keys=keys) as cluster:
        await cluster.create_topic("orders")
        await asyncio.gather(*(cluster.send(Message("orders", body)) for body in bodies))
        archive_store(cluster.store_root(0), lake, broker_name="broker-0")
        await until(lambda: delete_log_files(cluster.broker(0)))
        await until(lambda: all(cluster.broker(0).store.extent("orders", queue_id)[0] for queue_id in range(4)))
        await cluster.stop_broker(0)
        await cluster.start_broker(0)
        await until(lambda: is_readable(cluster.broker(0)))
        async with cluster.inbox("orders") as inbox:
            await inbox.expect(COUNT)
        assert sorted(message.body for message in inbox.messages) == sorted(bodies)
