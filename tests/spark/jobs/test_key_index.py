"""An archive's index by key: what it finds, how it grows, what a run that died leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.spark.store_files import write_store

from cometmq.cli.failures import WrongUseError
from cometmq.cli.jobs.pipeline import command
from cometmq.spark.errors import OptionError
from cometmq.spark.jobs.archive.from_store import archive_store
from cometmq.spark.jobs.key_index import build_key_index, find_by_key

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(spark: Any, tmp_path: Path) -> tuple[Path, Path]:
    """An archive of 300 messages with the keys k0 to k299, and a place for its index."""
    write_store(tmp_path / "store", 300, body=lambda number: b"body %d" % number)
    archive_store(tmp_path / "store", tmp_path / "lake", broker_name="b", spark=spark)
    return tmp_path / "lake", tmp_path / "index"


def test_a_message_is_found_by_its_key_as_it_was_stored(spark: Any, lake: tuple[Path, Path]) -> None:
    done = build_key_index(*lake, spark=spark)
    assert (done.messages, done.keys) == (300, 300)
    [found] = find_by_key(*lake, "T", "k123")
    assert (found.body, found.queue_id, found.queue_offset, found.broker_name) == (b"body 123", 0, 41, "b")
    assert find_by_key(*lake, "T", "k999") == []
    assert find_by_key(*lake, "Other", "k123") == []


def test_a_run_indexes_only_what_is_new(spark: Any, lake: tuple[Path, Path], tmp_path: Path) -> None:
    build_key_index(*lake, spark=spark)
    nothing = build_key_index(*lake, spark=spark)
    assert (nothing.messages, "nothing new" in nothing.render()) == (0, True)
    write_store(tmp_path / "second", 30, body=lambda number: b"second %d" % number)
    archive_store(tmp_path / "second", lake[0], broker_name="c", spark=spark)
    done = build_key_index(*lake, spark=spark)
    assert [(of.topic, of.messages, of.keys) for of in done.topics] == [("T", 30, 30)]
    assert [found.body for found in find_by_key(*lake, "T", "k7")] == [b"body 7", b"second 7"]
    assert [found.body for found in find_by_key(*lake, "T", "k7", limit=1)] == [b"body 7"]


def test_a_run_that_died_counts_for_nothing(spark: Any, lake: tuple[Path, Path]) -> None:
    build_key_index(*lake, spark=spark)
    for done in lake[1].glob("run=*/_indexed.json"):
        done.unlink()
    with pytest.raises(OptionError, match="key-index"):
        find_by_key(*lake, "T", "k1")
    again = build_key_index(*lake, spark=spark)
    assert again.messages == 300
    assert len(find_by_key(*lake, "T", "k1")) == 1


def test_the_command_builds_and_finds(spark: Any, lake: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.spark.session.environment.local_session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    places = ["--archive", str(lake[0]), "--index", str(lake[1])]
    page = lake[0].with_name("page.html")
    dry = CliRunner().invoke(command, ["key-index", *places, "--dry-run", "--report", str(page)])
    assert "300 messages would be indexed under 300 keys" in dry.stdout
    assert "300 messages would be indexed" in page.read_text()
    assert not lake[1].exists()
    built = CliRunner().invoke(command, ["key-index", *places, "-o", "json"])
    assert (json.loads(built.stdout)["messages"], json.loads(built.stdout)["exit_code"]) == (300, 0)
    assert "indexing 3 files" in built.stderr
    found = CliRunner().invoke(command, ["key-index", *places, "--find", "k5", "--topic", "T", "-o", "json"])
    assert [(row["queue_offset"], row["body"]) for row in json.loads(found.stdout)] == [(1, "body 5")]
    with pytest.raises(WrongUseError, match="--topic"):
        CliRunner().invoke(
            command, ["key-index", *places, "--find", "k5"], standalone_mode=False, catch_exceptions=False
        )
