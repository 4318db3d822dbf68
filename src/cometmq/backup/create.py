"""Creates a backup of a store while its broker may be running.

Theory of operation. The log is the source of truth and only grows at its end: a broker that starts on any prefix of the
log rebuilds matching queues and index. So everything else is copied first, and the log last; its last file is copied up
to the last complete record. Tables are files that brokers replace as a whole, and journals with the later changes
(:mod:`~cometmq.store.table_journal`): the journals are copied first, and both again if the broker replaced the file
meanwhile. The backup is like the disk after the broker was killed: it contains every message that was acknowledged
before the backup began, and a prefix without gaps of later messages.

A file that the broker no longer writes to is *sealed*: it is shared with the store (by a clone, else a hard link),
or with the previous backup in the same directory, instead of copied. The log's last but one file is copied anyway: a
broker that recovers from a power cut may truncate it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from cometmq import __version__
from cometmq.backup.files import BackupFiles
from cometmq.backup.log_end import end_of_records, is_begun, segments_of
from cometmq.backup.manifest import MANIFEST, BackupError, Manifest, StoredFile
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.errors import reason_of
from cometmq.paths import take_local_paths
from cometmq.store.queue.directory_remover import REMOVED
from cometmq.store.recovery.known_topics import DELETED_TOPICS

_LOG: Final = "commitlog"
_QUEUES: Final = ("consumequeue", "consumequeue_ext")
_INDEX: Final = "index"
_NOT_COPIED: Final = frozenset({_LOG, *_QUEUES, _INDEX, "lock"})
_TRIES: Final = 5
"""Number of attempts to copy the tables, since a table may be replaced meanwhile."""
_MADE_AHEAD: Final = 2
"""Number of log files at the end that are copied, never shared."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a backup."""

    store: Path
    """``storePathRootDir``."""
    target: Path
    """Directory for the backup, which must be missing or empty."""
    commit_log: Path | None = None
    """``storePathCommitLog``, if that directory is not below the store."""
    previous: Path | None = None
    """Earlier backup whose sealed files are reused."""
    share: bool = True
    """True to share sealed files with the store where the file system can."""

    def __post_init__(self) -> None:
        """Convert all paths to local ones.

        :raises PathError: a path has an unsupported scheme.
        """
        take_local_paths(self)


@dataclass(slots=True)
class Made:
    """A created backup, and how much of it is shared."""

    manifest: Manifest
    copied_bytes: int = 0
    shared_bytes: int = 0
    """Number of bytes in files that are shared with the store."""
    reused_bytes: int = 0
    """Number of bytes in files that are shared with the previous backup."""


@dataclass(slots=True)
class _Work:
    options: Options
    backup: BackupFiles
    before: dict[str, StoredFile]
    report: Callable[[str], None]
    files: dict[str, StoredFile] = field(default_factory=dict)
    copied: int = 0
    shared: int = 0
    reused: int = 0


def create_backup(
    options: Options, *, report: Callable[[str], None] = lambda _: None, clock: Clock = SYSTEM_CLOCK
) -> Made:
    """Create a backup that :func:`~cometmq.backup.verify.verify_backup` accepts.

    :param report: function that is called with the name of each part.
    :raises BackupError: the store is missing, the target is not empty, or a file cannot be read or written.
    """
    log = options.commit_log or options.store / _LOG
    if not segments_of(log):
        raise BackupError(
            f"{options.store} is not a store: {log} has no files",
            next_step="use storePathRootDir; with cometmq serve it is the directory broker-0 in its data directory",
        )
    created_ms = clock.now_ms()
    before = {} if options.previous is None else dict(BackupFiles(options.previous).manifest().files)
    try:
        backup = BackupFiles(options.target)
        backup.create()
        work = _Work(options, backup, before, report)
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
        backup.finish(manifest)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise BackupError(
            f"the backup was not created: {where}{reason_of(error)}", next_step=f"delete {options.target} and try again"
        ) from error
    return Made(manifest, work.copied, work.shared, work.reused)


def last_backup_beside(target: Path, store: Path) -> Path | None:
    """Return the newest complete backup of a store in the parent directory of a new one."""
    found: list[tuple[int, Path]] = []
    try:
        beside = [path for path in target.absolute().parent.iterdir() if (path / MANIFEST).is_file()]
    except OSError:
        return None
    for path in beside:
        try:
            manifest = BackupFiles(path).manifest()
        except BackupError:
            continue
        if manifest.source == str(store.absolute()):
            found.append((manifest.created_ms, path))
    return max(found)[1] if found else None


def _copy_tables(work: _Work) -> None:
    """Copy everything except log, queues and index.

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
            work.backup.delete(name)
            work.files.pop(name, None)
    raise BackupError("the broker replaced its tables while they were copied", next_step="try again")


def _has_deletions(path: Path) -> bool:
    """Return whether a file belongs to the only table with a journal that is not below ``config``."""
    return path.parent.name == "comet" and path.name.startswith(DELETED_TOPICS)


def _tables_in(directory: Path, without: frozenset[str] = frozenset()) -> Iterator[Path]:
    if directory.is_dir():
        yield from (path for path in _files_below(directory, without) if path.suffix != ".tmp")


def _bases_of(directory: Path) -> dict[str, bytes]:
    """Return the ``.bases`` files, which name the tables that journals continue."""
    found: dict[str, bytes] = {}
    for path in directory.glob("*.bases"):
        with suppress(FileNotFoundError):
            found[path.name] = path.read_bytes()
    return found


def _files_below(directory: Path, without: frozenset[str] = frozenset()) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        if path.name in without or path.is_symlink() or (path.parent.name, path.name) == ("comet", REMOVED):
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
            files = segments_of(queue)
            for number, (_, path) in enumerate(files):
                name = path.relative_to(directory.parent).as_posix()
                if number < len(files) - 1:
                    _share(work, path, name)
                else:
                    _copy(work, path, name)


def _copy_index(work: _Work, directory: Path) -> None:
    work.report(directory.name)
    files = sorted(directory.iterdir()) if directory.is_dir() else []
    for number, path in enumerate(files):
        name = path.relative_to(directory.parent).as_posix()
        if number < len(files) - 1:
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
        end = start + work.files[name].data
    return begin or 0, end


def _share(work: _Work, path: Path, name: str) -> bool:
    """Store a sealed file, without copying it if possible. Return False if the file no longer exists."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return False
    known = work.before.get(name)
    if known is not None and known.sealed and (known.size, known.mtime_ns) == (stat.st_size, stat.st_mtime_ns):
        assert work.options.previous is not None
        if work.backup.reuse(BackupFiles(work.options.previous), name):
            work.files[name] = known
            work.reused += known.size
            return True
    try:
        shared = work.backup.share(path, name) if work.options.share else None
    except FileNotFoundError:
        return False
    if shared is None:
        return _copy(work, path, name, sealed=True)
    work.files[name] = shared
    work.shared += shared.size
    return True


def _copy(work: _Work, path: Path, name: str, *, data: int | None = None, sealed: bool = False) -> bool:
    """Copy a file; return False if the file no longer exists."""
    for _ in range(_TRIES):
        try:
            copied = work.backup.copy(path, name, data)
        except FileNotFoundError:
            if not path.exists():
                work.backup.delete(name)
                return False
            continue
        work.files[name] = msgspec.structs.replace(copied, sealed=sealed)
        work.copied += copied.data
        return True
    return False
