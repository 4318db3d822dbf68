"""SIGKILL of the archive reader and of its broker, while a consumer reads what only the archive has."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.broker.archived.archiving import archive_store, delete_log_files
from tests.crash.reading import read_queue
from tests.helpers.waiting import process_runs, until, wait_for

from cometmq.client import Message
from cometmq.message.record import StoredRecord
from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import GetMinOffsetRequestHeader, GetMinOffsetResponseHeader
from cometmq.testing import Cluster, ProcessCluster

pytestmark = pytest.mark.crash

TOPIC = "Kept"
COUNT = 2_000
SMALL_LOG = {"mappedFileSizeCommitLog": "1048576", "maxMessageSize": "65536"}


async def make_archived_store(data: Path, lake: Path) -> list[bytes]:
    """A store that has lost the first messages of a topic, and an archive that has them; return all bodies."""
    bodies = [b"%06d" % number * 256 for number in range(COUNT)]
    async with Cluster(data=data, broker_keys=SMALL_LOG) as cluster:
        await cluster.create_topic(TOPIC, queues=1)
        await asyncio.gather(*(cluster.send(Message(TOPIC, body)) for body in bodies))
        archive_store(cluster.store_root(0), lake, broker_name="broker-0")
        await until(lambda: delete_log_files(cluster.broker(0)))
        await until(lambda: cluster.broker(0).store.extent(TOPIC, 0)[0])
    return bodies


def min_offset(address: str) -> int:
    with BlockingConnection(address, 30.0) as connection:
        answer = connection.invoke(RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(topic=TOPIC, queue_id=0))
        offset: int = answer.header(GetMinOffsetResponseHeader).offset
        return offset


def readers_of(pid: int | None) -> list[int]:
    """The archive readers that a broker has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            command = path.with_name("cmdline").read_bytes()
        except OSError:
            continue  # ended meanwhile
        if parent == pid and b"cometmq.tier" in command:
            found.append(int(path.parent.name))
    return found


async def test_a_consumer_reads_everything_once_over_kills_of_reader_and_broker(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    bodies = sorted(await make_archived_store(tmp_path, lake))
    await asyncio.to_thread(demand_everything_over_kills, tmp_path, lake, bodies)


def demand_everything_over_kills(data: Path, lake: Path, bodies: list[bytes]) -> None:
    with ProcessCluster(data=data, broker_keys={**SMALL_LOG, "archive.read": str(lake)}) as cluster:
        (address,) = cluster.broker_addresses

        def is_read() -> bool:
            return min_offset(address) == 0

        wait_for(is_read, "the archive is read", 60)
        (reader,) = readers_of(cluster.brokers[0].pid)
        os.kill(reader, signal.SIGKILL)  # the pulls wait for its successor
        demand_all(read_queue(address, TOPIC), bodies)

        (successor,) = readers_of(cluster.brokers[0].pid)
        cluster.kill_broker(0)
        wait_for(lambda: not process_runs(successor), "the reader ends with its broker", 30)
        cluster.start_broker(0)
        wait_for(is_read, "the archive is read", 60)
        demand_all(read_queue(address, TOPIC), bodies)


def demand_all(got: list[StoredRecord], bodies: list[bytes]) -> None:
    assert [record.queue_offset for record in got] == list(range(COUNT))
    assert sorted(record.body for record in got) == bodies
