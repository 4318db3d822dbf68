"""benchmarks/scale/archived.py writes a log whose every message is read, and knows the keys of some."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from benchmarks.scale.archived import FOUND, QUEUES, TOPIC, Log
from tests.spark.store_files import rows_of

MESSAGES = 3000


def test_every_message_of_the_log_is_read_in_the_order_of_its_queue(tmp_path: Path) -> None:
    log = Log(MESSAGES, 1 << 18)
    (tmp_path / "commitlog").mkdir()
    for number in range(log.files):
        log.write(tmp_path / "commitlog", number)
    assert log.files > 1
    rows = rows_of(tmp_path, brokerName="b")
    assert [(topic, queue_id, offset) for topic, queue_id, offset, _ in rows] == [
        (TOPIC, number % QUEUES, number // QUEUES) for number in range(MESSAGES)
    ]
    assert len({digest for *_, digest in rows}) == MESSAGES


def test_the_keys_that_are_looked_up_are_in_the_log(tmp_path: Path) -> None:
    log = Log(MESSAGES, 1 << 30)
    log.write(tmp_path, 0)
    [file] = tmp_path.iterdir()
    found = Counter(file.read_bytes().count(f"KEYS\x01{key}\x02".encode()) for key in log.keys)
    assert found == {1: FOUND}
