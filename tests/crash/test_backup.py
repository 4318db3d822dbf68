"""A copy of a running store, made as docs/backup.md says, has every message that was acknowledged before the copy."""

from __future__ import annotations

import re
import subprocess
import threading
from pathlib import Path

import pytest
from tests.crash.loading import JOIN_S, send
from tests.crash.reading import read_queue
from tests.helpers.waiting import wait_for

from cometmq.remoting.blocking import BlockingConnection
from cometmq.testing import ProcessCluster

pytestmark = pytest.mark.crash

TOPIC = "BackedUp"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "backup.md"
KEYS = {"mappedFileSizeCommitLog": str(1 << 20), "mappedFileSizeConsumeQueue": "20000"}


def copy_as_the_page_says(store: Path, backup: Path) -> None:
    """Run the commands between the markers of the page, with its directories replaced."""
    page = PAGE.read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- not run: the crash tests run it under load -->\n```console\n(.*?)```", page, re.DOTALL)
    for line in block.splitlines():
        command = line.removeprefix("$ ").replace("/var/lib/cometmq/store", str(store)).replace("/backup", str(backup))
        subprocess.run(command, shell=True, check=True, timeout=60)


def test_a_copy_of_a_running_store_loses_nothing_from_before_it(tmp_path: Path) -> None:
    acknowledged: list[bytes] = []
    stop = threading.Event()

    def load(address: str) -> None:
        with BlockingConnection(address, 60) as connection:
            while not stop.is_set():
                body = b"%d:" % len(acknowledged) + b"x" * 4_000
                send(connection, TOPIC, body, "")
                acknowledged.append(body)

    with ProcessCluster(broker_keys=KEYS) as cluster:
        loading = threading.Thread(target=load, args=(cluster.broker_addresses[0],))
        loading.start()
        try:
            wait_for(lambda: len(acknowledged) > 400, "messages before the copy")
            before = len(acknowledged)
            copy_as_the_page_says(cluster.store_root(0), tmp_path / "backup")
            wait_for(lambda: len(acknowledged) > before + 100, "messages after it")
        finally:
            stop.set()
            loading.join(JOIN_S)
    with ProcessCluster(data=tmp_path / "restored") as target:
        root = target.store_root(0)
        target.stop()
        subprocess.run(["rm", "-rf", str(root)], check=True)
        (tmp_path / "backup" / "store").rename(root)
        target.start()
        found = [record.body for record in read_queue(target.broker_addresses[0], TOPIC)]
    assert found[:before] == acknowledged[:before]
    assert found == acknowledged[: len(found)], "what came while it was copied is there without a gap, or not at all"
