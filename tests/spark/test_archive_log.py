"""The commit log of an archive: whole commits, no overlap, one writer, vacuum. No Spark, no broker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.clock import VirtualClock
from cometmq.spark.archive_log import ArchiveLog, Covered, DataFile, QueueTotals, part_path
from cometmq.spark.errors import ArchiveError
from cometmq.spark.queues import Queue

ORDERS = Queue("orders", "broker-a", 0)
OTHER = Queue("orders", "broker-a", 1)


@pytest.fixture
def log(tmp_path: Path) -> ArchiveLog:
    return ArchiveLog(tmp_path / "lake", clock=VirtualClock(start_ms=1000))


def written(log: ArchiveLog, queue: Queue, first: int, end: int, rows: int | None = None) -> DataFile:
    """A file as an executor leaves it."""
    path = part_path(queue, "2024-01-01-00", first, end)
    place = log.root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"PAR1")
    count = end - first if rows is None else rows
    return DataFile(path, *queue, first, end, count, 4, 0, 0, 0)


def cover(queue: Queue, first: int, end: int) -> Covered:
    return Covered(queue.topic, queue.broker, queue.queue_id, first, end)


def add(log: ArchiveLog, batch: int, queue: Queue, first: int, end: int, query: str = "q") -> bool:
    file = written(log, queue, first, end)
    return log.append(query, batch, [cover(queue, first, end)], [file]) is not None


def test_commits_add_up(log: ArchiveLog) -> None:
    assert log.last() is None
    assert add(log, 0, ORDERS, 5, 10)
    assert add(log, 1, OTHER, 0, 3)
    assert add(log, 2, ORDERS, 10, 11)
    assert log.queues() == [QueueTotals(*ORDERS, 5, 11, 6), QueueTotals(*OTHER, 0, 3, 3)]
    assert log.next_offsets() == {ORDERS: 11, OTHER: 3}
    assert [file.path for file in log.files()] == [
        "topic=orders/hour=2024-01-01-00/part-broker-a-0-00000000000000000005-00000000000000000010.parquet",
        "topic=orders/hour=2024-01-01-00/part-broker-a-1-00000000000000000000-00000000000000000003.parquet",
        "topic=orders/hour=2024-01-01-00/part-broker-a-0-00000000000000000010-00000000000000000011.parquet",
    ]
    last = log.last()
    assert last is not None
    assert (last.sequence, last.batch_id, last.committed_ms) == (2, 2, 1000)


def test_a_batch_is_committed_once(log: ArchiveLog) -> None:
    assert add(log, 0, ORDERS, 0, 10)
    assert log.holds("q", 0)
    assert not add(log, 0, ORDERS, 0, 10)
    assert log.queues() == [QueueTotals(*ORDERS, 0, 10, 10)]


def test_what_is_archived_cannot_be_added_by_another_query(log: ArchiveLog) -> None:
    add(log, 0, ORDERS, 0, 10)
    with pytest.raises(ArchiveError, match="archived up to offset 10, and this batch would add it again from 9"):
        add(log, 0, ORDERS, 9, 12, query="another")
    assert log.sequences() == [0]


def test_pieces_of_a_queue_are_one_range(log: ArchiveLog) -> None:
    files = [written(log, ORDERS, 0, 5), written(log, ORDERS, 5, 9)]
    commit = log.append("q", 0, [cover(ORDERS, 5, 9), cover(ORDERS, 0, 5)], files)
    assert commit is not None
    assert commit.covered == [cover(ORDERS, 0, 9)]
    assert commit.gaps == []


def test_what_was_skipped_is_remembered(log: ArchiveLog) -> None:
    add(log, 0, ORDERS, 0, 5)
    files = [written(log, ORDERS, 8, 10)]
    commit = log.append("q", 1, [cover(ORDERS, 8, 12)], files, [cover(ORDERS, 10, 12)])
    assert commit is not None
    assert commit.gaps == ["orders@broker-a:0 [5, 8)", "orders@broker-a:0 [10, 12)"]


def test_a_file_that_the_driver_cannot_see_is_refused(log: ArchiveLog) -> None:
    file = written(log, ORDERS, 0, 5)
    (log.root / file.path).unlink()
    with pytest.raises(ArchiveError, match="must be the same for driver and executors"):
        log.append("q", 0, [cover(ORDERS, 0, 5)], [file])


def test_a_commit_that_did_not_get_its_name_is_none(log: ArchiveLog, monkeypatch: pytest.MonkeyPatch) -> None:
    add(log, 0, ORDERS, 0, 5)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        add(log, 1, ORDERS, 5, 9)
    monkeypatch.undo()
    assert log.sequences() == [0]
    assert add(log, 1, ORDERS, 5, 9)


def test_a_damaged_commit_is_named(log: ArchiveLog) -> None:
    add(log, 0, ORDERS, 0, 5)
    (log.root / "_commits" / f"{0:020d}.json").write_text("{")
    with pytest.raises(ArchiveError, match=r"00000000000000000000\.json is damaged"):
        log.last()


def test_vacuum_removes_only_what_no_commit_names(log: ArchiveLog) -> None:
    add(log, 0, ORDERS, 0, 5)
    orphan = written(log, ORDERS, 5, 6)
    aside = log.root / "topic=orders/hour=2024-01-01-00/.abc.tmp"
    aside.write_bytes(b"")
    expected = sorted([str(aside.relative_to(log.root)), orphan.path])
    assert log.vacuum(dry_run=True) == expected
    assert (log.root / orphan.path).exists()
    assert log.vacuum() == expected
    assert log.vacuum() == []
    assert (log.root / log.files()[0].path).exists()


def test_names_of_topics_and_brokers_never_become_paths(log: ArchiveLog) -> None:
    path = part_path(Queue("../%DLQ%x", "../b/c", 0), "h", 0, 1)
    assert path.count("/") == 2
    assert ".." + os.sep not in path.split("part-")[1]


def test_one_writer_at_a_time_and_a_killed_one_leaves_no_lock(log: ArchiveLog) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\nfrom cometmq.spark.archive_log import ArchiveLog\n"
            f"with ArchiveLog({str(log.root)!r}).locked():\n    print('held', flush=True)\n    sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ArchiveError, match="another job is writing"), log.locked():
            pass
        holder.kill()
        holder.wait()
        with log.locked():
            pass
    finally:
        holder.kill()
        holder.communicate()
