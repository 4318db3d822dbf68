"""Creates a backup of a store while its broker may be running.

Theory of operation. The log is the source of truth and only grows at its end: a broker that starts with any prefix of
the log rebuilds matching queues and a matching index. So everything else is copied first, and the log last; its last
file is copied up to the last complete record. Each table consists of a file that brokers replace completely, and a
journal with the changes since then (:mod:`~cometmq.store.table_journal`). The journals are copied first; if the broker
replaced a file during the copy, both are copied again. The backup is like the disk after the broker was killed: it
contains every message that was acknowledged before the backup began, and a gapless prefix of the later messages.

A file that the broker no longer writes to is *sealed*: if possible, the backup's place (:mod:`.place`) shares it with
the store or an earlier backup instead of copying it. The log's last but one file is always copied, since a broker that
recovers from a power cut may truncate it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cometmq import __version__
from cometmq.backup.log_end import end_of_records, is_begun, segments_of
from cometmq.backup.manifest import BackupError, Manifest, StoredFile
from cometmq.backup.place import BackupPlace
from cometmq.broker.failover.identity import IDENTITY_FILE
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.errors import reason_of
from cometmq.paths import take_local_paths
from cometmq.store.queue.directory_remover import REMOVED
from cometmq.store.recovery.known_topics import DELETED_TOPICS

_LOG: Final = "commitlog"
_QUEUES: Final = ("consumequeue", "consumequeue_ext")
_INDEX: Final = "index"
_NOT_COPIED: Final = frozenset({_LOG, *_QUEUES, _INDEX, "lock"})
_LEFT_OUT: Final = frozenset({("comet", REMOVED), ("comet", IDENTITY_FILE)})
"""Directories and names of files that a restored store must not have."""
_TRIES: Final = 5
"""Number of attempts to copy the tables, since a table may be replaced during the copy."""
_MADE_AHEAD: Final = 2
"""Number of files at the end of the log that are always copied, instead of shared with an earlier backup."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options for creating a backup."""

    store: Path
    """The broker's ``storePathRootDir``."""
    target: BackupPlace
    """Place of the new backup, which must be missing or empty."""
    commit_log: Path | None = None
    """The broker's ``storePathCommitLog``, if that directory is not below the store."""
    previous: BackupPlace | None = None
    """Earlier backup whose sealed files are reused."""

    def __post_init__(self) -> None:
        """Convert all paths to local paths.

        :raises PathError: a path has an unsupported scheme.
        """
        take_local_paths(self)


@dataclass(slots=True)
class Made:
    """A new backup, and the number of bytes that it shares."""

    manifest: Manifest
    copied_bytes: int = 0
    shared_bytes: int = 0
    """Number of bytes in files that are shared with the store."""
    reused_bytes: int = 0
    """Number of bytes in files that are shared with an earlier backup."""


@dataclass(slots=True)
class _Work:
    options: Options
    before: dict[str, StoredFile]
    report: Callable[[str], None]
    added: Callable[[str], None]
    files: dict[str, StoredFile] = field(default_factory=dict)
    bytes: Counter[str] = field(default_factory=Counter)
    """Total size of the files, by how they were added."""


def create_backup(
    options: Options,
    *,
    report: Callable[[str], None] = lambda _: None,
    added: Callable[[str], None] = lambda _: None,
    clock: Clock = SYSTEM_CLOCK,
) -> Made:
    """Create a backup that :func:`~cometmq.backup.verify.verify_backup` accepts.

    :param report: function that is called before each step, with the name of the part of the store that is copied.
    :param added: function that is called with the name of each file that was added.
    :raises BackupError: the store is missing, the target is not empty, or a file cannot be read or written.
    :raises StorageError: an object store or HDFS rejected a request.
    """
    log = options.commit_log or options.store / _LOG
    if not segments_of(log):
        raise BackupError(
            f"{options.store} is not a store: {log} has no files",
            next_step="use storePathRootDir; with cometmq serve it is the directory broker-0 in its data directory",
        )
    created_ms = clock.now_ms()
    before = {} if options.previous is None else dict(options.previous.read_manifest().files)
    try:
        options.target.prepare()
        work = _Work(options, before, report, added)
        _copy_tables(work)
        for name in _QUEUES:
            _copy_queues(work, options.store / name)
        _copy_index(work, options.store / _INDEX)
        begin, end = _copy_log(work, log)
        manifest = Manifest(
            cometmq=__version__,
            created_ms=created_ms,
            source=str(options.store.absolute()),
            log_begin=begin,
            log_end=end,
            files=dict(sorted(work.files.items())),
        )
        options.target.finish(manifest)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise BackupError(
            f"the backup was not created: {where}{reason_of(error)}",
            next_step=f"delete {options.target.name} and try again",
        ) from error
    return Made(manifest, work.bytes["copied"], work.bytes["shared"], work.bytes["reused"])


def _copy_tables(work: _Work) -> None:
    """Copy everything except the log, the queues and the index.

    :raises BackupError: the broker replaced a table during every attempt.
    """
    work.report("tables")
    store = work.options.store
    journaled = (store / "comet" / "tables", store / "config")
    for path in _files_below(store, _NOT_COPIED):
        if path.suffix != ".tmp" and path.parent not in journaled and not _has_deletions(path):
            _copy(work, path, path.relative_to(store).as_posix())
    for _ in range(_TRIES):
        named = _bases_of(journaled[0])
        tables = [path for place in journaled for path in _tables_in(place)]
        tables += filter(_has_deletions, _tables_in(store / "comet", frozenset({"tables"})))
        copied = [path.relative_to(store).as_posix() for path in tables]
        for name in copied:
            _copy(work, store / name, name)
        if _bases_of(journaled[0]) == named:
            return
        for name in copied:
            if work.files.pop(name, None) is not None:
                work.options.target.remove(name)
    raise BackupError("the broker replaced its tables while they were copied", next_step="try again")


def _has_deletions(path: Path) -> bool:
    """Return True if a file is the deletions table, the only table with a journal that is not below ``config``."""
    return path.parent.name == "comet" and path.name.startswith(DELETED_TOPICS)


def _tables_in(directory: Path, without: frozenset[str] = frozenset()) -> Iterator[Path]:
    if directory.is_dir():
        yield from (path for path in _files_below(directory, without) if path.suffix != ".tmp")


def _bases_of(directory: Path) -> dict[str, bytes]:
    """Return the ``.bases`` files, which name the tables to which journals apply."""
    found: dict[str, bytes] = {}
    for path in directory.glob("*.bases"):
        with suppress(FileNotFoundError):
            found[path.name] = path.read_bytes()
    return found


def _files_below(directory: Path, without: frozenset[str] = frozenset()) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        if path.name in without or path.is_symlink() or (path.parent.name, path.name) in _LEFT_OUT:
            continue
        if path.is_dir():
            yield from _files_below(path)
        elif path.is_file():
            yield path


def _copy_queues(work: _Work, directory: Path) -> None:
    work.report(directory.name)
    if not directory.is_dir():
        return
    for topic in sorted(path for path in directory.iterdir() if path.is_dir()):
        for queue in sorted(path for path in topic.iterdir() if path.is_dir()):
            _copy_series(work, directory.parent, [path for _, path in segments_of(queue)])


def _copy_index(work: _Work, directory: Path) -> None:
    work.report(directory.name)
    _copy_series(work, directory.parent, sorted(directory.iterdir()) if directory.is_dir() else [])


def _copy_series(work: _Work, root: Path, files: Sequence[Path]) -> None:
    """Add the files of a queue or of the index; the broker writes only to the last of them."""
    for number, path in enumerate(files, 1):
        name = path.relative_to(root).as_posix()
        if number < len(files):
            _share(work, path, name)
        else:
            _copy(work, path, name)


def _copy_log(work: _Work, directory: Path) -> tuple[int, int]:
    """Copy the log. Return the start and end offsets of the copy.

    :raises BackupError: a file in the middle of the log is missing.
    """
    work.report(_LOG)
    files = [(start, path) for start, path in segments_of(directory) if is_begun(path)]
    begin: int | None = None
    end = 0
    for number, (start, path) in enumerate(files):
        name = f"{_LOG}/{path.name}"
        is_last = number == len(files) - 1
        if number < len(files) - _MADE_AHEAD:
            there = _share(work, path, name)
        else:
            data = end_of_records(path, start) if is_last else None
            there = _copy(work, path, name, data=data)
        if not there:
            continue  # retention deleted the oldest file
        if begin is not None and start != end:
            raise BackupError(f"a log file is missing at offset {end}", next_step="see the broker's log")
        begin = start if begin is None else begin
        end = start + (work.files[name].data if is_last else work.files[name].size)
    return begin or 0, end


def _share(work: _Work, path: Path, name: str) -> bool:
    """Add a sealed file, without copying it if possible. Return False if the file no longer exists."""
    try:
        stat = path.stat()
        known = work.before.get(name)
        if known is not None and not (
            known.sealed and (known.size, known.mtime_ns) == (stat.st_size, stat.st_mtime_ns)
        ):
            known = None
        added = work.options.target.add_sealed(path, name, work.options.previous, known)
    except FileNotFoundError:
        work.options.target.remove(name)
        return False
    work.files[name] = added.file
    work.bytes[added.way] += added.file.data
    work.added(name)
    return True


def _copy(work: _Work, path: Path, name: str, *, data: int | None = None) -> bool:
    """Copy a file. Return False if the file no longer exists."""
    for _ in range(_TRIES):
        try:
            added = work.options.target.add(path, name, data=data)
        except FileNotFoundError:
            if not path.exists():
                work.options.target.remove(name)  # what was copied before the file was deleted
                return False
            continue
        work.files[name] = added
        work.bytes["copied"] += added.data
        work.added(name)
        return True
    return False
