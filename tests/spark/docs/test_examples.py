"""The scripts and the notebook of ``examples/spark`` as written, all in one session against one broker."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.interop.systems import System
from tests.spark.conftest import EXAMPLES, SYSTEM, RunExample
from tests.spark.store_files import write_store
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from cometmq.message.names import dlq_topic
from cometmq.spark.records.columns import COLUMNS

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def orders(topics: Topics) -> str:
    """The topic that the first script fills for the others."""
    return topics.create(queues=4)


def count_in(spark: Any, topics: Topics, topic: str) -> int:
    source = spark.read.format("rocketmq").option("namesrvAddr", topics.namesrv).option("topic", topic)
    found: int = source.schema("queueOffset bigint").load().count()
    return found


def test_source_sink_archive_and_audit(
    run_example: RunExample, spark: Any, topics: Topics, orders: str, tmp_path: Path
) -> None:
    assert run_example("sink.py", topics.namesrv, orders) == "batch written\nstream written\n"
    assert count_in(spark, topics, orders) == 1050
    customer = (
        spark.read.format("rocketmq")
        .options(namesrvAddr=topics.namesrv, topic=orders, tags="paid || sent")
        .schema("queueId int, queueOffset bigint, keys string, properties map<string,string>")
        .load()
        .where("properties['__SHARDINGKEY'] = 'customer-7'")
        .orderBy("queueOffset")
        .collect()
    )
    assert [row.keys for row in customer] == [f"order-{number}" for number in range(7, 1000, 10)]
    assert len({row.queueId for row in customer}) == 1

    read = run_example("read.py", topics.namesrv, orders)
    assert re.search(r"\|late\| +50\| +250\|\n\|paid\| +334\| +\d+\|\n\|sent\| +666\|", read), read
    assert "334 orders are paid" in read
    windows = run_example("windows.py", topics.namesrv, orders)
    assert windows.count("micro-batch ") == 2
    assert sum(int(count) for count in re.findall(r"\|(?:late|paid|sent) *\| *(\d+)\|", windows)) == 1050
    assert "now 0 messages behind" in windows

    copy = topics.create(queues=4)
    replayed = run_example("replay.py", topics.namesrv, orders, copy, tmp_path)
    assert "1,050 messages in" in replayed
    assert f"1,050 messages of {orders} in" in replayed
    assert "a second run sends 0" in replayed
    audited = run_example("audit.py", topics.namesrv, orders, tmp_path)
    assert "✔ everything agrees" in audited
    assert "stored → archived: half within" in audited


@pytest.mark.skipif(SYSTEM is System.APACHE, reason="exactly once needs brokers that know the rows again")
def test_exactly_once(run_example: RunExample, topics: Topics) -> None:
    source = topics.create(queues=2)
    topics.send(source, 0, [b"x"] * 7, "TAGS\x01paid")
    topics.send(source, 1, [b"y"] * 5, "TAGS\x01sent")
    said = run_example("exactly_once.py", topics.namesrv, source, topics.create(queues=4))
    assert re.findall(r"^(\d+) messages after", said, re.MULTILINE) == ["7", "17", "17"]


def test_dead_letters(run_example: RunExample, topics: Topics, tmp_path: Path) -> None:
    bills = topics.create(1)
    group = f"clerks-{bills}"
    topics.create(1, dlq_topic(group))
    topics.send(dlq_topic(group), 0, [b"1", b"2"], f"RETRY_TOPIC\x01{bills}\x02TAGS\x01paid")
    said = run_example("dead_letters.py", topics.namesrv, group, tmp_path)
    assert f"2 came from {bills}" in said
    assert "attempt 1 sent 2, 0 were sent before\nattempt 2 sent 0, 2 were sent before" in said


def test_the_disk_of_a_dead_broker(run_example: RunExample, tmp_path: Path) -> None:
    write_store(tmp_path / "store", 60, body=lambda number: b"%d" % number)
    said = run_example("dead_broker.py", tmp_path / "store", "broker-a", tmp_path / "lake")
    assert "60 messages are safe" in said


def test_the_notebook(spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its code cells run one after the other; what they print is what the notebook shows."""
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    book = json.loads((EXAMPLES / "walkthrough.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "walkthrough.ipynb", "exec"), names)
            shown = "".join("".join(output["text"]) for output in cell["outputs"])
            assert without_figures(capsys.readouterr().out) == without_figures(shown)


def without_figures(text: str) -> str:
    """The output without the parts that differ at every run: times, speeds, sizes and places of files."""
    return re.sub(r"\d[\d,.:]*|/\S+| +|-{2,}", "#", text)


def test_the_notebook_names_columns_that_exist() -> None:
    book = json.loads((EXAMPLES / "walkthrough.ipynb").read_text(encoding="utf-8"))
    table = "".join("".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "markdown")
    mentioned = set(re.findall(r"`([a-z]+[A-Z]\w+)`", table))
    assert mentioned <= {column.name for column in COLUMNS} | {"shardingKey", "deliveryGuarantee"}
