"""The checkpoint of the archive query. Spark writes it, and the archive job reads it before the query starts.

Spark first writes ``metadata``, then ``offsets/0`` and, when batch 0 is done, ``commits/0``. Each file has a hidden
name before it is complete. If Spark is killed while it writes ``offsets/0``, it refuses to start again with the
remaining directory (``STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY``), although no batch was planned.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from cometmq.archive.locks import local_directory
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.object_stores import open_place
from cometmq.storage import Location, ObjectNotFoundError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SET_ASIDE: Final = "_dead"
"""Checkpoint directory for incomplete files from starts that were killed."""
STARTING_OFFSETS: Final = "_starting_offsets.json"
"""Checkpoint file that contains the offsets at which the first start began."""
_METADATA: Final = "metadata"
_LOGS: Final = ("offsets", "commits")
_MODULES: Final = {
    "s3a": "--packages org.apache.hadoop:hadoop-aws:{version}",
    "abfs": "--packages org.apache.hadoop:hadoop-azure:{version}",
    "abfss": "--packages org.apache.hadoop:hadoop-azure:{version}",
    "gs": "the Cloud Storage connector of Google for Hadoop 3 (--jars)",
}
_LEAVE_OUT: Final = "leave out --checkpoint, since the archive itself has the offsets"

_log = logging.getLogger(__name__)


class Checkpoint:
    """A checkpoint, which may not exist yet. It can be pickled."""

    def __init__(self, root: str | os.PathLike[str], storage: Mapping[str, str] | None = None) -> None:
        """Open the place, to which Spark itself writes.

        :param storage: options of the object store, with which this class reads the checkpoint.
        """
        self.storage: Final = open_place(root, storage)

    def __str__(self) -> str:
        return self.storage.url

    def query_id(self) -> str | None:
        """Return the query id that Spark assigned, or None if the checkpoint is new.

        :raises ArchiveError: the directory is not a checkpoint.
        """
        try:
            identity: Any = json.loads(self.storage.read(_METADATA))
            return str(identity["id"])
        except ObjectNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ArchiveError(
                f"{self.storage.describe(_METADATA)} is not the metadata of a Spark checkpoint",
                next_step="use another checkpoint: a new one continues where the archive's last commit ends",
            ) from error

    def last_committed_batch(self) -> int | None:
        """Return the last batch that Spark marked as done."""
        return max(self._batches("commits"), default=None)

    def has_begun(self) -> bool:
        """Return True if a batch was ever planned. In that case, the checkpoint determines where the query
        continues.
        """
        return any(map(self._batches, _LOGS))

    def set_aside_dead_start(self) -> str | None:
        """Move the files left by a start that was killed before its first batch. Return their new directory, or None if
        nothing was moved.

        A checkpoint that contains a planned batch is not changed.
        """
        if _LOGS[0] not in self.storage.list_directories() or self.has_begun():
            return None
        left = [name for name in self._names() if PurePosixPath(name).parts[0] in (*_LOGS, "state")]
        try:
            self.query_id()
        except ArchiveError:  # never by a kill, but by a power cut
            left += [name for name in self._names() if name in (".metadata.crc", _METADATA)]
        if not left:
            return None
        there = self.storage.list_directories(SET_ASIDE)
        aside = next(f"{SET_ASIDE}/{n}" for n in itertools.count() if str(n) not in there)
        for name in left:
            with suppress(FileNotFoundError, ObjectNotFoundError):  # a driver of Spark Connect may still be at it
                self._move(name, f"{aside}/{name}")
        _log.warning("a killed start left %s without a first batch; its files are now in %s", self, aside)
        return aside

    def _names(self) -> Iterator[str]:
        """Yield the names of all files, also of those that Spark had not completed: hidden or empty files."""
        if (directory := local_directory(self.storage)) is not None:
            yield from (path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
        else:
            yield from (found.key for found in self.storage.list_objects())
            yield from (found.key for found in self.storage.list_unfinished())

    def _move(self, name: str, target: str) -> None:
        if (directory := local_directory(self.storage)) is not None:
            (directory / target).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).rename(directory / target)
            return
        if content := self.storage.read(name):
            self.storage.put(target, content)
        self.storage.delete([name])

    def _batches(self, log: str) -> list[int]:
        names = map(PurePosixPath, self._names())
        return [int(name.name) for name in names if name.parts[:-1] == (log,) and name.name.isdecimal()]


def demand_file_system(spark: SparkSession, url: str) -> None:
    """Check that Spark can write a checkpoint to a URL.

    A session of Spark Connect cannot be asked; its query fails with the server's own message.

    :raises OptionError: Spark has no file system for the URL's scheme.
    """
    scheme, jvm = Location.parse(url).scheme, getattr(spark, "_jvm", None)
    if not scheme or jvm is None:
        return
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    configuration = spark._jsc.hadoopConfiguration()
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, configuration)
    except Py4JJavaError as error:
        module = _MODULES.get(scheme, "").format(version=jvm.org.apache.hadoop.util.VersionInfo.getVersion())
        needed = f"start Spark with {module}" if module else f"use {url.replace('s3://', 's3a://')}"
        raise OptionError(
            f"Spark has no file system for {scheme}://",
            option="checkpoint",
            next_step=f"{_LEAVE_OUT}; or {needed}",
        ) from error
