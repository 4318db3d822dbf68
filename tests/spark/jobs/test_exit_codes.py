"""A topic, an archive or a store that does not exist is a wrong use of each job alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.spark.store_files import write_store
from tests.spark.topics import Topics

from cometmq.cli.contexts import NAMESRV_VARIABLE
from cometmq.cli.jobs.pipeline import command
from cometmq.spark.jobs.archive.from_store import archive_store

MISSING_TOPIC = [
    "archive --topic no-such --to {there} --checkpoint {there}",
    "archive --topic no-such --to {there} --dry-run",
    "audit --topic no-such",
    "delay --topic no-such",
    "dlq --group no-such",
    "mask copy --topic no-such --to-archive {there} --rule $.a=drop",
    "mask copy --topic {topic} --to no-such --work {there} --rule $.a=drop",
    "skew --topic no-such",
    "trace --trace-topic no-such",
]
MISSING_ARCHIVE = [
    "archive compact {empty}",
    "archive expire {empty} --keep 1d",
    "archive vacuum {empty}",
    "audit --topic {topic} --archive {empty}",
    "key-index --archive {empty} --index {there}",
    "replay --archive {empty} --ledger {there}",
    "skew --topic {topic} --archive {empty}",
]
MISSPELT = [
    "archive --store {store} --broker-name b --topic paymets --to {there}",
    "archive --store {store} --broker-name b --topic paymets --to {there} --dry-run",
    "archive --topic {topic}x --to {there} --dry-run",
    "archive compact {lake} --topic paymets",
    "archive expire {lake} --topic paymets --keep 1d",
    "audit --topic {topic}x",
    "delay --archive {lake} --topic paymets",
    "delay --store {store} --topic paymets",
    "delay --topic {topic}x",
    "mask copy --store {store} --topic paymets --to-archive {there} --rule $.a=drop",
    "replay --archive {lake} --ledger {there} --topic paymets",
    "skew --archive {lake} --topic paymets",
    "skew --store {store} --topic paymets",
    "skew --topic {topic}x",
    "trace --store {store} --trace-topic paymets",
]


@pytest.fixture(scope="module")
def files(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store and an archive of it."""
    directory = tmp_path_factory.mktemp("files")
    write_store(directory / "store", 3, body=lambda number: b"%d" % number, topic="payments")
    archive_store(directory / "store", directory / "lake", broker_name="b", spark=spark)
    return directory


MISSING_STORE = [
    "archive --store {empty} --broker-name broker-a --to {there}",
    "mask copy --topic {topic} --store {empty} --to-archive {there} --rule $.a=drop",
    "rebuild --store {empty}",
    "skew --topic {topic} --store {empty}",
]


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    return topics.create(1)


@pytest.mark.spark
@pytest.mark.parametrize("words", MISSING_TOPIC + MISSING_ARCHIVE + MISSING_STORE)
def test_what_is_not_there_is_wrong_use(words: str, topic: str, topics: Topics, tmp_path: Path) -> None:
    """And is found before Spark is started."""
    empty = tmp_path / "empty"
    empty.mkdir()
    job = words.format(there=tmp_path / "there", empty=empty, topic=topic).split()
    done = CliRunner(env={NAMESRV_VARIABLE: topics.namesrv}).invoke(command, job)
    assert done.exit_code == 2, done.output
    known = (
        "no-such",
        *(f"{empty} {what}" for what in ("contains no archive", "has no topic", "has no log files")),
    )
    assert any(words in done.output for words in (*known, f"the store {empty} has no consume queues")), done.output
    assert "starting Spark" not in done.output


@pytest.mark.spark
@pytest.mark.parametrize("words", MISSPELT)
def test_the_name_that_comes_near_is_told(words: str, topic: str, topics: Topics, files: Path, tmp_path: Path) -> None:
    """Before Spark is started, and nothing is made."""
    there = tmp_path / "there"
    job = words.format(there=there, topic=topic, store=files / "store", lake=files / "lake").split()
    done = CliRunner(env={NAMESRV_VARIABLE: topics.namesrv}).invoke(command, job)
    assert done.exit_code == 2, done.output
    near = topic if f"{topic}x" in words.format(topic=topic, there="", store="", lake="") else "payments"
    assert f"did you mean {near}?" in done.output
    assert "starting Spark" not in done.output
    assert not there.exists()


@pytest.mark.spark
def test_an_archive_without_the_topic_is_wrong_use(topic: str, topics: Topics, files: Path) -> None:
    audit = ["audit", "--topic", topic, "--archive", str(files / "lake")]
    done = CliRunner(env={NAMESRV_VARIABLE: topics.namesrv}).invoke(command, audit)
    assert (done.exit_code, f"the archive {files / 'lake'} has no topic {topic}" in done.output) == (2, True)


CONTRADICTIONS = {
    "archive --store {store} --broker-name b --to {there} --checkpoint {there}": "--checkpoint cannot be used with --",
    "archive --store {store} --broker-name b --to {there} --namesrv a:1": "--namesrv cannot be used with",
    "archive --store {store} --broker-name b --to {there} --commit-interval 5m": "--commit-interval cannot be used",
    "archive --store {store} --broker-name b --to {there} --commit-rows 5": "cannot be used with --store",
    "archive --store {store} --broker-name b --to {there} --access useTLS=true": "--access cannot be used with --",
    "archive --topic {topic} --broker-name b --to {there} --checkpoint {there}": "--broker-name requires --store",
    "archive --topic {topic} --pattern p.* --to {there} --checkpoint {there}": "exactly one of",
    "archive --topic {topic} --starting-offsets latest --option startingTimestamp=5 --to {there} --dry-run": (
        "startingOffsets and startingTimestamp cannot be combined"
    ),
    "skew --topic {topic} --broker-name b": "the broker name can only be set when reading a store",
    "skew --topic {topic} --archive {lake} --store {store}": "exactly one",
    "skew --topic {topic} --archive {lake} --namesrv a:1": "--namesrv cannot be used with --archive, which is read",
    "delay --store {store} -n a:1": "--namesrv cannot be used with --store, which is read",
    "trace --archive {lake} -n a:1": "--namesrv cannot be used with",
    "dlq --archive {lake} --group g -n a:1": "--namesrv cannot be used with",
    "mask copy --topic {topic} --store {store} -n a:1 --rule $.a=mask --to-archive {there}": "--namesrv cannot be",
    "skew --topic {topic} --since 5 --until 4": "--until is before --since",
    "archive --topic {topic} --to {there} --option readFrom=slave --option readFrom=master": "another value already",
    "archive --topic {topic} --to {there} --dry-run --commit-interval soon": (
        "--commit-interval must be a duration such as 500ms, 90s, 1h30m or 2d, not 'soon'"
    ),
    "archive --topic {topic} --to {there} --dry-run --option maxTriggerDelay=soon": (
        "option maxTriggerDelay must be a duration such as 500ms, 90s, 1h30m or 2d, not 'soon'"
    ),
    "archive --topic {topic} --to {there} --dry-run --commit-bytes big": "--commit-bytes must be a number of bytes",
    "archive --topic {topic} --to {there} --dry-run --starting-offsets first": "--starting-offsets must be earliest,",
    "archive --topic {topic} --to {there} --dry-run --trigger soon": "--trigger must be availableNow or an interval",
    "archive --topic a..b --to {there} --dry-run": "--topic is invalid: ",
    "archive --pattern ( --to {there} --dry-run": "--pattern must be a regular expression, not '(': ",
    "delay --days 0": "must be a whole number from 1 to 366, not '0'",
    "skew --topic {topic} --access useTLS": "must be NAME=VALUE, an option for credentials or TLS, not 'useTLS'",
}


@pytest.mark.spark
@pytest.mark.parametrize("words", CONTRADICTIONS)
def test_options_that_contradict_each_other_are_wrong_use(words: str, topic: str, files: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    job = words.format(there=there, topic=topic, store=files / "store", lake=files / "lake").split()
    done = CliRunner().invoke(command, job)
    assert (done.exit_code, CONTRADICTIONS[words] in done.output) == (2, True), done.output
    assert not there.exists()
