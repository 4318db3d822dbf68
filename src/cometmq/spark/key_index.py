"""An index of an archive by key: finds messages that no broker has any more, without reading the archive.

Layout below the index's directory::

    commits=<first>-<last>/bucket=<0..63>/part-*.parquet

Each run indexes the commits that the archive got since the last run, in a directory named by their numbers; a run
that died leaves no ``_SUCCESS`` there, counts for nothing and is overwritten. Rows: topic, key, broker, queue, queue
offset, store time; sorted by topic and key within a bucket, which is the CRC32 of ``topic#key``. Both KEYS and the
unique key are keys, as in a broker's IndexFile.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.message.message import MessageExt
from cometmq.spark.archive_log import ArchiveLog, DataFile
from cometmq.spark.archive_reader import ARCHIVE_DDL, record_of
from cometmq.spark.environment import local_session
from cometmq.spark.errors import ArchiveError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKETS: Final = 64
_COMMITS: Final = re.compile(r"commits=(\d+)-(\d+)")
_DONE: Final = "_SUCCESS"
MAX_FOUND: Final = 10_000
"""Messages that one look-up returns at most."""


@dataclass(frozen=True, slots=True)
class IndexedCommits:
    """What one run has added."""

    first: int
    last: int
    messages: int
    keys: int


def build_key_index(
    archive: str | Path, index: str | Path, *, spark: SparkSession | None = None, master: str = "local[*]"
) -> IndexedCommits | None:
    """Index what an archive got since the last time; ``None`` when that is nothing.

    :param archive: directory of an archive; ``index``: directory of its index, made when it is not there.
    """
    from pyspark.sql import functions as f

    log = ArchiveLog(Path(archive).absolute())
    last_indexed = max((last for _, last, _ in _parts(Path(index))), default=-1)
    new = [commit for commit in log.commits() if commit.sequence > last_indexed]
    files = [file for commit in new for file in commit.files]
    if not files:
        return None
    session = spark or local_session(master, "cometmq key index")
    try:
        messages = session.read.schema(ARCHIVE_DDL).parquet(*(str(log.root / file.path) for file in files))
        every = f.array_distinct(f.concat(f.array("uniqKey"), f.split(f.coalesce("keys", f.lit("")), " ")))
        rows = (
            messages.select("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp", every.alias("every"))
            .withColumn("key", f.explode("every"))
            .where("key <> ''")
            .drop("every")
            .withColumn("bucket", f.crc32(f.concat("topic", f.lit("#"), "key").cast("binary")) % BUCKETS)
        )
        target = Path(index).absolute() / f"commits={new[0].sequence}-{new[-1].sequence}"
        (
            rows.repartition("bucket")
            .sortWithinPartitions("bucket", "topic", "key")
            .write.partitionBy("bucket")
            .mode("overwrite")
            .parquet(str(target))
        )
        keys = session.read.parquet(str(target)).count()
    finally:
        if spark is None:
            session.stop()
    return IndexedCommits(new[0].sequence, new[-1].sequence, sum(file.rows for file in files), keys)


def find_by_key(archive: str | Path, index: str | Path, topic: str, key: str, *, limit: int = 64) -> list[MessageExt]:
    """Return the archived messages of a key, oldest first, at most ``limit``; needs no Spark session.

    :raises ArchiveError: there is no index, or the archive has lost files that it names.
    """
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    parts = _parts(Path(index))
    if not parts:
        raise ArchiveError(f"{index} holds no key index", next_step="make one: cometmq pipeline key-index")
    bucket = f"bucket={zlib.crc32(f'{topic}#{key}'.encode()) % BUCKETS}"
    files = [str(path) for _, _, part in parts for path in sorted((part / bucket).glob("*.parquet"))]
    if not files:
        return []
    wanted = (ds.field("topic") == topic) & (ds.field("key") == key)
    places = ds.dataset(files).to_table(filter=wanted).sort_by("storeTimestamp").slice(0, min(limit, MAX_FOUND))
    log = ArchiveLog(archive)
    files_of = log.files()
    found: list[MessageExt] = []
    for place in places.to_pylist():
        file = _file_with(files_of, place)
        rows = pq.read_table(log.root / file.path, filters=[("queueOffset", "=", place["queueOffset"])]).to_pylist()
        found += [MessageExt(record_of(row), 0, row["brokerName"]) for row in rows]
    return found


def _parts(index: Path) -> list[tuple[int, int, Path]]:
    """First and last commit of each finished run, and its directory."""
    if not index.is_dir():
        return []
    found: Iterator[tuple[re.Match[str] | None, Path]] = ((_COMMITS.fullmatch(at.name), at) for at in index.iterdir())
    return sorted(
        (int(match[1]), int(match[2]), at) for match, at in found if match is not None and (at / _DONE).exists()
    )


def _file_with(files: list[DataFile], place: dict[str, Any]) -> DataFile:
    queue = (place["topic"], place["brokerName"], place["queueId"])
    for file in files:
        if (file.topic, file.broker, file.queue_id) == queue and file.first <= place["queueOffset"] < file.end:
            return file
    raise ArchiveError(
        f"the index names offset {place['queueOffset']} of {queue}, which the archive does not hold",
        next_step="do archive and index belong together?",
    )
