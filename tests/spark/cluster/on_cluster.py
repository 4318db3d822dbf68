"""A driver program on a standalone cluster; ``python -m tests.spark.cluster.on_cluster MASTER`` answers calls.

A call is a line of JSON on stdin, ``[function, arguments]``, its answer one on stdout: ``{"result": …}``.
Nothing here knows that there is a cluster: the session comes from :func:`cometmq.spark.local_session`,
and the jobs are those that run on one machine.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def seen(batches: Iterable[Any]) -> Iterator[Any]:
    """For ``mapInArrow``: how much of which broker, the executor that has it, and where that has CometMQ from."""
    import pyarrow as pa

    import cometmq

    for batch in batches:
        brokers = batch.column("brokerName").value_counts().to_pylist()
        at = {"executor": os.environ["SPARK_EXECUTOR_DIRS"], "package": str(Path(cometmq.__file__).parent)}
        yield pa.RecordBatch.from_pylist([{"broker": of["values"], "rows": of["counts"], **at} for of in brokers])


def source(spark: Any, namesrv: str, topic: str, **options: Any) -> Any:
    """The topic as a batch."""
    return spark.read.format("rocketmq").options(namesrvAddr=namesrv, topic=topic, **options).load()


def register(spark: Any) -> None:
    """Tell Spark of the source, which it does not look for in a zip."""
    import pyspark_rocketmq

    spark.dataSource.register(pyspark_rocketmq.DefaultSource)


def read(spark: Any, namesrv: str, topic: str) -> dict[str, Any]:
    """Messages of each broker, the executors that have read them, and where a browser sees that."""
    frame = source(spark, namesrv, topic, minPartitions=4).select("brokerName")
    rows = frame.mapInArrow(seen, "broker string, rows bigint, executor string, package string").collect()
    return {
        "counts": [sum(row["rows"] for row in rows if row["broker"] == of) for of in {row["broker"] for row in rows}],
        "executors": len({row["executor"] for row in rows}),
        "packages": sorted({row["package"] for row in rows}),
        "web": spark.sparkContext.uiWebUrl,
    }


def count(spark: Any, namesrv: str, topic: str) -> list[int]:
    """Messages of a topic, and different bodies among them."""
    from pyspark.sql import functions as f

    return list(source(spark, namesrv, topic).agg(f.count("*"), f.count_distinct("body")).first())


def stream_to_parquet(spark: Any, namesrv: str, topic: str, place: str) -> int:
    """Run a stream until all is read; rows that have arrived."""
    frame = spark.readStream.format("rocketmq").options(
        namesrvAddr=namesrv, topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger=6000, minPartitions=2
    )
    writer = frame.load().writeStream.format("parquet").option("checkpointLocation", f"{place}/checkpoint")
    writer.option("path", f"{place}/rows").trigger(availableNow=True).start().awaitTermination()
    return int(spark.read.parquet(f"{place}/rows").select("queueId", "brokerName", "queueOffset").distinct().count())


def sink(spark: Any, namesrv: str, topic: str, to: str, guarantee: str) -> None:
    """Copy a topic as a batch."""
    frame = source(spark, namesrv, topic, minPartitions=2).select("body", "tags")
    options = {"namesrvAddr": namesrv, "topic": to, "deliveryGuarantee": guarantee}
    frame.write.format("rocketmq").mode("append").options(**options).save()


def stream_sink(spark: Any, namesrv: str, topic: str, to: str, checkpoint: str) -> None:
    """Copy a topic as a stream of small micro-batches, exactly once."""
    frame = spark.readStream.format("rocketmq").options(
        namesrvAddr=namesrv, topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger=1500, minPartitions=2
    )
    writer = frame.load().select("body", "tags").writeStream.format("rocketmq")
    writer = writer.options(namesrvAddr=namesrv, topic=to, deliveryGuarantee="exactly-once")
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def archive(
    spark: Any, namesrv: str, topic: str, to: str, checkpoint: str, most: int, table_format: str
) -> dict[str, Any]:
    """The archive job."""
    from cometmq.spark.jobs.archive.job import archive

    named: dict[str, Any] = {"max_offsets_per_trigger": most, "table_format": table_format}
    done = archive(namesrv, topic, to, checkpoint, options={"minPartitions": "2"}, spark=spark, **named)
    return done.to_dict()


def audit(spark: Any, namesrv: str, topic: str, archive: str) -> list[str]:
    """The audit job: what differs."""
    from cometmq.spark.jobs.audit.job import audit

    return [found.what for found in audit(namesrv, topic, archive=archive, spark=spark).disagreements]


def replay(spark: Any, namesrv: str, archive: str, ledger: str, to: str) -> int:
    """The replay job: messages sent."""
    from cometmq.spark.jobs.replay.job import replay

    return sum(queue.messages for queue in replay(archive, namesrv, ledger, to=to, spark=spark).queues)


def skew(spark: Any, namesrv: str, topic: str) -> list[int]:
    """The skew job: messages of each queue."""
    from cometmq.spark.jobs.message_source import MessageSource
    from cometmq.spark.jobs.skew import skew

    report = skew(MessageSource(namesrv), topic, by="tags", spark=spark)
    return [queue.messages for queue in report.topics[0].queues]


def main(master: str) -> None:
    """Answer calls until stdin ends."""
    from cometmq.spark.session.environment import local_session

    answers, sys.stdout = sys.stdout, sys.stderr
    spark = local_session(master, "cometmq tests")
    for line in sys.stdin:
        function, arguments = json.loads(line)
        try:
            answer = {"result": globals()[function](spark, **arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
