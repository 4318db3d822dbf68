"""Random lives of an archive: jobs, compactions and sweeps at once, in an order that a seed decides.

Each process is a thread that stops before every request to the storage, until the seed chooses it. A request may kill
its process before or after it is done, its answer may be lost, it may be repeated by the client, or arrive when its
sender has long given up. A process may sleep for a long time at any request, and go on as a zombie.

:func:`live` raises ``AssertionError`` if a promise is broken.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise

from tests.archive.memory import MemoryStorage

from cometmq.archive.chain import CommitChain
from cometmq.archive.changes import Batch, batch_commit, file_change, holds
from cometmq.archive.commits import APPENDED, COMPACTED, OPENED, Commit, Covered
from cometmq.archive.contents import Contents
from cometmq.archive.errors import ArchiveError
from cometmq.archive.files import DataFile, new_part_path
from cometmq.archive.leftovers import leftovers
from cometmq.message.queues import Queue
from cometmq.storage import StorageUnavailableError

QUEUES = (Queue("orders", "a", 0), Queue("orders", "a", 1))
HOUR = 3_600_000
PATIENCE_S = 60
BATCHES = 5
LIVES = 4
"""Jobs that begin one after another, or beside each other."""


class KilledError(BaseException):
    """The process was killed."""


class Process:
    """A thread that runs from one request to the next when it is told to."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._go, self._stopped = threading.Event(), threading.Event()
        self.ended = False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        self._wait()
        try:
            self._run()
        except KilledError:
            pass
        except BaseException as error:
            self.failure = error
        self.ended = True
        self._stopped.set()

    def _wait(self) -> None:
        assert self._go.wait(PATIENCE_S)
        self._go.clear()

    def pause(self) -> None:
        """Wait until the process is chosen."""
        self._stopped.set()
        self._wait()

    def step(self) -> None:
        """Let the process run up to its next request, or its end."""
        self._stopped.clear()
        self._go.set()
        assert self._stopped.wait(PATIENCE_S)


class Life:
    """One archive, and all processes that work on it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.plain = MemoryStorage(self.objects)
        self.late: list[tuple[str, bytes]] = []
        """Creates that arrive at some time after their sender has given up."""
        self.acknowledged: list[tuple[str, int]] = []
        self.now_ms = 0

    def storage_of(self, process: list[Process]) -> MemoryStorage:
        """The storage as a process sees it, with the faults of its network."""
        life = self

        class Faulty(MemoryStorage):
            def create_once(self, key: str, content: bytes) -> bool:
                process[0].pause()
                fault = life.random.random()
                if fault < 0.04:
                    raise KilledError
                if fault < 0.08:
                    self.store(key, content)
                    raise KilledError
                if fault < 0.14:
                    if life.random.random() < 0.6:
                        self.store(key, content)
                    raise StorageUnavailableError("no answer")
                if fault < 0.2:
                    life.late.append((key, content))
                    raise StorageUnavailableError("no answer")
                if fault < 0.3:
                    self.store(key, content)  # its answer is lost, and the client repeats it
                return self.store(key, content)

        def before(_name: str, _key: str) -> None:
            process[0].pause()
            if life.random.random() < 0.01:
                raise KilledError

        return Faulty(self.objects, before=before, now_ms=lambda: life.now_ms)

    def start(self, work: Callable[[MemoryStorage], None]) -> Process:
        """Start a process."""
        holder: list[Process] = []
        holder.append(Process(lambda: work(self.storage_of(holder))))
        return holder[0]


def archive_job(life: Life, query_id: str, checkpoint: dict[int, dict[Queue, tuple[int, int]]]) -> Callable[..., None]:
    """A job as Spark runs it: a batch is planned once, and repeated with its offsets until it is committed."""

    def run(storage: MemoryStorage) -> None:
        chain = CommitChain(storage)
        with suppress(StorageUnavailableError, ArchiveError):
            writer = chain.open_writer(life.now_ms)
            begin = {of.queue: of.next for of in chain.refresh().queues()}
            for batch_id in range(BATCHES):
                if batch_id not in checkpoint:
                    before = checkpoint.get(batch_id - 1)
                    ends = {queue: part[1] for queue, part in before.items()} if before else begin
                    firsts = {queue: ends.get(queue, 0) for queue in QUEUES}
                    checkpoint[batch_id] = {
                        queue: (first, first + life.random.randint(1, 9)) for queue, first in firsts.items()
                    }
                planned = checkpoint[batch_id]
                if holds(chain.refresh(), query_id, batch_id):
                    continue
                files = [upload(storage, queue, first, end, writer.epoch) for queue, (first, end) in planned.items()]
                covered = [Covered(*queue, first, end) for queue, (first, end) in planned.items()]
                batch = Batch(query_id, batch_id, covered, files)
                if chain.append(writer, partial(batch_commit, batch=batch, now_ms=life.now_ms)):
                    life.acknowledged.append((query_id, batch_id))

    return run


def upload(storage: MemoryStorage, queue: Queue, first: int, end: int, epoch: int | None) -> DataFile:
    """Write a data file."""
    path = new_part_path(queue, first * HOUR // 20, first, epoch)
    storage.put(path, b"rows")
    at = first * HOUR // 20
    return DataFile(path, *queue, first, end, end - first, 4, at, at, 0)


def compaction(life: Life) -> Callable[[MemoryStorage], None]:
    """Joins two neighbours."""

    def run(storage: MemoryStorage) -> None:
        chain = CommitChain(storage)
        files = sorted(chain.refresh().files(), key=lambda file: (file.queue, file.first))
        pairs = [pair for pair in pairwise(files) if pair[0].queue == pair[1].queue]
        if not pairs:
            return
        old = life.random.choice(pairs)
        new = upload(storage, old[0].queue, old[0].first, old[1].end, None)
        new = DataFile(new.path, *old[0].queue, old[0].first, old[1].end, old[0].rows + old[1].rows, 4, 0, 0, 0)
        with suppress(StorageUnavailableError, ArchiveError):
            chain.change(lambda contents: file_change(contents, COMPACTED, old, [new], life.now_ms))

    return run


def sweep(life: Life) -> Callable[[MemoryStorage], None]:
    """Deletes what earlier writers have left."""

    def run(storage: MemoryStorage) -> None:
        chain = CommitChain(storage)

        def named() -> tuple[list[str], int]:
            contents = chain.refresh()
            return [file.path for file in contents.files()], contents.epoch

        storage.delete(found.key for found in leftovers(storage, named, life.now_ms))

    return run


def live(seed: int) -> Life:
    """Live one life, and check the archive that it leaves."""
    life = Life(seed)
    checkpoints: dict[str, dict[int, dict[Queue, tuple[int, int]]]] = {}
    jobs = 0
    processes: list[Process] = []
    while jobs < LIVES or any(not process.ended for process in processes):
        running = [process for process in processes if not process.ended]
        if jobs < LIVES and (not running or life.random.random() < 0.02):
            known = life.random.choice([*checkpoints, f"q{jobs}"])
            processes.append(life.start(archive_job(life, known, checkpoints.setdefault(known, {}))))
            jobs += 1
        if life.random.random() < 0.05:
            processes.append(life.start(life.random.choice([compaction, sweep])(life)))
        if life.late and life.random.random() < 0.1:
            life.plain.store(*life.late.pop(life.random.randrange(len(life.late))))
        if running:
            life.random.choice(running[: 1 + life.random.randrange(len(running))]).step()
        life.now_ms += 1
    for process in processes:
        if process.failure is not None:
            raise process.failure
    check(life)
    return life


def check(life: Life) -> None:
    """Check every promise of an archive."""
    commits = list(reversed(list(CommitChain(life.plain).newest_first())))
    whole, ends, owner = Contents(), dict[Queue, int](), ""
    batches: list[tuple[str, int]] = []
    for commit in commits:
        whole.apply(commit)
        if commit.kind == OPENED:
            owner = commit.writer
        elif commit.kind == APPENDED:
            assert commit.writer == owner, "a writer that was taken over has committed"
            batches.append((commit.query_id, commit.batch_id))
            for part in commit.covered:
                assert part.first >= ends.get(part.queue, 0), "messages are there twice"
                assert part.first == ends.get(part.queue, 0), "messages are lost"
                ends[part.queue] = part.end
    assert len(set(batches)) == len(batches), "a batch is there twice"
    assert set(life.acknowledged) <= set(batches), "a batch that was acknowledged is lost"
    named = {file.path for file in whole.files()}
    assert named <= set(life.objects), "a file that a commit names was deleted"
    for queue, end in ends.items():
        files = sorted((file for file in whole.files() if file.queue == queue), key=lambda file: file.first)
        assert sum(file.rows for file in files) == end
        assert [file.first for file in files] == [0, *(file.end for file in files[:-1])]
    read = CommitChain(life.plain).refresh()
    assert {file.path: file for file in read.files()} == {file.path: file for file in whole.files()}
    assert (read.last(), read.epoch, read.owner) == (whole.last(), whole.epoch, whole.owner)
    assert all(read.batch_of(query) == whole.batch_of(query) for query, _ in batches)


def kinds(life: Life) -> list[str]:
    """The kinds of the commits of a life."""
    commits: list[Commit] = list(CommitChain(life.plain).newest_first())
    return [commit.kind for commit in commits]
