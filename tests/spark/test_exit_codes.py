"""What a job is asked for and is not there, a topic or an archive, is a wrong use of each job alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.spark.topics import Topics

from cometmq.cli.pipeline import command
from cometmq.cli.places import NAMESRV_VARIABLE

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


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    return topics.create(1)


@pytest.mark.spark
@pytest.mark.parametrize("words", MISSING_TOPIC + MISSING_ARCHIVE)
def test_what_is_not_there_is_wrong_use(words: str, topic: str, topics: Topics, tmp_path: Path) -> None:
    """And is found before Spark is started."""
    empty = tmp_path / "empty"
    empty.mkdir()
    job = words.format(there=tmp_path / "there", empty=empty, topic=topic).split()
    done = CliRunner(env={NAMESRV_VARIABLE: topics.namesrv}).invoke(command, job)
    assert done.exit_code == 2, done.output
    assert (
        "no-such" in done.output or f"{empty} holds no archive" in done.output or f"{empty} has no topic" in done.output
    )
    assert "starting Spark" not in done.output
