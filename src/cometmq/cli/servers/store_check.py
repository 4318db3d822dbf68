"""``cometmq doctor --store``: the checks of a store whose broker is stopped or does not start.

Nothing is changed and no lock is acquired. The checks are those of a start: the same functions determine file sizes,
read records and refuse stores. While a broker has the store open, only files that do not change under the check are
read.
"""

from __future__ import annotations

import os
import pwd
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cometmq import descriptors, fastjson
from cometmq.cli.moments import local_time
from cometmq.cli.servers.stopped_log import RESTORE, StoppedLog
from cometmq.client.admin.broker_health import DISK_FULL_RATIO, DISK_HIGH_RATIO, check_queue_entries, check_store_time
from cometmq.client.admin.cluster_health import Watch
from cometmq.client.admin.finding import ADVICE, OK, PROBLEM, Finding
from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import reason_of
from cometmq.limits import CLOCK_BEHIND_MS
from cometmq.quantity import quantity, size_text
from cometmq.store.config import CQ_UNIT_BYTES, StoreConfig
from cometmq.store.disk import Disk, open_file
from cometmq.store.errors import StoreError
from cometmq.store.index.index_file import HEADER, index_file_bytes
from cometmq.store.index.index_service import is_index_name
from cometmq.store.log.checkpoint import load_checkpoint, lock_holder
from cometmq.store.log.mapped_file import data_end
from cometmq.store.queue.consume_queue import BLANK_SIZE, UNIT
from cometmq.store.recovery.entries_look import missing_entries, text_of
from cometmq.store.recovery.file_sizes import numbered_files, queue_directories_of, use_existing_sizes
from cometmq.store.recovery.known_topics import known_topics
from cometmq.store.recovery.load import Findings
from cometmq.store.recovery.lost_log import require_log
from cometmq.store.recovery.opening import next_step_of
from cometmq.store.recovery.position import load_position
from cometmq.store.version import StoreMark, require_readable
from cometmq.visible import visible

_NOT_TABLES: Final = frozenset({"position.json", "queueFiles.json", "store.json"})
"""JSON files that are not tables: recovery checks them with checksums and does without them."""
_PARTS: Final = ("commitlog", "consumequeue", "config")
_SHOWN: Final = 3


class StoreCheck:
    """Checks one store.

    :param commit_log: the log's directory, or ``None`` for ``commitlog`` in ``root``.
    :param reads_all: read all log files instead of the last two.
    """

    def __init__(self, root: Path, commit_log: Path | None, watch: Watch, *, reads_all: bool = False) -> None:
        self._root = root
        self._watch = watch
        self._reads_all = reads_all
        self._config = StoreConfig(
            store_path_root_dir=str(root), store_path_commit_log=str(commit_log) if commit_log is not None else ""
        )

    def run(self) -> Iterator[Finding]:
        """Yield the findings, in the order in which a start would fail."""
        wrong = self._wrong_directory()
        if wrong is not None:
            yield wrong
            return
        try:
            mark = require_readable(self._root)
        except StoreError as error:
            yield _refused("version", error)
            return
        writer = f"written by CometMQ {mark.cometmq}" if mark is not None else "not marked by CometMQ: Apache's, or new"
        yield Finding("version", OK, writer)
        try:
            holder = lock_holder(self._root / "lock")
        except OSError as error:
            yield Finding(
                "lock", PROBLEM, f"cannot be read: {reason_of(error)}", "run as the broker's user, or as root"
            )
            return
        yield self._check_lock(holder)
        yield from self._check_owner()
        if holder is None:
            yield self._check_stop()
        yield from self._check_contents(mark, is_running=holder is not None)

    def _check_contents(self, mark: StoreMark | None, *, is_running: bool) -> Iterator[Finding]:
        try:
            self._config, _ = use_existing_sizes(self._config, mark.sizes if mark is not None else None)
            yield from self._check_disk()
            yield from self._check_tables()
            if is_running:
                return
            require_log(self._config)
            descriptors.raise_limit()
            log = StoppedLog(self._config)
            try:
                yield from self._check_log(log)
            finally:
                log.close()
        except StoreError as error:
            yield _refused("log", error)
        except OSError as error:
            place = error.filename or self._root
            todo = next_step_of(error) or "run as the broker's user; check the disk"
            yield Finding("files", PROBLEM, f"{place}: {reason_of(error)}", todo)

    def _wrong_directory(self) -> Finding | None:
        """Return a finding if the directory is not that of a store."""
        root = self._root
        try:
            names = {entry.name for entry in root.iterdir()}
        except OSError as error:
            return Finding(
                "store", PROBLEM, f"{root}: {reason_of(error)}", "give storePathRootDir, as the broker's user"
            )
        if names.intersection(_PARTS):
            return None
        if root.name in _PARTS:
            return Finding("store", PROBLEM, f"{root} is a part of a store", f"cometmq doctor --store {root.parent}")
        below = sorted({path.parent for part in _PARTS for path in root.glob(f"*/{part}")})
        if below:
            others = ", ".join(str(path) for path in below[:_SHOWN])
            return Finding("store", PROBLEM, f"{root} contains stores: {others}", f"cometmq doctor --store {below[0]}")
        found = f"{root} is empty" if not names else f"{root} has neither {', '.join(_PARTS[:-1])} nor {_PARTS[-1]}"
        return Finding("store", PROBLEM, found, "mount its disk, or give the directory in storePathRootDir")

    # --- process, owner and disk ------------------------------------------------------------------
    def _check_lock(self, holder: int | None) -> Finding:
        if holder is None:
            return Finding("lock", OK, "free: no broker has the store open")
        try:
            name = Path(f"/proc/{holder}/comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            name = "a process that this user cannot see"
        number = f" (process {holder})" if holder else ""
        found = f"held by {visible(name)}{number}; log, queues and index are not checked"
        todo = "cometmq doctor --cluster checks a running broker; stop the process for all checks, or to start another"
        return Finding("lock", ADVICE, found, todo)

    def _check_stop(self) -> Finding:
        if (self._root / "abort").exists():
            todo = "none: the next start recovers the store from its log"
            return Finding("last stop", ADVICE, "not clean: killed, or the machine lost power (file abort)", todo)
        return Finding("last stop", OK, "clean")

    def _check_owner(self) -> Iterator[Finding]:
        """Compare the owner of the directory with this user, and with the owners of what is in it."""
        owner = self._root.stat().st_uid
        others: Counter[int] = Counter()
        closed: list[Path] = []
        for pattern in ("*", "commitlog/*", "config/*", "comet/*", "index/*", "consumequeue/*"):
            for path in self._root.glob(pattern):
                stat = path.lstat()
                if stat.st_uid != owner:
                    others[stat.st_uid] += 1
                if not stat.st_mode & 0o200:
                    closed.append(path)
        name = _user(owner)
        if others:
            them = ", ".join(f"{count} of {_user(uid)}" for uid, count in others.most_common(_SHOWN))
            todo = f"chown -R {name} {self._root}, if the broker runs as {name}"
            yield Finding("owner", PROBLEM, f"the store belongs to {name}, but has files of others: {them}", todo)
        if closed:
            found = f"{quantity(len(closed), 'file')} not writable, for example {closed[0]}"
            yield Finding("owner", PROBLEM, found, f"chmod -R u+rwX {self._root}")
        if not others and not closed:
            yield Finding("owner", OK, f"all files belong to {name}, and are writable")
        if os.geteuid() not in (0, owner):
            yield Finding("owner", ADVICE, f"you are {_user(os.geteuid())}", f"start the broker as {name}")

    def _check_disk(self) -> Iterator[Finding]:
        """Check that the disks have space for another log file."""
        size = self._config.mapped_file_size_commit_log
        places = {self._root.stat().st_dev: self._root}
        log = self._config.commit_log
        if log.is_dir():
            places[log.stat().st_dev] = log
        for place in places.values():
            check, stat = f"disk of {place}", os.statvfs(place)
            free, ratio = stat.f_bavail * stat.f_frsize, Disk().used_ratio(place)
            found = f"{ratio:.0%} used, {size_text(free)} free"
            if stat.f_flag & os.ST_RDONLY:
                yield Finding(check, PROBLEM, "mounted read-only", "check the kernel's log for errors of the disk")
            elif stat.f_files and not stat.f_favail:
                yield Finding(check, PROBLEM, "no free inodes", "delete files, or use another file system")
            elif free < size:
                todo = "free disk space: the next log file cannot be allocated"
                yield Finding(check, PROBLEM, f"{found}; a log file needs {size_text(size)}", todo)
            elif ratio >= DISK_FULL_RATIO:
                yield Finding(check, PROBLEM, found, "free disk space: the broker rejects messages")
            elif ratio >= DISK_HIGH_RATIO:
                yield Finding(check, ADVICE, found, "free disk space: old messages are deleted early")
            else:
                yield Finding(check, OK, f"{found}; a log file needs {size_text(size)}")

    # --- contents ---------------------------------------------------------------------------------
    def _check_log(self, log: StoppedLog) -> Iterator[Finding]:
        root = self._root
        position = load_position(root / "comet" / "position.json")
        yield from log.check_files()
        yield from log.read(position, self._watch, reads_all=self._reads_all)
        yield from self._check_checkpoint(has_log=bool(log.segments))
        yield from self._check_queues(log)
        yield from self._check_index(log)

    def _check_checkpoint(self, *, has_log: bool) -> Iterator[Finding]:
        checkpoint = load_checkpoint(self._root / "checkpoint")
        if checkpoint is None:
            if has_log:
                todo = "none: the next start reads the log instead, which may take longer"
                yield Finding("checkpoint", ADVICE, "missing or damaged", todo)
            return
        flushed = local_time(checkpoint.physic_msg_timestamp)
        yield Finding(
            "checkpoint", OK, f"messages stored until {flushed} are flushed" if flushed else "no messages yet"
        )
        behind = checkpoint.physic_msg_timestamp - SYSTEM_CLOCK.now_ms()
        if behind > CLOCK_BEHIND_MS:
            yield check_store_time(str(self._root), behind)

    def _check_queues(self, log: StoppedLog) -> Iterator[Finding]:
        """Compare the ends of the queues with the end of the log."""
        directories = list(queue_directories_of(self._root))
        last, beyond, gaps = 0, [], []
        with self._watch("checking the queues", len(directories)) as progress:
            for topic, queue_id, directory in directories:
                starts = [file.start for file in numbered_files(directory)]
                size = self._config.consume_queue_file_bytes
                if starts and starts[-1] - starts[0] != (len(starts) - 1) * size:
                    gaps.append(f"{topic}/{queue_id}")
                end = _end_of_last_unit(directory)
                if end > log.end:
                    beyond.append(f"{topic}/{queue_id}")
                else:
                    last = max(last, end)
                progress.advance(1)
        found = quantity(len(directories), "queue")
        if log.end > last and not beyond:
            found += f"; the log has {size_text(log.end - last)} after their last entry, which the next start reads"
        yield Finding("queues", OK, found)
        if beyond:
            found = f"{quantity(len(beyond), 'queue')} after the log's end at {log.end}: {_some(beyond)}"
            todo = f"the log has lost its end: {RESTORE}, which continues without these messages"
            yield Finding("queues", PROBLEM, found, todo)
        if gaps:
            found = f"{quantity(len(gaps), 'queue')} without a file between others: {_some(gaps)}"
            yield Finding("queues", PROBLEM, found, "cometmq pipeline rebuild restores it from the log")
        topics = known_topics(self._root, Findings(self._root))
        there = {(topic, queue_id) for topic, queue_id, _ in directories}
        lost = sorted(f"{topic}/{queue_id}" for topic, queue_id in log.queues - there if topic in topics)
        if lost:
            found = f"{quantity(len(lost), 'queue')} missing, although the log has messages: {_some(lost)}"
            yield Finding("queues", ADVICE, found, "none: the next start makes them again from the log")
        missing = [queue for queue in missing_entries(self._root) if f"{queue.topic}/{queue.queue_id}" not in lost]
        if missing:
            yield check_queue_entries(str(self._root), text_of(missing))

    def _check_index(self, log: StoppedLog) -> Iterator[Finding]:
        """Check the lengths and the headers of the index files."""
        directory = self._root / "index"
        paths = sorted(directory.iterdir()) if directory.is_dir() else []
        expected = index_file_bytes(self._config.max_hash_slot_num, self._config.max_index_num)
        wrong = [path.name for path in paths if not is_index_name(path.name) or path.stat().st_size != expected]
        sound = [path for path in paths if path.name not in wrong]
        if wrong:
            found = f"{quantity(len(wrong), 'file')} with a wrong name or length: {_some(wrong)}"
            todo = "none: the next start moves it to comet/quarantine, and indexes its messages again"
            yield Finding("index", ADVICE, found, todo)
        if not sound:
            if log.end and not wrong:
                todo = "none with messageIndexEnable=false; otherwise, the next start indexes the log"
                yield Finding("index", ADVICE, "no files", todo)
            return
        with sound[-1].open("rb") as file:
            _, _, _, last, _, _ = HEADER.unpack(file.read(HEADER.size))
        if last >= max(log.end, 1):
            found = f"{sound[-1].name} ends at log offset {last}, after the log's end at {log.end}"
            todo = "none: the next start removes these entries; keys of lost messages are not found"
            yield Finding("index", ADVICE, found, todo)
        else:
            yield Finding("index", OK, f"{quantity(len(sound), 'file')}; last indexed message at log offset {last}")

    def _check_tables(self) -> Iterator[Finding]:
        """Parse the JSON tables of the broker and their previous versions."""
        names: list[str] = []
        for directory in ("config", "comet"):
            for path in sorted((self._root / directory).glob("*.json")):
                if path.name in _NOT_TABLES:
                    continue
                names.append(str(path.relative_to(self._root)))
                reason = _why_unreadable(path)
                if reason:
                    yield self._broken_table(path, reason)
        if "config/topics.json" not in names:
            yield Finding("tables", ADVICE, "config/topics.json is missing", self._without_topics())
        if names:
            yield Finding("tables", OK, f"{', '.join(names)} checked")

    def _broken_table(self, path: Path, reason: str) -> Finding:
        backup = path.with_name(f"{path.name}.bak")
        name = path.relative_to(self._root)
        if backup.exists() and not _why_unreadable(backup):
            todo = f"none: the broker uses {backup.name}, which lacks the last change; check it after the start"
            return Finding("tables", ADVICE, f"{name} is damaged: {reason}", todo)
        todo = "restore the file from a backup or a slave; otherwise the broker starts without it"
        return Finding("tables", PROBLEM, f"{name} is damaged, and has no usable .bak: {reason}", todo)

    def _without_topics(self) -> str:
        if (self._root / "config" / "topics.json.bak").exists():
            return "none: the broker uses topics.json.bak, which lacks the last change"
        return "in a new store, none; otherwise restore it: topics are made again from queues, with default settings"


def _refused(check: str, error: StoreError) -> Finding:
    """Return the finding for an error that also keeps a broker from starting."""
    return Finding(check, PROBLEM, error.message, error.next_step or "restore a backup")


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest


def _why_unreadable(path: Path) -> str:
    """Return the reason why a JSON table cannot be used, or an empty string."""
    try:
        loaded = fastjson.loads(path.read_bytes())
    except OSError as error:
        return reason_of(error)
    except (ValueError, RecursionError) as error:
        return str(error)[:100]
    return "" if isinstance(loaded, dict) else "not a JSON object"


def _end_of_last_unit(directory: Path) -> int:
    """Return the log offset after the message to which a queue's last unit points, or 0 if there is none."""
    for file in reversed(numbered_files(directory)):
        with open_file(file.path, os.O_RDONLY) as fd:
            end = -(-data_end(fd, file.size) // CQ_UNIT_BYTES) * CQ_UNIT_BYTES
            while end >= CQ_UNIT_BYTES:
                unit = os.pread(fd, CQ_UNIT_BYTES, end - CQ_UNIT_BYTES)
                offset, size, _ = UNIT.unpack(unit.ljust(CQ_UNIT_BYTES, b"\0"))
                if size > 0 and size != BLANK_SIZE:
                    return int(offset) + int(size)
                end -= CQ_UNIT_BYTES
    return 0
