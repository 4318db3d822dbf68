"""No secret is found in what Spark writes or tells: plans, progress, event log, checkpoints, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from pyspark.errors import PySparkException

pytestmark = pytest.mark.spark

SECRET, TOKEN, PASSWORD = "zq7vSales4secret", "zq7vSales4token", "zq7vSales4password"
MARK = "zq7vSales4"
"""Part of all of them."""


def plans(frame: Any) -> str:
    """Every form in which Spark explains a frame."""
    execution = frame._jdf.queryExecution()
    explain = frame.sparkSession.sparkContext._jvm.PythonSQLUtils.explainString
    modes = ("extended", "formatted")
    return "\n".join([execution.toString(), *(explain(execution, mode) for mode in modes)])


def found_in(directory: Path) -> dict[str, bytes]:
    """Contents of the files that have a secret in them."""
    files = {str(file): file.read_bytes() for file in directory.rglob("*") if file.is_file()}
    assert files
    return {name: content for name, content in files.items() if MARK.encode() in content}


def test_secrets_are_in_no_plan_progress_event_checkpoint_or_error(
    spark: Any, event_log: Path, topics: Topics, tmp_path: Path
) -> None:
    topic, copy, again = topics.fill(20, queues=1), topics.create(1), topics.create(1)
    account = {"accessKey": "sales", "secretKey": SECRET, "securityToken": TOKEN}
    servers = {"namesrvAddr": topics.namesrv, **account}
    texts: list[str] = []

    frame = spark.read.format("rocketmq").options(topic=topic, **servers).load()
    texts.append(plans(frame))
    assert frame.count() == 20
    rows = frame.selectExpr("body", "tags")
    texts.append(plans(rows))
    rows.write.format("rocketmq").mode("append").options(topic=copy, **servers).save()

    given = ", ".join(f"'{name}' '{value}'" for name, value in {"topic": copy, **servers}.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW secured USING rocketmq OPTIONS ({given})")
    view = spark.sql("SELECT queueId, count(*) AS messages FROM secured GROUP BY queueId")
    texts += [plans(view), str(spark.sql("DESCRIBE EXTENDED secured").collect())]
    assert view.collect()[0].messages == 20
    spark.catalog.dropTempView("secured")

    checkpoint = tmp_path / "checkpoint"
    query = (
        spark.readStream.format("rocketmq")
        .options(topic=topic, startingOffsets="earliest", **servers)
        .load()
        .select("body")
        .writeStream.format("rocketmq")
        .options(topic=again, checkpointLocation=str(checkpoint), **servers)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    texts += [json.dumps([json.loads(progress.json) for progress in query.recentProgress]), str(query.status)]
    texts.append(query._jsq.explainInternal(True))
    assert sum(progress.numInputRows for progress in query.recentProgress) == 20

    broken = {"useTLS": "true", "tlsCertPath": "/nowhere.pem", "tlsKeyPassword": PASSWORD}
    for options in ({"secretKeyFile": "f"}, {"topic": "absent"}, {"namesrvAddr": "127.0.0.1:1"}, broken):
        given_now = {"topic": topic, **servers, **options}
        with pytest.raises(PySparkException) as unread:
            spark.read.format("rocketmq").options(**given_now).load().collect()
        with pytest.raises(PySparkException) as unsent:
            rows.write.format("rocketmq").mode("append").options(**given_now).save()
        texts += [str(unread.value), str(unsent.value)]

    assert [text for text in texts if MARK in text] == []
    assert found_in(checkpoint) == {}
    assert found_in(event_log) == {}
    assert any(topic.encode() in file.read_bytes() for file in event_log.rglob("*") if file.is_file())
