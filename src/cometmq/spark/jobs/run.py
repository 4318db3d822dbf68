"""Functions that all jobs share: opening a session, caching frames, running work in tasks, and finding the cause of a
failure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from cometmq.archive.locks import local_directory
from cometmq.spark.errors import OptionError, SparkSourceError
from cometmq.spark.jobs.job import SparkOptions
from cometmq.spark.object_stores import open_place
from cometmq.spark.session.environment import driver_session, tasks_at_a_time
from cometmq.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)

_TASKS_PER_CORE: Final = 2
_LEAST_TASKS: Final = 4
"""Minimum number of tasks in a shuffle. Spark's default of 200 suits clusters; on two cores, 200 tasks take longer than
reading a small topic.
"""


@contextmanager
def job_session(options: SparkOptions, name: str) -> Iterator[SparkSession]:
    """Yield the session in ``options``, or a new session that is stopped at the end of the block.

    :raises SparkSourceError: Spark failed within the block; the error is one sentence.
    """
    with driver_session(options.spark, options.master, name) as session:
        if options.spark is None:
            tasks = max(_LEAST_TASKS, tasks_at_a_time(session) * _TASKS_PER_CORE)
            session.conf.set("spark.sql.shuffle.partitions", str(tasks))
        from pyspark.errors import PySparkException

        try:
            yield session
        except PySparkException as error:
            raise SparkSourceError(cause_of(str(error))) from error


def open_new_place(url: str | os.PathLike[str] | None, storage: Mapping[str, str] | None) -> Storage | None:
    """Open the storage for a new table, or return None if ``url`` is None.

    :param storage: options of the object store.
    :raises OptionError: the directory exists, or the place contains objects.
    """
    if url is None:
        return None
    place = open_place(url, storage)
    directory = local_directory(place)
    if any(place.list_objects()) if directory is None else directory.exists():
        raise OptionError(f"{place.url} already exists", next_step="use a directory that does not exist")
    return place


@contextmanager
def persisted(frame: DataFrame) -> Iterator[DataFrame]:
    """Keep a frame on the executors' disks while it is used more than once."""
    from pyspark import StorageLevel

    frame.persist(StorageLevel.DISK_ONLY)
    try:
        yield frame
    finally:
        frame.unpersist()


def collect_results(
    frame: DataFrame, work: Callable[[Iterator[pa.RecordBatch]], Iterable[msgspec.Struct]], kind: type[R]
) -> list[R]:
    """Process each partition of a frame in a Spark task, and return the results, which have the type ``kind``.

    :param work: function that processes the rows of one partition. It is pickled for the executors.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        texts = [msgspec.json.encode(result).decode() for result in work(batches)]
        yield pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], names=["result"])

    return [msgspec.json.decode(row[0], type=kind) for row in frame.mapInArrow(run, "result string").collect()]


def run_tasks(
    spark: SparkSession, tasks: Sequence[T], work: Callable[[T], Iterable[msgspec.Struct]], kind: type[R]
) -> list[R]:
    """Run each part of some work in a Spark task. Return the results, which have the type ``kind``, in the same order.

    :param work: function that processes one part. The function and ``tasks`` are pickled for the executors.
    """

    def work_on(batches: Iterable[pa.RecordBatch]) -> Iterator[msgspec.Struct]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(tasks[number])

    return collect_results(spark.range(0, len(tasks), 1, len(tasks)), work_on, kind)


_MOST_SAID: Final = 1000
"""Maximum number of characters from Spark's message about a failure. Some messages contain complete query plans."""


def cause_of(text: str) -> str:
    """Return CometMQ's error from Spark's message about a failed query. If there is none, return the last Python error,
    or else the message.

    The query's ids and state, and stack traces, are removed. The last sentence is often the next step.
    """
    for pattern in (r"(?:^\s*|: )cometmq\.[\w.]+Error: (.+)$", r"^\s*(\w[\w.]*Error: .+)$"):
        if found := re.findall(pattern, text, re.MULTILINE):
            return str(found[-1])
    said = re.split(r"^(?:=== |JVM stacktrace|Traceback|\s+at )", text.strip(), maxsplit=1, flags=re.MULTILINE)[0]
    said = re.sub(r"^\[STREAM_FAILED\] Query \[[^]]*\] terminated with exception: (?=.)", "", said)
    said = " ".join(re.sub(r"\s*SQLSTATE: \w{5}\b", "", said).split())
    return said if len(said) <= _MOST_SAID else f"{said[:_MOST_SAID]}…"
