"""What a worker of the sink does only once: it imports little, and it keeps memory for the next batches."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.spark.sinking import rows_of

import cometmq.spark.records.worker_memory as worker_memory
import cometmq.spark.sink.writer as writer
from cometmq.spark.sink.encoding import TaskIdentity
from cometmq.spark.sink.options import parse_sink_options
from cometmq.spark.sink.writer import RocketMQStreamWriter, RocketMQWriter, SinkPlan

_ENCODE = """
import sys
import pyarrow as pa
from cometmq.spark.records.queues import Queue
from cometmq.spark.sink.encoding import TaskIdentity, encode_rows
from cometmq.spark.sink.options import parse_sink_options
from cometmq.spark.sink.placing import Placing, Routes, WriteRoute
import cometmq.spark.sink.delivery, cometmq.spark.sink.writer

options = parse_sink_options({"namesrvAddr": "127.0.0.1:1", "topic": "T"})
routes = Routes(options, {"T": WriteRoute((Queue("T", "b", 0),), {"b": "127.0.0.1:1"})})
batch = pa.ipc.open_stream(sys.stdin.buffer.read()).read_next_batch()
chunks = Placing(options, routes, 0).chunks(encode_rows(batch, 0, TaskIdentity("job", 0, 0), options))
print(sum(map(len, chunks)), "pandas" in sys.modules)
"""


@pytest.mark.parametrize("tags", ["a", None])
def test_a_workers_first_batch_does_not_import_pandas(tags: str | None) -> None:
    pytest.importorskip("pandas")
    batch = rows_of([{"body": b"x", "tags": "a", "keys": "k"}, {"body": b"y", "tags": tags, "keys": "k"}])
    given = pa.BufferOutputStream()
    with pa.ipc.new_stream(given, batch.schema) as stream:
        stream.write_batch(batch)
    done = subprocess.run(
        [sys.executable, "-c", _ENCODE], input=given.getvalue().to_pybytes(), capture_output=True, check=True
    )
    assert done.stdout == b"2 False\n"


@pytest.mark.parametrize("kind", [RocketMQWriter, RocketMQStreamWriter])
def test_a_task_keeps_memory_and_ends_with_a_last_search(
    monkeypatch: pytest.MonkeyPatch, kind: Callable[[SinkPlan], Any]
) -> None:
    done: list[object] = []
    monkeypatch.setattr(worker_memory, "keep_freed_memory", lambda: done.append("kept"))
    monkeypatch.setattr(worker_memory, "freeze_modules", lambda: done.append("left out"))
    monkeypatch.setattr(writer, "task_identity", lambda *_, **__: TaskIdentity("job", 0, 0))
    monkeypatch.setattr(writer, "task_attempt", lambda: 0)

    def rows() -> Iterator[pa.RecordBatch]:
        done.append("rows")
        yield from ()

    plan = SinkPlan(parse_sink_options({"namesrvAddr": "127.0.0.1:1", "topic": "T"}), "job")
    kind(plan).write(rows())
    assert done == ["kept", "rows", "left out"]
