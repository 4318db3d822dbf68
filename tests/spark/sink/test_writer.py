"""The sink in a real Spark session: batches, streams, SQL, wrong use; tasks, workers and brokers that die."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.pace import Patience
from tests.spark.drivers import run_until_killed, start_driver
from tests.spark.sink.dying import DieOnce, run_stream
from tests.spark.sinking import stored
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

pytestmark = pytest.mark.spark


def writer(frame: Any, topics: Topics, topic: str | None = None, **options: Any) -> Any:
    made = frame.write.format("rocketmq").mode("append").option("namesrvAddr", topics.namesrv)
    return made.options(**({} if topic is None else {"topic": topic}), **options)


def bodies(topics: Topics, topic: str, queues: int) -> list[bytes]:
    return sorted(record.body for records in stored(topics, topic, queues) for record in records)


def numbers(spark: Any, count: int, partitions: int = 2) -> Any:
    return spark.range(0, count, 1, partitions).selectExpr("format_string('%09d', id) AS body", "id")


def expected(count: int) -> list[bytes]:
    return [b"%09d" % number for number in range(count)]


def test_a_batch_with_every_kind_of_column(spark: Any, topics: Topics) -> None:
    topic, other = topics.create(queues=2), topics.create(queues=1)
    frame = numbers(spark, 3000).selectExpr(
        "body",
        "if(id % 10 = 0, '" + other + "', null) AS topic",
        "'TagA' AS tags",
        "array(body, 'all') AS keys",
        "concat('order-', id % 7) AS shardingKey",
        "map('n', cast(id AS string)) AS properties",
        "cast(id AS int) AS flag",
        "cast(null AS int) AS delayLevel",
        "cast(null AS timestamp) AS deliverAt",
    )
    writer(frame, topics, topic).save()
    assert bodies(topics, other, 1) == [body for body in expected(3000) if int(body) % 10 == 0]
    assert bodies(topics, topic, 2) == [body for body in expected(3000) if int(body) % 10]
    record = stored(topics, other, 1)[0][0]
    number = int(record.body)
    assert (record.flag, record.properties["KEYS"]) == (number, f"{record.body.decode()} all")
    assert (record.properties["TAGS"], record.properties["n"]) == ("TagA", str(number))


def test_sql_can_insert_into_a_topic(spark: Any, topics: Topics) -> None:
    topic = topics.create(queues=1)
    spark.sql(
        f"CREATE TABLE totopic (body BINARY, keys STRING) USING rocketmq "
        f"OPTIONS (namesrvAddr '{topics.namesrv}', topic '{topic}')"
    )
    try:
        spark.sql(
            f"INSERT INTO totopic WITH ('namesrvAddr' = '{topics.namesrv}', 'topic' = '{topic}') "
            "VALUES (encode('hello', 'UTF-8'), 'k1')"
        )
    finally:
        spark.sql("DROP TABLE totopic")
    (record,) = stored(topics, topic, 1)[0]
    assert (record.body, record.properties["KEYS"]) == (b"hello", "k1")


@pytest.mark.parametrize(
    ("columns", "options", "mode", "message"),
    [
        (["body", "'x' AS tag"], {}, "append", "did you mean tags"),
        (["body"], {"tpoic": "x"}, "append", "did you mean topic"),
        (["body"], {}, "overwrite", "messages cannot be overwritten"),
        (["body"], {"topic": "never-made"}, "append", "topic never-made does not exist .*cometmq topic create"),
        (["nullif(body, '000000001') AS body"], {}, "append", "row 1 of partition 0: body is null"),
    ],
)
def test_wrong_use_is_told_in_words(
    spark: Any, topics: Topics, columns: list[str], options: dict[str, str], mode: str, message: str
) -> None:
    topic = topics.create(queues=1)
    made = writer(numbers(spark, 3, 1).selectExpr(*columns), topics, **{"topic": topic} | options)
    with pytest.raises(Exception, match=message):
        made.mode(mode).save()
    assert bodies(topics, topic, 1) == []


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path


def add(place: Path, first: int, count: int) -> None:
    """One more file, which is one more micro-batch."""
    (place / "fresh").write_text("".join(f"{number:09d}\n" for number in range(first, first + count)))
    os.utime(place / "fresh", (first, first))  # Spark takes the oldest first, and files of one moment in any order
    (place / "fresh").rename(place / "in" / f"{first:09d}.txt")


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_stream_goes_on_after_a_restart(spark: Any, topics: Topics, place: Path, guarantee: str) -> None:
    topic = topics.create(queues=2)
    add(place, 0, 700)
    add(place, 700, 300)
    query = run_stream(spark, topics.namesrv, topic, place, None, deliveryGuarantee=guarantee)
    assert [progress["numInputRows"] for progress in query.recentProgress] == [700, 300]
    assert [progress["sink"]["numOutputRows"] for progress in query.recentProgress] == [700, 300]
    add(place, 1000, 500)
    run_stream(spark, topics.namesrv, topic, place, None, deliveryGuarantee=guarantee)
    assert bodies(topics, topic, 2) == expected(1500)


@pytest.mark.crash
@pytest.mark.parametrize(
    ("how", "guarantee", "after"),
    [
        ("error", "exactly-once", 600),
        ("worker", "exactly-once", 600),
        ("workers", "exactly-once", 600),
        ("workers", "exactly-once", 2000),
        ("workers", "effectively-once", 600),
        ("workers", "effectively-once", 2000),
    ],
)
def test_a_micro_batch_whose_processes_died_is_repeated_and_each_row_is_there_once(
    spark: Any, topics: Topics, place: Path, how: str, guarantee: str, after: int
) -> None:
    """They die when some of the rows were handed to the sink, or when all of them were."""
    topic = topics.create(queues=2)
    add(place, 0, 2000)
    add(place, 2000, 100)
    die = DieOnce(place / "died", how, after)
    with pytest.raises(Exception, match=r"on purpose|crashed|exited|EOF"):
        run_stream(spark, topics.namesrv, topic, place, die, deliveryGuarantee=guarantee)
    run_stream(spark, topics.namesrv, topic, place, die, deliveryGuarantee=guarantee)
    assert bodies(topics, topic, 2) == expected(2100)


@pytest.mark.crash
def test_nothing_is_lost_when_all_workers_die(spark: Any, topics: Topics, place: Path) -> None:
    topic = topics.create(queues=2)
    add(place, 0, 2000)
    die = DieOnce(place / "died", "workers")
    with pytest.raises(Exception, match=r"on purpose|crashed|exited|EOF"):
        run_stream(spark, topics.namesrv, topic, place, die)
    run_stream(spark, topics.namesrv, topic, place, die)
    assert sorted(set(bodies(topics, topic, 2))) == expected(2000)


@pytest.mark.crash
@pytest.mark.parametrize(
    ("guarantee", "after", "dies"), [("exactly-once", 600, "its JVM, too"), ("effectively-once", 2000, "its Python")]
)
def test_a_killed_driver_leaves_every_row_once(
    spark: Any, topics: Topics, place: Path, guarantee: str, after: int, dies: str
) -> None:
    """The driver that goes on knows of the killed one only by the checkpoint."""
    topic = topics.create(queues=2)
    add(place, 0, 500)
    add(place, 500, 2000)
    driver = ["tests.spark.sink.dying", topics.namesrv, topic, guarantee, str(place), str(after)]
    if dies == "its Python":
        run_until_killed(spark, *driver)
    else:
        with start_driver(*driver) as killed:
            assert killed.wait() == -signal.SIGKILL
    assert (place / "died").exists()
    run_stream(
        spark, topics.namesrv, topic, place, DieOnce(place / "died", "driver", after), deliveryGuarantee=guarantee
    )
    assert bodies(topics, topic, 2) == expected(2500)


def test_a_batch_with_an_id_can_be_run_again(spark: Any, topics: Topics) -> None:
    topic = topics.create(queues=2)
    options = {"deliveryGuarantee": "exactly-once", "producerId": f"load-{topic}"}
    for _ in range(2):
        writer(numbers(spark, 1000).select("body"), topics, topic, **options).save()
    assert bodies(topics, topic, 2) == expected(1000)


def test_what_a_batch_sent_is_a_row_of_sparks_worker_logs(spark: Any, topics: Topics) -> None:
    setting = "spark.sql.pyspark.worker.logging.enabled"
    spark.conf.set(setting, "true")
    try:
        writer(numbers(spark, 30).select("body"), topics, topics.create(queues=2)).save()
        patience = Patience(60)
        while not (told := spark.tvf.python_worker_logs().where("logger = 'cometmq.spark'").collect()):
            assert not patience.is_over
    finally:
        spark.conf.unset(setting)
    assert any(row.level == "INFO" and row.msg.startswith("batch written: 30 messages, ") for row in told)
