"""What a task holds does not grow with the topic, and stays below the limit that is stated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.task_memory import BODY_BYTES
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from cometmq.limits import SPARK_TASK_BYTES

LARGE = 30_000
"""Messages of each queue of the large topic; with two queues 250 MB."""
QUEUES = 2
TOPIC_BYTES = LARGE * QUEUES * BODY_BYTES
MARGIN_BYTES = 96 << 20
"""Of ten times the messages over the small topic, whose buffers are not full yet."""


@pytest.fixture(scope="module")
def large_topic(topics: Topics) -> str:
    """A topic that is much larger than a task may be."""
    topic = topics.create(QUEUES)
    body = bytes(range(256)) * (BODY_BYTES // 256)
    for queue_id in range(QUEUES):
        topics.send(topic, queue_id, [body] * LARGE)
    return topic


def peak(kind: str, topics: Topics, topic: str, rows: int, place: Path) -> int:
    """Peak memory of a task, bytes."""
    command = [sys.executable, "-m", "tests.spark.task_memory", kind, topics.namesrv, topic, str(rows), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["read", "archive", "sink"])
def test_a_task_needs_no_more_for_ten_times_the_messages(
    topics: Topics, large_topic: str, kind: str, tmp_path: Path
) -> None:
    topic = topics.create(QUEUES) if kind == "sink" else large_topic
    small = peak(kind, topics, topic, LARGE // 10, tmp_path / "small")
    large = peak(kind, topics, topic, LARGE, tmp_path / "large")
    assert large < small + MARGIN_BYTES < small + TOPIC_BYTES // 2
    assert large < SPARK_TASK_BYTES
