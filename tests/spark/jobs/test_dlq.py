"""The dlq job: dead letters counted by what they have in common, and sent again once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from cometmq.cli.jobs.pipeline import command
from cometmq.client.dead_letters import Selection
from cometmq.message.names import dlq_topic
from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import GetMaxOffsetRequestHeader, GetMaxOffsetResponseHeader
from cometmq.spark.errors import OptionError
from cometmq.spark.jobs.archive.job import archive
from cometmq.spark.jobs.columns import HOUR_MS
from cometmq.spark.jobs.dead_letters import dead_letters, send_again
from cometmq.spark.jobs.message_source import MessageSource

pytestmark = pytest.mark.spark


def properties(topic: str, number: int, **more: str) -> str:
    named = {"RETRY_TOPIC": topic, "UNIQ_KEY": f"U{topic}{number}", "ORIGIN_MESSAGE_ID": f"O{number}", **more}
    return "\x02".join(f"{name}\x01{value}" for name, value in named.items())


class Died:
    """Two groups with dead letters of two topics: three of the first group, one of the second."""

    def __init__(self, topics: Topics) -> None:
        self.orders, self.bills = topics.create(1), topics.create(1)
        self.first, self.second = f"workers-{self.orders}", f"clerks-{self.orders}"
        for group in (self.first, self.second):
            topics.create(1, dlq_topic(group))
        letters = dlq_topic(self.first)
        topics.send(letters, 0, [b"1"], properties(self.orders, 1, TAGS="paid", KEYS="k1 k2", WHY="timeout"))
        topics.send(letters, 0, [b"2"], properties(self.orders, 2, TAGS="paid", KEYS="k1", WHY="timeout"))
        topics.send(letters, 0, [b"3"], properties(self.bills, 3, TAGS="sent"))
        topics.send(dlq_topic(self.second), 0, [b"4"], properties(self.orders, 4, TAGS="paid", KEYS="k1"))


@pytest.fixture(scope="module")
def died(topics: Topics) -> Died:
    return Died(topics)


def stored(topics: Topics, topic: str) -> int:
    """Messages in the only queue of a topic."""
    with BlockingConnection(topics.broker, 60) as connection:
        answer = connection.invoke(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic, 0))
        return answer.header(GetMaxOffsetResponseHeader).offset


def test_dead_letters_are_counted_by_what_they_have_in_common(spark: Any, topics: Topics, died: Died) -> None:
    source = MessageSource(topics.namesrv)
    report = dead_letters(source, (died.first, died.second), reason="WHY", spark=spark)
    assert [(of.group, of.letters) for of in report.groups] == [(died.first, 3), (died.second, 1)]
    assert all(0 < of.oldest_ms <= of.newest_ms for of in report.groups)
    assert [(of.value, of.letters, of.groups) for of in report.topics] == [(died.orders, 3, 2), (died.bills, 1, 1)]
    assert [(of.value, of.letters) for of in report.tags] == [("paid", 3), ("sent", 1)]
    assert [(of.value, of.letters) for of in report.keys] == [("k1", 3), ("k2", 1)]
    assert [(of.value, of.letters) for of in report.reasons] == [("", 2), ("timeout", 2)]
    assert sum(count for _, count in report.over_time) == 4
    assert {at % HOUR_MS for at, _ in report.over_time} == {0}
    assert (report.letters, report.stretch_ms) == (4, HOUR_MS)

    # Without groups: all that have dead letters.
    everyone = dead_letters(source, spark=spark)
    assert {died.first, died.second} <= {of.group for of in everyone.groups}


@pytest.mark.parametrize(
    ("chosen", "letters"),
    [
        (Selection(), 3),
        (Selection(key="k1"), 2),
        (Selection(key="k"), 0),
        (Selection(tag="sent"), 1),
        (Selection(ids=frozenset({"O1", "unknown"})), 1),
        (Selection(end_ms=1), 0),
    ],
)
def test_a_selection_counts_what_would_be_sent_again(
    spark: Any, topics: Topics, died: Died, tmp_path: Path, chosen: Selection, letters: int
) -> None:
    report = dead_letters(MessageSource(topics.namesrv), [died.first], selection=chosen, spark=spark)
    assert report.letters == letters
    [would] = send_again(topics.namesrv, [died.first], chosen, ledgers=tmp_path, dry_run=True)
    assert would.sent == letters
    assert not list(tmp_path.iterdir())


def test_the_command_sends_again_once(
    spark: Any, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.spark.session.environment.local_session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    died = Died(topics)
    page = tmp_path / "dlq.html"
    wanted = ["dlq", "-n", topics.namesrv, "--group", died.first, "--tag", "paid", "--ledgers", str(tmp_path / "notes")]

    def run(*more: str) -> Any:
        return CliRunner().invoke(command, [*wanted, *more], standalone_mode=False, catch_exceptions=False)

    dry = run("--resend", "--dry-run", "--report", str(page))
    assert "would be sent" in dry.stdout
    assert died.first in page.read_text()
    assert stored(topics, died.orders) == 0
    for sent, before in ((2, 0), (0, 2)):
        done = run("--resend", "-o", "json")
        assert done.return_value == 0
        [resent] = json.loads(done.stdout)["resent"]
        assert (resent["sent"], resent["sent_before"], resent["failed"]) == (sent, before, 0)
        assert stored(topics, died.orders) == 2
    assert stored(topics, died.bills) == 0

    # One whose topic is not there fails; with another that was sent that is partly done, alone it failed.
    topics.send(dlq_topic(died.first), 0, [b"5"], properties("no-such-topic", 5, TAGS="paid"))
    partly = run("--resend")
    assert partly.return_value == 3
    assert "no-such-topic" in partly.stdout
    assert run("--resend", "--origin-topic", "no-such-topic").return_value == 1

    archive(topics.namesrv, dlq_topic(died.first), tmp_path / "lake", tmp_path / "checkpoint", spark=spark)
    old = CliRunner().invoke(command, ["dlq", "--archive", str(tmp_path / "lake"), "-o", "json"])
    assert json.loads(old.stdout)["letters"] == 4


def test_wrong_use(topics: Topics, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="invalid group name"):
        dead_letters(MessageSource(topics.namesrv), ["a/b"])
    with pytest.raises(OptionError, match="has no topic %DLQ%nobody"):
        dead_letters(MessageSource(topics.namesrv), ["nobody"])
    for options in (["--resend"], ["--dry-run"], ["--resend", "--group", "g", "--archive", str(tmp_path)]):
        with pytest.raises(click.UsageError, match="resend"):
            CliRunner().invoke(
                command, ["dlq", "-n", topics.namesrv, *options], standalone_mode=False, catch_exceptions=False
            )
