"""Opens a store's directory: acquires the lock, determines the file sizes and runs recovery."""

from __future__ import annotations

import dataclasses
import errno
import logging

from cometmq import descriptors
from cometmq.clock import Clock
from cometmq.durable import make_directory
from cometmq.store.config import StoreConfig
from cometmq.store.disk import Disk
from cometmq.store.errors import StoreError
from cometmq.store.index.index_service import IndexService
from cometmq.store.log.checkpoint import StoreLock, load_checkpoint
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.queue.consume_queue_table import ConsumeQueueTable
from cometmq.store.recovery.extended_units import replace_addresses
from cometmq.store.recovery.file_sizes import use_existing_sizes
from cometmq.store.recovery.known_before import KnownBefore
from cometmq.store.recovery.known_files import KnownFiles
from cometmq.store.recovery.known_topics import known_topics
from cometmq.store.recovery.load import Findings, set_unusable_aside
from cometmq.store.recovery.lost_log import require_log, require_one_path
from cometmq.store.recovery.position import load_position
from cometmq.store.recovery.recovery import Recovery
from cometmq.store.version import require_readable, version_file, write_mark

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class OpenedStore:
    """A store after recovery."""

    config: StoreConfig
    clock: Clock
    disk: Disk
    log: CommitLog
    queues: ConsumeQueueTable
    index: IndexService | None
    lock: StoreLock
    findings: list[str]
    marks: dict[int, int]
    """Known checksums (``marks``) of log files, by the offset of the file's first byte."""
    known_files: KnownFiles
    lost_from: int | None
    """Log offset at which the log ended when it was opened, if its real end was lost; otherwise ``None``."""
    has_lost_end: bool
    """True if the log ended before the position in ``comet/position.json``, which was flushed."""


def open_store(
    config: StoreConfig, clock: Clock, disk: Disk, *, is_slave: bool, begin_anew: bool = False
) -> OpenedStore:
    """Lock, load and recover a store. If this fails, everything is released.

    :param begin_anew: open the store although its log is missing; the messages in the queues are lost.
    :raises LostLogError: the log is missing, and ``begin_anew`` is false.
    :raises NewerStoreError: a newer version wrote the store, and this one cannot read it.
    :raises StoreError: another process has locked the store, or its files cannot be opened.
    """
    require_one_path(config)
    try:
        make_directory(config.root)
        lock = StoreLock(config.root / "lock")
    except OSError as error:
        next_step = next_step_of(error) or "see storePathRootDir and its permissions"
        raise StoreError(f"{config.root} cannot be used: {error.strerror}", next_step=next_step) from error
    log: CommitLog | None = None
    try:
        mark = require_readable(config.root)
        config, kept = use_existing_sizes(config, mark.sizes if mark is not None else None)
        if not begin_anew:
            require_log(config)
        make_directory(config.commit_log)
        log = CommitLog(config.commit_log, config.mapped_file_size_commit_log, disk)
        findings = Findings(config.root)
        findings.lines += kept
        set_unusable_aside(config.root, findings)
        if mark is None and version_file(config.root).is_file():
            findings.set_aside(version_file(config.root), "damaged; the store is read as a store of this version")
        opened = _recover(config, clock, disk, lock, log, findings, is_slave=is_slave)
        try:
            write_mark(config.root, mark, config.file_sizes)
        except OSError as error:  # a full disk must not keep the broker from freeing space
            _log.warning("the store's version was not written: %s", error)
        return opened
    except BaseException as error:
        if log is not None:
            log.close()
        lock.release()
        if isinstance(error, OSError):
            raise StoreError(f"{config.root} cannot be opened: {error}", next_step=next_step_of(error)) from error
        raise


def next_step_of(error: OSError) -> str | None:
    """Return what to do about a file that cannot be opened, or None if its error says all that is known."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some disk space"
    if error.errno != errno.EMFILE:
        return None
    return (
        f"this process is limited to {descriptors.limit()} descriptors, and a log file may need one: raise the limit "
        "with ulimit -n or LimitNOFILE"
    )


def _recover(
    config: StoreConfig,
    clock: Clock,
    disk: Disk,
    lock: StoreLock,
    log: CommitLog,
    findings: Findings,
    *,
    is_slave: bool,
) -> OpenedStore:
    """Make the log, queues and index of a locked store consistent."""
    root = config.root
    queues = ConsumeQueueTable(root / "consumequeue", config.consume_queue_file_bytes, config.delays_ms)
    index = None
    if config.message_index_enable:
        index = IndexService(root / "index", config.max_hash_slot_num, config.max_index_num, disk, clock)
    known = _read_small_files(config, log, queues, findings, is_slave=is_slave)
    recovery = Recovery(log, queues, index, disk, findings, known)
    recovery.run()
    if known.position is None or (root / "consumequeue_ext").is_dir():
        replace_addresses(queues, log, disk, findings)
    queues.mark_dirty()
    for line in findings.lines:
        _log.warning("%s", line)
    try:
        (root / "abort").touch()
    except OSError as error:
        raise StoreError(f"{root / 'abort'} cannot be written: {error.strerror}") from error
    return OpenedStore(
        config=config,
        clock=clock,
        disk=disk,
        log=log,
        queues=queues,
        index=index,
        lock=lock,
        findings=findings.lines,
        marks=recovery.marks,
        known_files=known.files,
        lost_from=recovery.lost_from,
        has_lost_end=recovery.has_lost_end,
    )


def _read_small_files(
    config: StoreConfig, log: CommitLog, queues: ConsumeQueueTable, findings: Findings, *, is_slave: bool
) -> KnownBefore:
    """Return what is known about the store from files other than the log, queues and index."""
    root = config.root
    crashed = (root / "abort").exists()
    checkpoint = load_checkpoint(root / "checkpoint")
    position = load_position(root / "comet" / "position.json")
    if checkpoint is None and any(log.directory.iterdir()):
        findings.add("checkpoint: missing or damaged; the log is read instead")
    if crashed:
        findings.add("abort: the store was not stopped cleanly; recovered from its log")
    return KnownBefore(
        crashed=crashed,
        checkpoint=checkpoint,
        position=position,
        topics=known_topics(root, findings),
        check_crc=config.check_crc_on_recover,
        is_slave=is_slave,
        files=KnownFiles(root / "comet" / "queueFiles.json", log, queues),
    )
