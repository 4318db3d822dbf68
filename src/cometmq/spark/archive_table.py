"""The seam behind an archive's log: one table, kept as Parquet with commits beside it, as Delta Lake, or as Iceberg."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from cometmq.spark.archive_commit import Commit, DataFile
from cometmq.spark.errors import ArchiveError, OptionError

PARQUET: Final = "parquet"
DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
FORMATS: Final = (PARQUET, DELTA, ICEBERG)

COMMITS: Final = "_commits"
"""Directory of a Parquet archive's commits."""
DELTA_LOG: Final = "_delta_log"
ICEBERG_POINTER: Final = "_iceberg.json"
"""Says which catalog has the table of an archive."""


@dataclass(frozen=True, slots=True)
class TableFormat:
    """How an archive keeps its table."""

    name: str = PARQUET
    catalog: str | None = None
    """For Iceberg: a catalog that pyiceberg is configured for; without one, an own one in the archive's directory."""
    table: str | None = None
    """For Iceberg: namespace and name of the table."""

    def check(self) -> None:
        """Demand that there is such a format.

        :raises OptionError: there is not, or it has no catalogs.
        """
        if self.name not in FORMATS:
            raise OptionError(f"an archive has no format {self.name!r}", next_step=f"it has {', '.join(FORMATS)}")
        if self.name != ICEBERG and (self.catalog is not None or self.table is not None):
            raise OptionError(f"catalog and table are for Iceberg, not for {self.name}")
        if self.catalog is not None and self.table is None:
            raise OptionError(
                f"it is not said which table of catalog {self.catalog}", next_step="as in --table lake.orders"
            )


def format_of(said: TableFormat | str | None) -> TableFormat | None:
    """What a job was told of the format."""
    return TableFormat(said) if isinstance(said, str) else said


class ArchiveTable(Protocol):
    """What the log of an archive needs of its table. A commit appears whole or not at all."""

    format: str

    def last(self) -> Commit | None:
        """Read the last commit, without its files."""

    def batch_of(self, query_id: str) -> int | None:
        """Find the last batch that a query committed here; None if it never did."""

    def files(self) -> list[DataFile]:
        """List the files that belong to the archive now."""

    def commit(self, commit: Commit, removed: Sequence[DataFile]) -> None:
        """Add ``commit.files`` and let go of ``removed``, together with all else that the commit says.

        :raises ArchiveError: somebody else has changed the table meanwhile; nothing was committed.
        """

    def removed_since(self, time_ms: int) -> set[str]:
        """Name the files that were let go of at this time or later, ms since 1970."""

    def forget(self, time_ms: int) -> None:
        """Let go of versions of the table that nobody read any more from this time on, where it keeps versions."""


def table_at(root: Path, wanted: TableFormat | None) -> ArchiveTable:
    """The table in a directory; a new one of the ``wanted`` format, Parquet if that is not said.

    :raises OptionError: there is no such format.
    :raises ArchiveError: the directory holds an archive of another format, or the format's package is missing.
    """
    found = _found(root)
    if wanted is not None:
        wanted.check()
        if found is not None and found != wanted.name:
            raise ArchiveError(
                f"{root} holds an archive of format {found}, not {wanted.name}",
                next_step=f"go on with --format {found}, or archive into another directory",
            )
    name = found or (wanted.name if wanted is not None else PARQUET)
    if name == DELTA:
        from cometmq.spark.archive_delta import DeltaArchive

        return DeltaArchive(root)
    if name == ICEBERG:
        from cometmq.spark.archive_iceberg import IcebergArchive

        return IcebergArchive(root, wanted)
    from cometmq.spark.archive_parquet import ParquetArchive

    return ParquetArchive(root)


def _found(root: Path) -> str | None:
    if (root / DELTA_LOG).is_dir():
        return DELTA
    if (root / ICEBERG_POINTER).exists():
        return ICEBERG
    return PARQUET if (root / COMMITS).is_dir() else None
