"""The formats of an archive's table, and the interface that the tables of all formats have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from cometmq.archive.chain import Writer
from cometmq.archive.changes import Snapshot
from cometmq.archive.commits import Commit
from cometmq.archive.files import DataFile
from cometmq.spark.errors import OptionError
from cometmq.storage import Storage

PARQUET: Final = "parquet"
DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
FORMATS: Final = (PARQUET, DELTA, ICEBERG)
PERIODS: Final = frozenset({"hour", "day", "month", "year"})
"""Periods of store time by which an Iceberg table can be partitioned."""
DEFAULT_PARTITION: Final = "topic,hour"

DELTA_LOG: Final = "_delta_log"
ICEBERG_POINTER: Final = "_iceberg.json"
"""File that names the catalog of an archive's table."""


@dataclass(frozen=True)
class TableFormat:
    """The format of an archive's table, with its catalog if the format is Iceberg."""

    name: str = PARQUET
    catalog: str | None = None
    """Name of an Iceberg catalog in pyiceberg's configuration. By default, the table has its own catalog in the
    directory.
    """
    table: str | None = None
    """Namespace and name of the Iceberg table."""
    catalog_options: Mapping[str, str] | None = field(default=None, repr=False)
    """Properties of the catalog, such as type and uri, which override pyiceberg's configuration."""
    partition: str = DEFAULT_PARTITION
    """Partitions of a new Iceberg table, by commas: ``topic``, ``queueId``, and one of :data:`PERIODS`."""
    take_over: bool = False
    """True to continue in an existing Iceberg table that no archive job has created."""

    def check(self) -> None:
        """Check that the format exists.

        :raises OptionError: the format is unknown, or does not use catalogs.
        """
        if self.name not in FORMATS:
            raise OptionError(f"unknown archive format {self.name!r}", next_step=f"use {', '.join(FORMATS)}")
        if self.name != ICEBERG and (self.catalog is not None or self.table is not None):
            raise OptionError(f"catalog and table are only allowed for the format iceberg, not for {self.name}")
        if self.catalog is not None and self.table is None:
            raise OptionError(
                f"catalog {self.catalog} needs the name of a table", next_step="add it, as in --table lake.orders"
            )
        parts = self.partition.split(",")
        if set(parts) - {"topic", "queueId", *PERIODS} or len(set(parts)) < len(parts) or len({*parts} & PERIODS) > 1:
            raise OptionError(
                f"unknown partitions {self.partition!r}",
                next_step=f"use topic, queueId and one of {', '.join(sorted(PERIODS))}, as in --partition topic,day",
            )


Decide = Callable[[Snapshot], Commit | None]
"""Function that computes the next commit from the table's contents, or returns None if there is nothing to commit."""


class ArchiveTable(ABC):
    """An archive's table. Commits are atomic."""

    format: ClassVar[str]

    @property
    @abstractmethod
    def storage(self) -> Storage:
        """Return the storage of the data files."""

    @property
    def url(self) -> str:
        """Return the archive's path, URL or name."""
        return self.storage.url

    def prepare(self) -> None:  # noqa: B027  # most tables begin with their first commit
        """Create the table if the location of its files is unknown before it exists."""

    @abstractmethod
    def last(self) -> Commit | None:
        """Read the last commit, without its list of files."""

    @abstractmethod
    def batch_of(self, query_id: str) -> int | None:
        """Return the last batch that a query committed to this archive, or None if it committed no batch."""

    @abstractmethod
    def files(self) -> list[DataFile]:
        """List the files that currently belong to the archive."""

    @abstractmethod
    def epoch(self) -> int:
        """Return the epoch of the last writer."""

    @abstractmethod
    def open_writer(self, now_ms: int) -> Writer:
        """Open the table for one job. Jobs that opened it earlier can no longer commit."""

    @abstractmethod
    def append(self, writer: Writer, decide: Decide) -> Commit | None:
        """Commit messages of the job that has opened the table.

        :raises ArchiveError: another job has opened the table in the meantime, or another program changed it at the
            same time.
        """

    @abstractmethod
    def change(self, decide: Decide) -> Commit | None:
        """Replace or remove files. Another job may archive messages at the same time."""

    @abstractmethod
    def removed_since(self, time_ms: int) -> set[str]:
        """Return the paths of files that were removed at or after this time, ms since 1970."""

    def forget(self, time_ms: int) -> None:  # noqa: B027  # only one format keeps versions
        """Delete versions of the table that stopped being current before this time, if the format keeps old
        versions.
        """
