"""StoreConfig: a store's directories, file sizes, flushing and retention (``MessageStoreConfig``)."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, Self

import msgspec

from cometmq.java_values import parse_int
from cometmq.limits import MAX_DELAY_LEVELS
from cometmq.message.layout import QUEUE_UNIT
from cometmq.options import ApacheRules, option
from cometmq.options.forms import PATH, one_of, text

ASYNC_FLUSH: Final = "ASYNC_FLUSH"
SYNC_FLUSH: Final = "SYNC_FLUSH"
CQ_UNIT_BYTES: Final = QUEUE_UNIT.size
MIN_LOG_FILE_BYTES: Final = 4096
_MOST_QUEUE_FILE_BYTES: Final = (2**31 - 1) // CQ_UNIT_BYTES * CQ_UNIT_BYTES
_HOUR: Final = r"(2[0-3]|[01]?[0-9])"
_DELAY: Final = r"[+-]?[0-9]{1,9}[smhd]"
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class FileSizes(msgspec.Struct, frozen=True):
    """The sizes of a store's files."""

    log: Annotated[int, msgspec.Meta(ge=MIN_LOG_FILE_BYTES)]
    """The size of each log file in bytes."""
    queue: Annotated[int, msgspec.Meta(ge=CQ_UNIT_BYTES, multiple_of=CQ_UNIT_BYTES)]
    """The size of each queue file in bytes."""
    index_slots: Annotated[int, msgspec.Meta(ge=1)]
    index_entries: Annotated[int, msgspec.Meta(ge=2)]


@dataclasses.dataclass(frozen=True, slots=True)
class StoreConfig:
    """The keys of ``broker.conf`` that the store uses, with Apache's defaults."""

    store_path_root_dir: str = option(
        str(Path.home() / "store"),
        "Directory of the store. If it is empty in a file, / is used, as in Apache's broker.",
        form=PATH,
        apache=ApacheRules(empty="/", outside="refused"),
    )
    store_path_commit_log: str = option(
        "",
        "Directory of the commit log. Empty: commitlog/ in the store's directory.",
        form=PATH,
        apache=ApacheRules(outside="refused"),
    )
    mapped_file_size_commit_log: int = option(1 << 30, "Size of each log file, in bytes.", minimum=MIN_LOG_FILE_BYTES)
    mapped_file_size_consume_queue: int = option(
        300_000 * CQ_UNIT_BYTES,
        "Size of each queue file, in bytes, rounded up to a multiple of 20.",
        minimum=CQ_UNIT_BYTES,
    )
    message_index_enable: bool = option(True, "Index messages by key.")
    max_hash_slot_num: int = option(5_000_000, "Number of hash slots in each index file.", minimum=1)
    max_index_num: int = option(20_000_000, "Maximum number of entries in each index file.", minimum=2)
    flush_disk_type: str = option(
        ASYNC_FLUSH,
        "Acknowledge messages before (ASYNC_FLUSH) or after (SYNC_FLUSH) they are flushed to disk.",
        form=one_of(ASYNC_FLUSH, SYNC_FLUSH),
    )
    flush_interval_commit_log: int = option(
        500, "ASYNC_FLUSH: interval between flushes of the log, in milliseconds.", minimum=1
    )
    flush_interval_consume_queue: int = option(
        1000,
        "Interval between flushes of queues and index, in milliseconds. Each flush is followed by a checkpoint. "
        "After a crash, the first one waits five intervals.",
        minimum=1,
    )
    check_crc_on_recover: bool = option(
        True, "Check the CRC of message bodies during recovery.", key="checkCRCOnRecover"
    )
    message_delay_level: str = option(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "Delays of the delay levels, starting with level 1.",
        form=text(
            rf"{_DELAY}(\s+{_DELAY}){{0,{MAX_DELAY_LEVELS - 1}}}\s*",
            f"at most {MAX_DELAY_LEVELS} delays such as 10s 5m 2h 1d",
        ),
        apache=ApacheRules(outside="refused"),
    )
    file_reserved_time: int = option(72, "Number of hours for which log files are kept.", runtime=True)
    delete_when: str = option(
        "04",
        "Hours of the day at which expired files are deleted.",
        form=text(rf"{_HOUR}(;{_HOUR})*;*", "hours from 0 to 23, separated by semicolons"),
        runtime=True,
        apache=ApacheRules(outside="kept"),
    )
    clean_resource_interval: int = option(
        10_000, "Interval between checks for files to delete, in milliseconds.", minimum=1
    )
    delete_file_batch_max: int = option(10, "Maximum number of files that are deleted in one check.", minimum=1)
    disk_max_used_space_ratio: int = option(
        75,
        "Disk usage, in percent, above which expired files are deleted at any hour.",
        minimum=10,
        maximum=95,
        runtime=True,
    )
    disk_space_clean_forcibly_ratio: int = option(
        85,
        "Disk usage, in percent, above which the oldest files are deleted before they expire.",
        minimum=1,
        maximum=100,
    )
    disk_space_warning_level_ratio: int = option(
        90, "Disk usage, in percent, above which messages are refused.", minimum=1, maximum=100
    )
    clean_file_forcibly_enable: bool = option(True, "Allow files to be deleted before they expire if the disk is full.")

    @property
    def root(self) -> Path:
        """The store's directory."""
        return Path(self.store_path_root_dir)

    @property
    def commit_log(self) -> Path:
        """The log's directory."""
        return Path(self.store_path_commit_log) if self.store_path_commit_log else self.root / "commitlog"

    @property
    def consume_queue_file_bytes(self) -> int:
        """The size of each queue file in bytes, a multiple of the unit size that an ``int`` of Java's can have."""
        size = -(-self.mapped_file_size_consume_queue // CQ_UNIT_BYTES) * CQ_UNIT_BYTES
        return min(size, _MOST_QUEUE_FILE_BYTES)

    @property
    def file_sizes(self) -> FileSizes:
        """The file sizes for new files."""
        return FileSizes(
            self.mapped_file_size_commit_log,
            self.consume_queue_file_bytes,
            self.max_hash_slot_num,
            self.max_index_num,
        )

    def with_sizes(self, sizes: FileSizes) -> Self:
        """Return a copy of the configuration with the given file sizes."""
        return dataclasses.replace(
            self,
            mapped_file_size_commit_log=sizes.log,
            mapped_file_size_consume_queue=sizes.queue,
            max_hash_slot_num=sizes.index_slots,
            max_index_num=sizes.index_entries,
        )

    @property
    def sync_flush(self) -> bool:
        """True if messages are acknowledged only after a flush."""
        return self.flush_disk_type == SYNC_FLUSH

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """The delay of each level in milliseconds, starting with level 1."""
        return tuple(max(0, int(word[:-1])) * _UNIT_MS[word[-1]] for word in self.message_delay_level.split())

    @property
    def delete_hours(self) -> frozenset[int]:
        """Parse the hours in ``deleteWhen``, stopping at the first part that is not a number
        (``UtilAll.isItTimeToDo``).
        """
        hours: list[int] = []
        with suppress(ValueError):
            hours.extend(parse_int(part) for part in self.delete_when.rstrip(";").split(";"))
        return frozenset(hours)
