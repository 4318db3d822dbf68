"""A backup of a broker under load, also of one that is killed meanwhile, has all that was acknowledged before it."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from tests.crash.loading import JOIN_S, send
from tests.crash.reading import read_queue
from tests.helpers.waiting import wait_for

from cometmq.backup.create import Options, create_backup
from cometmq.backup.directory import DirectoryBackup
from cometmq.backup.verify import restore_backup
from cometmq.remoting.blocking import BlockingConnection
from cometmq.testing import ProcessCluster

pytestmark = pytest.mark.crash

TOPIC = "BackedUp"
KEYS = {"mappedFileSizeCommitLog": str(1 << 20), "mappedFileSizeConsumeQueue": "20000"}


@pytest.mark.parametrize("killed_at", [None, "consumequeue", "commitlog"])
def test_a_backup_of_a_running_broker_loses_nothing_from_before_it(tmp_path: Path, killed_at: str | None) -> None:
    acknowledged: list[bytes] = []
    stop = threading.Event()

    def load(address: str) -> None:
        with BlockingConnection(address, 60) as connection:
            while not stop.is_set():
                body = b"%d:" % len(acknowledged) + b"x" * 4_000
                try:
                    send(connection, TOPIC, body, "")
                except Exception:
                    if killed_at is None:
                        raise
                    return
                acknowledged.append(body)

    with ProcessCluster(broker_keys=KEYS) as cluster:
        loading = threading.Thread(target=load, args=(cluster.broker_addresses[0],))
        loading.start()

        def kill_at(part: str) -> None:
            if part == killed_at:
                cluster.kill_broker(0)

        try:
            wait_for(lambda: len(acknowledged) > 700, "messages before the backup")
            before = len(acknowledged)
            create_backup(Options(cluster.store_root(0), DirectoryBackup(tmp_path / "backup")), report=kill_at)
            if killed_at is None:
                wait_for(lambda: len(acknowledged) > before + 100, "messages after it")
        finally:
            stop.set()
            loading.join(JOIN_S)
    with ProcessCluster(data=tmp_path / "restored") as target:
        root = target.store_root(0)
        target.stop()
        shutil.rmtree(root)
        restore_backup(DirectoryBackup(tmp_path / "backup"), root)
        target.start()
        found = [record.body for record in read_queue(target.broker_addresses[0], TOPIC)]
    assert found[:before] == acknowledged[:before]
    # the message that was under way at the kill is there or not
    assert found[: len(acknowledged)] == acknowledged[: len(found)], "without a gap"
    assert len(found) <= len(acknowledged) + 1
