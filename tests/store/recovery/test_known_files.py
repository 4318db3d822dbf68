"""A start looks at the queue files that were changed since the clean stop before, and at no others."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.store.conftest import StoreBench, fill, put, served

from cometmq.store.message_store import MessageStore
from cometmq.store.recovery import load, queue_recovery
from cometmq.store.recovery.known_files import KnownFiles

TOPICS = [f"Topic{number}" for number in range(20)]
MESSAGES = 330  # two files for each of three queues


@pytest.fixture(autouse=True)
def every_stop_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the file system's clock although there are few topics."""
    monkeypatch.setattr("cometmq.store.recovery.known_files._MANY_TOPICS", 1)


class FileClock:
    """The clock with which the times of files are compared."""

    def __init__(self) -> None:
        self.fixed_ns: int | None = None
        self.ahead_s = 0.0
        self.sleep = time.sleep

    def time_ns(self) -> int:
        """The system's time, or a fixed one, and what the clock is ahead of it."""
        now = time.time_ns() if self.fixed_ns is None else self.fixed_ns
        return now + int(self.ahead_s * 1e9)


@pytest.fixture
def file_clock(monkeypatch: pytest.MonkeyPatch) -> FileClock:
    moved = FileClock()
    monkeypatch.setattr("cometmq.store.recovery.known_files.time", moved)
    return moved


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The topics whose files were listed."""
    names: set[str] = set()
    queue_files = load.queue_files

    def noted(directory: str, file_size: int, findings: object) -> list[int]:
        names.add(Path(directory).parent.name)
        return queue_files(directory, file_size, findings)  # type: ignore[arg-type]

    monkeypatch.setattr(queue_recovery, "queue_files", noted)
    return names


def write(store: MessageStore) -> None:
    for topic in TOPICS:
        fill(store, MESSAGES, topic=topic)


def known_file(bench: StoreBench) -> Path:
    return bench.root / "comet" / "queueFiles.json"


def of_topic(bench: StoreBench, topic: str) -> Path:
    return bench.root / "consumequeue" / topic / "0"


def test_after_a_clean_stop_no_queue_is_looked_at(bench: StoreBench, looked: set[str]) -> None:
    store = bench.open()
    write(store)
    expected = served(store)
    store.close_now()
    again = bench.open()
    assert looked == set()
    assert again.findings == []
    assert served(again) == expected
    assert all(len(queue.files) > 0 for queues in again.queues().values() for queue in queues.values())


def kill(store: MessageStore) -> None:
    """A killed process leaves its files as they are, and the lock is free."""
    store._maintenance._opened.lock.release()


def checkpoint(store: MessageStore) -> None:
    store._flush.flush_now()
    store._maintenance.write_derived()
    store._maintenance.checkpoints.save_now()


@pytest.fixture
def killed(bench: StoreBench, looked: set[str]) -> Iterator[Callable[[MessageStore], MessageStore]]:
    """Kills a store and opens it again."""
    opened: list[MessageStore] = []

    def again(store: MessageStore) -> MessageStore:
        kill(store)
        looked.clear()
        opened.append(MessageStore.open(bench.config))
        return opened[-1]

    yield again
    for store in opened:
        store.close_now()


def test_only_the_topics_that_got_messages_before_a_crash_are_looked_at(
    bench: StoreBench, looked: set[str], killed: Callable[[MessageStore], MessageStore]
) -> None:
    store = bench.open()
    write(store)
    store.close_now()
    store = bench.open()
    fill(store, 7, topic="Topic3", start=500)
    put(store, "New", 0, b"of a new topic")
    store.batch.commit()
    store._maintenance.write_derived()
    expected = served(store)
    again = killed(store)
    assert looked == {"Topic3", "New"}
    assert served(again) == expected


def test_a_crash_some_time_after_a_checkpoint_lets_no_queue_be_looked_at(
    bench: StoreBench, looked: set[str], killed: Callable[[MessageStore], MessageStore], file_clock: FileClock
) -> None:
    store = bench.open()
    write(store)
    store._maintenance.write_derived()
    file_clock.ahead_s = 0.03  # more than a tick of the file system's clock
    store._maintenance.checkpoints.save_now()
    expected = served(store)
    again = killed(store)
    assert looked == set()
    assert again.findings == ["abort: the store was not stopped cleanly; recovered from its log"]
    assert served(again) == expected


def test_a_topic_that_another_broker_made_anew_with_as_many_messages_has_only_these(
    bench: StoreBench, killed: Callable[[MessageStore], MessageStore]
) -> None:
    """Apache's broker notes nowhere that it deleted a topic."""
    store = bench.open()
    fill(store, 1, queues=1)
    store.close_now()
    store = bench.open()
    fill(store, 1, queues=1, start=1)
    store.delete_topic("TopicTest")
    fill(store, 1, queues=1, start=2)
    store._maintenance.write_derived()
    expected = served(store)
    assert len(expected["TopicTest", 0]) == 1
    assert served(killed(store)) == expected


def test_a_queue_with_units_behind_a_checkpoint_is_not_known(
    bench: StoreBench, looked: set[str], killed: Callable[[MessageStore], MessageStore], file_clock: FileClock
) -> None:
    store = bench.open()
    write(store)
    store._maintenance.write_derived()
    checkpoints = store._maintenance.checkpoints
    moment = checkpoints._take_moment()
    fill(store, 3, topic="Topic3", start=500)
    store._maintenance.write_derived()  # as a block of a busy queue, while the thread flushes
    file_clock.ahead_s = 0.03
    checkpoints._save(checkpoints._snapshot(moment))
    expected = served(store)
    again = killed(store)
    assert looked == {"Topic3"}
    assert served(again) == expected


def test_after_a_power_cut_every_queue_is_looked_at(
    bench: StoreBench, looked: set[str], killed: Callable[[MessageStore], MessageStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.open()
    write(store)
    store.close_now()
    store = bench.open()
    monkeypatch.setattr("cometmq.store.recovery.known_files.boot_id", lambda: "another")
    killed(store)
    assert looked == set(TOPICS)


def test_a_reboot_after_a_clean_stop_changes_nothing(
    bench: StoreBench, looked: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.open()
    write(store)
    store.close_now()
    monkeypatch.setattr("cometmq.store.recovery.known_files.boot_id", lambda: "another")
    bench.open()
    assert looked == set()


def test_a_checkpoint_looks_at_the_topics_that_changed(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bench.open()
    write(store)
    checkpoint(store)
    seen: list[str] = []
    look = KnownFiles._check_topic

    def noted(files: KnownFiles, topic: str, *rest: Any) -> None:
        seen.append(topic)
        look(files, topic, *rest)

    monkeypatch.setattr(KnownFiles, "_check_topic", noted)
    store._maintenance._opened.known_files._young.clear()
    fill(store, 1, queues=1, topic="Topic7")
    checkpoint(store)
    assert seen == ["Topic7"]


def _zero_last_unit(directory: Path) -> None:
    path = max(directory.iterdir())
    data = path.read_bytes()
    end = len(data.rstrip(b"\0"))
    path.write_bytes(data[: end - 20].ljust(len(data), b"\0"))


def _garbage_behind(directory: Path) -> None:
    with max(directory.iterdir()).open("r+b") as file:
        file.seek(-20, os.SEEK_END)
        file.write(b"x" * 20)


def _cut_short(directory: Path) -> None:
    os.truncate(max(directory.iterdir()), 100)


def _cut_first_short(directory: Path) -> None:
    os.truncate(min(directory.iterdir()), 100)


def _older_bytes_in_first(directory: Path) -> None:
    """As a copy of an older file over it, with its length and the times that the newer one had."""
    path = min(directory.iterdir())
    content, stat = path.read_bytes(), path.stat()
    with path.open("r+b") as file:
        file.write(content[:200].ljust(len(content), b"\0"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _remove_first(directory: Path) -> None:
    min(directory.iterdir()).unlink()


def _add_file(directory: Path) -> None:
    (directory / "strange").write_bytes(b"")


def _remove_queue(directory: Path) -> None:
    shutil.rmtree(directory)


def _same_bytes_of_a_copy(directory: Path) -> None:
    path = max(directory.iterdir())
    content, stat = path.read_bytes(), path.stat()
    path.unlink()
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


CHANGES = (
    _zero_last_unit,
    _garbage_behind,
    _cut_short,
    _cut_first_short,
    _older_bytes_in_first,
    _remove_first,
    _add_file,
    _remove_queue,
    _same_bytes_of_a_copy,
)


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_is_changed_after_the_stop_is_looked_at_and_mended(
    change: Callable[[Path], None], bench: StoreBench, looked: set[str]
) -> None:
    store = bench.open()
    write(store)
    expected = served(store)
    store.close_now()
    change(of_topic(bench, "Topic5"))
    again = bench.open()
    assert "Topic5" in looked or change is _remove_queue
    assert served(again) == expected


def test_what_was_written_within_a_tick_of_the_clock_is_not_trusted(
    bench: StoreBench, looked: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.store.recovery.known_files._MANY_TOPICS", 1_000)
    monkeypatch.setattr("cometmq.store.recovery.known_files._CLOCK_TICK_NS", 60_000_000_000)
    store = bench.open()
    write(store)
    store.close_now()
    bench.open()
    assert looked == set(TOPICS)


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_file_is_as_none(content: bytes, bench: StoreBench, looked: set[str]) -> None:
    store = bench.open()
    write(store)
    expected = served(store)
    store.close_now()
    known_file(bench).write_bytes(content)
    again = bench.open()
    assert looked == set(TOPICS)
    assert again.findings == []
    assert served(again) == expected


def test_a_file_with_one_changed_number_is_as_none(bench: StoreBench, looked: set[str]) -> None:
    store = bench.open()
    write(store)
    store.close_now()
    content = json.loads(known_file(bench).read_bytes())
    content["topics"]["Topic1"][1] = {"0": 17}
    known_file(bench).write_bytes(json.dumps(content, separators=(",", ":")).encode())
    bench.open()
    assert looked == set(TOPICS)


def test_a_log_that_was_changed_lets_all_queues_be_looked_at(bench: StoreBench, looked: set[str]) -> None:
    store = bench.open()
    write(store)
    expected = served(store)
    store.close_now()
    with bench.log_files[0].open("r+b") as file:
        first = file.read(1)
        file.seek(0)
        file.write(first)
    again = bench.open()
    assert looked == set(TOPICS)
    assert served(again) == expected


def test_the_first_message_that_is_kept_is_known_after_retention(bench: StoreBench, looked: set[str]) -> None:
    store = bench.open()
    write(store)
    store._flush.flush_now()
    checkpoint(store)
    assert store._maintenance.retention.delete_files(force=True) > 0
    firsts = {queue.key: queue.min_offset() for queues in store.queues().values() for queue in queues.values()}
    assert any(first % 100 for first in firsts.values())
    expected = served(store)
    store.close_now()
    again = bench.open()
    assert looked == set()
    assert {queue.key: queue.min_offset() for queues in again.queues().values() for queue in queues.values()} == firsts
    assert served(again) == expected


async def test_a_stop_while_queues_follow_the_beginning_of_the_log_leaves_none_behind(bench: StoreBench) -> None:
    store = bench.open()
    write(store)
    store._flush.flush_now()
    assert len(TOPICS) * 3 < 200
    for number in range(200):
        fill(store, 3, topic=f"More{number}")
    assert store._maintenance.retention.delete_files(force=True) > 0
    log_min = store.min_physical_offset
    store.close_now()  # when some of the queues have followed
    again = bench.open()
    for queues in again.queues().values():
        for queue in queues.values():
            assert queue.min_offset() == queue.offset_of_log(log_min)


def test_times_in_whole_seconds_are_trusted_when_they_are_old(
    bench: StoreBench, looked: set[str], file_clock: FileClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.store.recovery.known_files.os", SimpleNamespace(stat=stat_in_whole_seconds))
    file_clock.fixed_ns = time.time_ns()  # however long it takes to write the files
    store = bench.open()
    write(store)
    store.close_now()
    store = bench.open()
    assert looked == set(TOPICS)
    looked.clear()
    file_clock.fixed_ns = time.time_ns() + 3 * 10**9
    store.close_now()
    bench.open()
    assert looked == set()


def stat_in_whole_seconds(path: str, *, follow_symlinks: bool) -> SimpleNamespace:
    """What a file system tells that counts whole seconds."""
    stat = os.stat(path, follow_symlinks=follow_symlinks)
    return SimpleNamespace(st_ino=stat.st_ino, st_size=stat.st_size, st_ctime_ns=stat.st_ctime_ns // 10**9 * 10**9)


def test_without_room_for_the_file_the_stop_is_clean(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = bench.open()
    write(store)
    expected = served(store)

    def without_room(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", without_room)
        store.close_now()
    assert [record.message for record in caplog.records if "cleanly" in record.message] == []
    assert sorted(path.name for path in known_file(bench).parent.glob("queueFiles*")) == []
    again = bench.open()
    assert again.findings == []
    assert served(again) == expected
