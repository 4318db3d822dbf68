"""The chain of commits on real storages: continued, taken over, shortened by checkpoints, refused if damaged."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from tests.archive.memory import MemoryStorage
from tests.storage.servers.faults import faulty
from tests.storage.servers.seaweed import S3Server

from cometmq.archive import Archive, open_archive
from cometmq.archive import chain as chains
from cometmq.archive.chain import CHECKPOINTS, COMMITS, CommitChain, Writer
from cometmq.archive.changes import Batch, batch_commit, file_change
from cometmq.archive.commits import COMPACTED, Commit, Covered, QueueTotals
from cometmq.archive.contents import Contents
from cometmq.archive.errors import ArchiveError
from cometmq.archive.files import DataFile, epoch_of, hour_ended_ms, new_part_path, queue_of
from cometmq.archive.leftovers import SPARED_MS, leftovers
from cometmq.message.queues import Queue
from cometmq.storage import Storage, StorageUnavailableError, open_storage

ORDERS = Queue("orders", "broker-a", 0)
HOUR_MS = 3_600_000


def batch(number: int, first: int, end: int, epoch: int = 1, query: str = "q") -> Batch:
    """A batch of one file."""
    path = new_part_path(ORDERS, HOUR_MS, first, epoch)
    file = DataFile(path, *ORDERS, first, end, end - first, 100, HOUR_MS, HOUR_MS + 1, 0)
    return Batch(query, number, [Covered(*ORDERS, first, end)], [file])


def append(chain: CommitChain, writer: Writer, of: Batch) -> Commit | None:
    """Commit a batch."""
    return chain.append(writer, lambda contents: batch_commit(contents, of, 1000))


def numbers(storage: Storage, directory: str = COMMITS) -> list[int]:
    """The numbers of the commits or checkpoints."""
    return sorted(int(found.key.rpartition("/")[2].partition(".")[0]) for found in storage.list_objects(directory))


def test_a_chain_is_continued_and_read_on_every_storage(storage: Storage) -> None:
    chain = CommitChain(storage)
    writer = chain.open_writer(1000)
    assert append(chain, writer, batch(0, 0, 10)) is not None
    assert append(chain, writer, batch(0, 0, 10)) is None, "a batch is committed once"
    again = CommitChain(storage)
    assert again.refresh().queues() == [QueueTotals(*ORDERS, 0, 10, 10)]
    later = again.open_writer(2000)
    assert later.epoch == writer.epoch + 1
    with pytest.raises(ArchiveError, match="another job has taken over the archive"):
        append(chain, writer, batch(1, 10, 20))
    assert append(again, later, batch(0, 10, 20, query="another")) is not None
    assert numbers(storage) == [0, 1, 2, 3]


def test_of_writers_at_once_the_last_to_open_goes_on(storage: Storage) -> None:
    def work(number: int) -> int:
        chain = CommitChain(storage)
        done = 0
        try:
            writer = chain.open_writer(0)
            for of in range(4):
                first = next((totals.next for totals in chain.refresh().queues()), 0)
                append(chain, writer, batch(of, first, first + 5, writer.epoch, f"q{number}"))
                done += 1
        except ArchiveError:
            pass
        return done

    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(work, range(4)))
    contents = CommitChain(storage).refresh()
    assert contents.epoch == 4
    assert 4 in done, "the last one finished"
    assert contents.queues() == [QueueTotals(*ORDERS, 0, 5 * sum(done), 5 * sum(done))]


def test_a_chain_of_an_older_version_goes_on(tmp_path: Path) -> None:
    """Its commits have no epoch; and when it appends once more, a writer that is open stops."""
    storage = open_storage(tmp_path)
    old = batch_commit(Contents(), batch(0, 0, 10), 5)
    assert old is not None
    new_fields = ("format", "epoch", "writer", "token")

    def write(commit: Commit) -> None:
        fields = {name: value for name, value in msgspec.to_builtins(commit).items() if name not in new_fields}
        storage.put(f"{COMMITS}/{commit.sequence:020d}.json", msgspec.json.encode(fields))

    write(old)
    chain = CommitChain(storage)
    writer = chain.open_writer(6)
    assert (writer.epoch, chain.refresh().queues()) == (1, [QueueTotals(*ORDERS, 0, 10, 10)])
    append(chain, writer, batch(1, 10, 20))
    contents = CommitChain(storage).refresh()
    made = batch_commit(contents, batch(2, 20, 30), 7)
    assert made is not None
    write(made)
    with pytest.raises(ArchiveError, match="an older version of CometMQ has taken over"):
        append(chain, writer, batch(3, 30, 40))
    assert CommitChain(storage).open_writer(8).epoch == 2


def test_checkpoints_replace_the_reading_of_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "CHECKPOINT_EVERY", 5)
    storage = MemoryStorage()
    chain = CommitChain(storage)
    writer = chain.open_writer(0)
    for number in range(23):
        append(chain, writer, batch(number, number, number + 1))
    assert numbers(storage, CHECKPOINTS) == [14, 19]
    assert numbers(storage) == list(range(24)), "no commit is deleted"
    read: list[str] = []
    reader = MemoryStorage(storage.objects, before=lambda name, key: read.append(key) if name == "read" else None)
    contents = CommitChain(reader).refresh()
    assert len(read) == 1 + 4
    assert contents.queues() == [QueueTotals(*ORDERS, 0, 23, 23)]
    assert (len(contents.files()), contents.batch_of("q"), contents.owner) == (23, 22, writer.id)


@pytest.mark.parametrize("lost", [0, 7, 23])
def test_a_commit_that_vanished_is_named(lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one, one in the middle, and the last one, which only a checkpoint or a running job knows."""
    monkeypatch.setattr(chains, "CHECKPOINT_EVERY", 1 if lost == 23 else 1000)
    storage = MemoryStorage()
    chain = CommitChain(storage)
    writer = chain.open_writer(0)
    for number in range(23):
        append(chain, writer, batch(number, number, number + 1))
    storage.delete([f"{COMMITS}/{lost:020d}.json"])
    with pytest.raises(ArchiveError, match=rf"{lost:020d}\.json is missing"):
        CommitChain(storage).refresh()


_COMMITTING = """
import sys
from cometmq.archive import chain
from cometmq.storage import StorageOptions, open_storage
from tests.archive.test_chain import append, batch
chain.CHECKPOINT_EVERY = 3
job = chain.CommitChain(open_storage(sys.argv[1], StorageOptions.from_texts(dict(zip(sys.argv[2::2], sys.argv[3::2])))))
writer = job.open_writer(0)
for number in range(6):
    append(job, writer, batch(number, number, number + 1))
"""


@pytest.mark.crash
def test_a_job_killed_while_it_writes_a_checkpoint_leaves_a_whole_one_or_none(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://lake/chain-{uuid.uuid4().hex}"
    options = s3.options.texts()
    jobs: list[subprocess.Popen[bytes]] = []

    def kill(method: str, path: str) -> bool:
        if method != "PUT" or CHECKPOINTS not in path:
            return False
        jobs[0].kill()
        return True

    with faulty(s3.endpoint) as (endpoint, faults):
        faults.fail("cut", 1, kill)
        words = [word for option in (options | {"endpoint": endpoint}).items() for word in option]
        jobs.append(subprocess.Popen([sys.executable, "-c", _COMMITTING, url, *words]))
        assert jobs[0].wait(60) == -signal.SIGKILL
    storage = open_storage(url, s3.options)
    assert (numbers(storage), numbers(storage, CHECKPOINTS)) == ([0, 1, 2], [])
    monkeypatch.setattr(chains, "CHECKPOINT_EVERY", 3)
    chain = CommitChain(storage)
    writer = chain.open_writer(0)
    assert append(chain, writer, batch(1, 1, 2)) is None
    for number in range(2, 5):
        assert append(chain, writer, batch(number, number, number + 1))
    assert numbers(storage, CHECKPOINTS) != []
    assert CommitChain(storage).refresh().queues() == [QueueTotals(*ORDERS, 0, 5, 5)]


def test_a_damaged_commit_or_checkpoint_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "CHECKPOINT_EVERY", 1)
    storage = MemoryStorage()
    CommitChain(storage).open_writer(0)
    key = f"{CHECKPOINTS}/{0:020d}.json.gz"
    storage.put(key, b"{")
    with pytest.raises(ArchiveError, match=r"00\.json\.gz is damaged.*delete it"):
        CommitChain(storage).refresh()
    storage.delete([key])
    storage.put(f"{COMMITS}/{0:020d}.json", b"{")
    with pytest.raises(ArchiveError, match=r"00\.json is damaged.*restore it from a backup"):
        CommitChain(storage).refresh()


def test_a_commit_whose_answer_is_lost_is_recognised() -> None:
    """The client repeats the request, and finds its own commit; or it gives up, and the next call finds it."""

    class Forgetful(MemoryStorage):
        fault = ""

        def create_once(self, key: str, content: bytes) -> bool:
            created = self.store(key, content)
            if self.fault == "no answer":
                raise StorageUnavailableError("no answer")
            return created and self.fault != "repeated"

    storage = Forgetful()
    chain = CommitChain(storage)
    storage.fault = "repeated"
    writer = chain.open_writer(0)
    assert append(chain, writer, batch(0, 0, 10)) is not None
    storage.fault = "no answer"
    with pytest.raises(StorageUnavailableError):
        append(chain, writer, batch(1, 10, 20))
    storage.fault = ""
    assert append(chain, writer, batch(1, 10, 20)) is None
    assert chain.refresh().queues() == [QueueTotals(*ORDERS, 0, 20, 20)]


def test_a_compaction_beside_a_job_is_computed_again() -> None:
    storage = MemoryStorage()
    chain = CommitChain(storage)
    writer = chain.open_writer(0)
    for number in range(2):
        append(chain, writer, batch(number, number * 10, number * 10 + 10))
    beside = CommitChain(storage)
    old = beside.refresh().files()
    joined = msgspec.structs.replace(old[0], path=new_part_path(ORDERS, HOUR_MS, 0, None), end=20, rows=20)

    def decide(contents: Contents) -> Commit:
        if contents.next_sequence == 3:
            append(chain, writer, batch(2, 20, 30))
        return file_change(contents, COMPACTED, old, [joined], 0)

    beside.change(decide)
    assert append(chain, writer, batch(3, 30, 40)) is not None, "the job remains the owner"
    contents = CommitChain(storage).refresh()
    assert [(file.first, file.end) for file in contents.files()] == [(20, 30), (0, 20), (30, 40)]
    assert contents.queues() == [QueueTotals(*ORDERS, 0, 40, 40)]
    with pytest.raises(ArchiveError, match="2 files were removed from the archive meanwhile"):
        beside.change(lambda now: file_change(now, COMPACTED, old, [joined], 0))


def test_files_that_no_commit_names_are_left_over_by_epoch_or_age(storage: Storage) -> None:
    chain = CommitChain(storage)
    chain.open_writer(0)
    writer = chain.open_writer(0)
    named = batch(0, 0, 10, writer.epoch)
    current = new_part_path(ORDERS, HOUR_MS, 10, writer.epoch)
    earlier = new_part_path(ORDERS, HOUR_MS, 10, writer.epoch - 1)
    joined = new_part_path(ORDERS, HOUR_MS, 10, None)
    for key in (named.files[0].path, current, earlier, joined, "_writing/1.parquet", "other/2.parquet"):
        storage.put(key, b"rows")
    append(chain, writer, named)
    now_ms = next(found.modified_ms for found in storage.list_objects() if found.key == current)

    def found(after_ms: int) -> set[str]:
        def names() -> tuple[list[str], int]:
            contents = chain.refresh()
            return [file.path for file in contents.files()], contents.epoch

        return {left.key for left in leftovers(storage, names, now_ms + after_ms)}

    assert found(0) == {earlier}
    assert found(SPARED_MS + 60_000) == {earlier, current, joined, "_writing/1.parquet"}


def test_names_of_files_have_queue_hour_and_epoch_and_never_become_paths() -> None:
    for queue in (ORDERS, Queue("../%DLQ%x", "../b-1/c", 12), Queue("中文+ ", "b", 0)):
        path = new_part_path(queue, 5 * HOUR_MS - 1, 7, 12)
        assert path.count("/") == 2
        assert (queue_of(path), epoch_of(path), hour_ended_ms(path)) == (queue, 12, 5 * HOUR_MS)
        assert epoch_of(new_part_path(queue, 0, 7, None)) is None
    old = "topic=orders/hour=2024-01-01-00/part-broker-a-0-00000000000000000005-00000000000000000010.parquet"
    assert (queue_of(old), epoch_of(old)) == (ORDERS, None)


def test_a_reader_follows_an_archive(storage: Storage) -> None:
    with pytest.raises(ArchiveError, match="contains no archive"):
        Archive(storage)
    chain = CommitChain(storage)
    writer = chain.open_writer(0)
    append(chain, writer, batch(0, 0, 10))
    reader = Archive(storage)
    assert [(file.first, file.end) for file in reader.files(ORDERS)] == [(0, 10)]
    assert not reader.refresh()
    append(chain, writer, batch(1, 10, 30))
    assert reader.refresh()
    assert [(file.first, file.end) for file in reader.files(ORDERS)] == [(0, 10), (10, 30)]
    assert reader.queues() == {ORDERS: QueueTotals(*ORDERS, 0, 30, 30)}
    assert reader.files(Queue("other", "b", 0)) == []


def test_a_table_of_another_format_is_named(tmp_path: Path) -> None:
    open_storage(tmp_path).put("_delta_log/0", b"{}")
    with pytest.raises(ArchiveError, match=r"contains a Delta table \(only Parquet archives"):
        open_archive(tmp_path)
