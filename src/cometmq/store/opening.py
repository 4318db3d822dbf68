"""Opening a store's directory: lock, configuration of files, recovery, and what is known afterwards."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from cometmq import fastjson
from cometmq.clock import Clock
from cometmq.fastjson import FastjsonError
from cometmq.store.checkpoint import Checkpoint, StoreLock, load_checkpoint
from cometmq.store.commit_log import CommitLog
from cometmq.store.config import StoreConfig
from cometmq.store.disk import Disk
from cometmq.store.errors import StoreError
from cometmq.store.extended_units import replace_addresses
from cometmq.store.index_service import IndexService
from cometmq.store.load import Findings, log_file_size, set_unusable_aside
from cometmq.store.position import load_position
from cometmq.store.record_scan import LogScan, read_log_record
from cometmq.store.recovery import Recovery
from cometmq.store.topic_queues import TopicQueues

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class OpenedStore:
    """A store after recovery."""

    config: StoreConfig
    clock: Clock
    disk: Disk
    log: CommitLog
    queues: TopicQueues
    index: IndexService | None
    lock: StoreLock
    findings: list[str]
    checkpoint: Checkpoint
    last_timestamp: int
    """Store timestamp of the last record, 0 for an empty log."""
    last_record: tuple[int, int]
    """Log offset and size of the last record, ``(-1, 0)`` for an empty log."""

    def sound_record(self, view: memoryview, offset: int) -> bytes | None:
        """The bytes of ``view`` when they are the record at log offset ``offset``."""
        record = read_log_record(view, 0, offset, check_crc=False)
        return bytes(view) if record is not None and record.size == len(view) else None

    def earliest_store_time(self) -> int:
        """Store timestamp of the first record kept, -1 for none."""
        record = next(iter(LogScan(self.log, self.log.min_offset, check_crc=False, until=self.log.position)), None)
        return record.store_timestamp if record is not None else -1


def open_store(config: StoreConfig, clock: Clock, disk: Disk) -> OpenedStore:
    """Lock, load and recover; on failure everything is let go again.

    :raises StoreError: locked by another process, or files that cannot be opened at all.
    """
    try:
        config.root.mkdir(parents=True, exist_ok=True)
        config.commit_log.mkdir(parents=True, exist_ok=True)
        lock = StoreLock(config.root / "lock")
    except OSError as error:
        raise StoreError(
            f"{config.root} cannot be used: {error.strerror}", next_step="see storePathRootDir and its permissions"
        ) from error
    log: CommitLog | None = None
    try:
        log = CommitLog(config.commit_log, log_file_size(config.commit_log, config.mapped_file_size_commit_log), disk)
        return _recover(config, clock, disk, lock, log)
    except BaseException as error:
        if log is not None:
            log.close()
        lock.release()
        if isinstance(error, OSError):
            raise StoreError(f"{config.root} cannot be opened: {error}") from error
        raise


def _recover(config: StoreConfig, clock: Clock, disk: Disk, lock: StoreLock, log: CommitLog) -> OpenedStore:
    root = config.root
    findings = Findings(root)
    set_unusable_aside(root, findings)
    if log.segment_size != config.mapped_file_size_commit_log:
        findings.add(
            f"{findings.name(log.directory)}: files of {log.segment_size} bytes, not "
            f"mappedFileSizeCommitLog={config.mapped_file_size_commit_log}; their size is kept"
        )
    queues = TopicQueues(root / "consumequeue", config.consume_queue_file_bytes, config.delays_ms)
    index = None
    if config.message_index_enable:
        index = IndexService(root / "index", config.max_hash_slot_num, config.max_index_num, disk, clock)
    crashed = (root / "abort").exists()
    checkpoint = load_checkpoint(root / "checkpoint")
    position = load_position(root / "comet" / "position.json")
    if checkpoint is None and any(log.directory.iterdir()):
        findings.add("checkpoint: missing or damaged; the log tells instead")
    if crashed:
        findings.add("abort: the store was not stopped cleanly; recovered from its log")
    recovery = Recovery(
        log,
        queues.make,
        index,
        disk,
        findings,
        crashed=crashed,
        checkpoint=checkpoint,
        position=position,
        known_topics=known_topics(root, findings),
        check_crc=config.check_crc_on_recover,
    )
    recovery.run(queues.root)
    if position is None or (root / "consumequeue_ext").is_dir():
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
        checkpoint=checkpoint or Checkpoint(),
        last_timestamp=recovery.last_timestamp,
        last_record=recovery.last_record,
    )


def known_topics(root: Path, findings: Findings) -> frozenset[str] | None:
    """The topics of ``config/topics.json``; ``None`` when that cannot be told.

    Its ``.bak`` does not tell: it lacks the topic that was made last.
    """
    try:
        table = fastjson.loads((root / "config" / "topics.json").read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, FastjsonError) as error:
        findings.add(f"config/topics.json: cannot be read ({error}); every topic of the log is kept")
        return None
    topics = table.get("topicConfigTable") if isinstance(table, dict) else None
    return frozenset(topics) if isinstance(topics, dict) and topics else None
