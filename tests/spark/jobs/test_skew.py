"""The skew job: hot keys, uneven queues, and how many queues there should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from cometmq.cli.jobs.pipeline import command
from cometmq.spark.errors import OptionError
from cometmq.spark.jobs.archive.job import archive
from cometmq.spark.jobs.message_source import MessageSource
from cometmq.spark.jobs.skew import Demand, gini, max_to_mean, recommended_queues, skew

LOADS = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=50)


@given(LOADS)
def test_measures_of_balance_stay_within_their_bounds_and_do_not_depend_on_order(loads: list[int]) -> None:
    count = len(loads)
    assert -1e-9 <= gini(loads) <= (count - 1) / count + 1e-9
    assert 1 - 1e-9 <= max_to_mean(loads) <= count
    assert gini(loads) == gini(loads[::-1])
    # Gini by its definition: mean difference of all pairs, halved, by the mean.
    if sum(loads):
        pairs = sum(abs(one - other) for one in loads for other in loads)
        assert gini(loads) == pytest.approx(pairs / (2 * count * sum(loads)))


def test_balance_of_known_loads() -> None:
    assert (gini([5, 5, 5, 5]), max_to_mean([5, 5, 5, 5])) == (0.0, 1.0)
    assert (gini([0, 0, 0, 8]), max_to_mean([0, 0, 0, 8])) == (0.75, 4.0)
    assert (gini([0, 0]), max_to_mean([0, 0])) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("peak", "consumers", "imbalance", "share", "queues"),
    [
        (100, 1, 1.0, 0.0, 1),  # one is enough
        (100, 6, 1.0, 0.0, 6),  # none may idle
        (4500, 1, 1.0, 0.0, 5),  # the rate decides
        (4500, 4, 1.0, 0.0, 8),  # a multiple of the consumers
        (4500, 1, 2.0, 0.0, 9),  # the busiest queue gets twice the mean
        (4500, 1, 2.0, 0.5, 5),  # a hot key is not cured by queues
    ],
)
def test_the_number_of_queues_follows_the_rule(
    peak: float, consumers: int, imbalance: float, share: float, queues: int
) -> None:
    assert recommended_queues(Demand(peak, 1000, consumers, imbalance, share)) == queues


@pytest.fixture
def uneven(topics: Topics) -> str:
    """Queue 0: 60 messages of key "hot"; 1: 30 of their own and 10 with two keys; 2: none; 3: 20 without keys."""
    topic = topics.create(4)
    topics.send(topic, 0, [b"x" * 100] * 60, "KEYS\x01hot\x02__SHARDINGKEY\x01s0\x02TAGS\x01A")
    for number in range(30):
        topics.send(topic, 1, [b"y"], f"KEYS\x01own{number}\x02__SHARDINGKEY\x01s1\x02TAGS\x01B")
    topics.send(topic, 1, [b"z"] * 10, "KEYS\x01two hot  two\x02TAGS\x01B")
    topics.send(topic, 3, [b"w"] * 20, "")
    return topic


@pytest.mark.spark
def test_hot_keys_and_uneven_queues_are_found(spark: Any, topics: Topics, uneven: str) -> None:
    even = topics.fill(40, queues=2)
    source = MessageSource(topics.namesrv)
    report = skew(source, [uneven, even], consumers=3, top=2, spark=spark)
    found = {of.topic: of for of in report.topics}
    assert report.messages == 160
    assert [(of.queue_id, of.messages) for of in found[uneven].queues] == [(0, 60), (1, 40), (2, 0), (3, 20)]
    assert (found[uneven].max_to_mean, found[uneven].gini) == (2.0, gini([60, 40, 0, 20]))
    assert found[uneven].gini_bytes > found[uneven].gini
    assert (found[uneven].keys, found[uneven].recommended_queues) == (32, 3)
    assert [(hot.key, hot.messages, round(hot.share, 3), hot.queues) for hot in report.hot_keys] == [
        ("hot", 70, 0.583, 2),
        ("two", 10, 0.083, 1),
    ]
    assert "1 of 4 queues hold no messages" in found[uneven].notes
    assert (found[even].max_to_mean, found[even].gini, found[even].notes, found[even].keys) == (1.0, 0.0, (), 0)

    by_sharding = skew(source, uneven, by="shardingKey", handled_per_s=0.001, spark=spark)
    [only] = by_sharding.topics
    assert [(hot.key, hot.messages, hot.queues) for hot in by_sharding.hot_keys] == [("s0", 60, 1), ("s1", 30, 1)]
    assert any("one key has 50% of the messages" in note for note in only.notes)
    assert any("divide the key" in note for note in only.notes)


@pytest.mark.spark
def test_the_command_shows_brokers_and_archives_alike(
    spark: Any, topics: Topics, uneven: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.spark.session.environment.local_session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    archive(topics.namesrv, uneven, tmp_path / "lake", tmp_path / "checkpoint", spark=spark)
    page = tmp_path / "skew.html"
    wanted = ["skew", "--topic", uneven, "--by", "tags"]
    live = CliRunner().invoke(command, [*wanted, "-n", topics.namesrv, "--report", str(page)], catch_exceptions=False)
    assert "hot tags" in live.stdout
    assert "counting tags of 120 messages" in live.stderr
    assert f"Skew of {uneven}" in page.read_text()
    old = CliRunner().invoke(command, [*wanted, "--archive", str(tmp_path / "lake"), "-o", "json"])
    seen = json.loads(old.stdout)
    assert [(hot["key"], hot["messages"]) for hot in seen["hot_keys"]] == [("A", 60), ("B", 40)]
    # An archive knows only queues that hold something.
    assert [queue["messages"] for queue in seen["topics"][0]["queues"]] == [60, 40, 20]
    nothing = CliRunner().invoke(
        command, [*wanted, "--archive", str(tmp_path / "lake"), "--since", "4000000000000", "-o", "json"]
    )
    assert json.loads(nothing.stdout)["messages"] == 0


@pytest.mark.spark
def test_wrong_use(topics: Topics) -> None:
    source = MessageSource(topics.namesrv)
    with pytest.raises(OptionError, match="use keys"):
        skew(source, "any", by="bodies")
    with pytest.raises(OptionError, match="above 0"):
        skew(source, "any", consumers=0)
    with pytest.raises(click.UsageError, match="has no topic no-such"):
        CliRunner().invoke(
            command,
            ["skew", "-n", topics.namesrv, "--topic", "no-such"],
            standalone_mode=False,
            catch_exceptions=False,
        )
