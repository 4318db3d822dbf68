"""Which messages a replay takes, and which queue each goes to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from cometmq.message.ids import index_hash, java_hash
from cometmq.message.properties import SHARDING_KEY
from cometmq.spark.archive_commit import DataFile
from cometmq.spark.errors import OptionError
from cometmq.spark.queues import Queue
from cometmq.spark.replay_ledger import Range, Selection

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SEPARATOR: Final = "\x01"


def select(frame: DataFrame, topic: str, selection: Selection) -> DataFrame:
    """The rows of an archive that a selection takes.

    :raises OptionError: its predicate is no Spark SQL on the archive's columns.
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

    frame = frame.where(f.col("topic") == topic)
    if selection.since_ms is not None:
        frame = frame.where(f.col("storeTimestamp") >= f.timestamp_millis(f.lit(selection.since_ms)))
    if selection.until_ms is not None:
        frame = frame.where(f.col("storeTimestamp") < f.timestamp_millis(f.lit(selection.until_ms)))
    if selection.tags:
        frame = frame.where(f.col("tags").isin(list(selection.tags)))
    if selection.keys:
        keys = list(selection.keys)
        named = f.arrays_overlap(f.split("keys", " "), f.array(*map(f.lit, keys)))
        frame = frame.where(f.coalesce(named, f.lit(False)) | f.col("uniqKey").isin(keys))
    if selection.where is not None:
        try:
            frame = frame.where(selection.where)
            frame.schema  # noqa: B018 (Spark looks at the predicate now)
        except (AnalysisException, ParseException) as error:
            raise OptionError(
                f"the predicate {selection.where!r} cannot be read: {str(error).strip().splitlines()[0]}",
                next_step="it is Spark SQL on the columns of an archive, as in \"tags = 'paid' AND queueId < 2\"",
            ) from error
    return frame


def files_of(files: Iterable[DataFile], topic: str, ranges: Sequence[Range], selection: Selection) -> list[DataFile]:
    """The files that may hold messages of some ranges that the selection takes."""
    by_queue = {(part.broker, part.queue_id): part for part in ranges}
    found = []
    for file in files:
        part = by_queue.get((file.broker, file.queue_id))
        if part is None or file.topic != topic or file.end <= part.first or part.end <= file.first:
            continue
        if selection.since_ms is not None and file.max_store_ms < selection.since_ms:
            continue
        if selection.until_ms is not None and file.min_store_ms >= selection.until_ms:
            continue
        found.append(file)
    return found


def same_queues(sources: Iterable[Queue], targets: Sequence[Queue]) -> dict[Queue, int]:
    """For each queue of the archive the index of the one with its number, on the broker of its name or the only one.

    :raises OptionError: the topic has no such queue.
    """
    sources = sorted(sources)
    index = {(target.broker, target.queue_id): at for at, target in enumerate(targets)}
    brokers = {target.broker for target in targets}
    alone = next(iter(brokers)) if len(brokers) == 1 and len({source.broker for source in sources}) == 1 else None
    found = {}
    for source in sources:
        at = index.get((source.broker, source.queue_id))
        if at is None and alone is not None:
            at = index.get((alone, source.queue_id))
        if at is None:
            raise OptionError(
                f"topic {targets[0].topic} has no queue for {source}",
                next_step=f"give it as many queues on as many brokers ({', '.join(sorted(brokers))} there), or spread "
                "messages anew with --by-key",
            )
        found[source] = at
    return found


def target_by_queue(targets: dict[Queue, int]) -> Column:
    """The target of each row where queues are kept."""
    from pyspark.sql import functions as f

    pairs: list[Any] = []
    for source, at in targets.items():
        pairs += [f.lit(f"{source.broker}{_SEPARATOR}{source.queue_id}"), f.lit(at)]
    place = f.concat("brokerName", f.lit(_SEPARATOR), f.col("queueId").cast("string"))
    return f.create_map(*pairs)[place].cast("int")


def target_by_key(queues: int) -> Column:
    """The target of each row by its sharding key, else its first key, else its unique key, else its place.

    It is the queue that Java's ``SelectMessageQueueByHash`` chooses for that string.
    """
    from pyspark.sql import functions as f

    def chosen(key: str) -> int:
        return index_hash(java_hash(key)) % queues

    first_key = f.nullif(f.get(f.split("keys", " "), f.lit(0)), f.lit(""))
    place = f.concat_ws("/", "brokerName", "queueId", "queueOffset")
    key = f.coalesce(f.col("properties")[SHARDING_KEY], first_key, "uniqKey", place)
    return f.udf(chosen, "int", useArrow=True)(key)
