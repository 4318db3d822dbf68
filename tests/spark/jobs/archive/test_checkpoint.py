"""Checkpoints that a SIGKILL left at any write of Spark's: the same command goes on, nothing is lost or doubled."""

from __future__ import annotations

import json
import shutil
import uuid
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.spark.lake_files import demand_exactly
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from cometmq.spark.errors import ArchiveError, OptionError, SparkSourceError
from cometmq.spark.jobs.archive.checkpoint import SET_ASIDE, Checkpoint
from cometmq.spark.jobs.archive.job import archive
from cometmq.spark.jobs.archive.report import ArchivedBatch
from cometmq.spark.source.offsets import kept_starting_offsets

pytestmark = pytest.mark.spark

Operation = Callable[[Path], object]
TOKEN = "329e8fd3-ce10-42d8-beaa-17b682562b41"
FIRST_WRITE, RENAME = 3, 1
"""Of the five operations of each file, after three directories."""


def operations(whole: Path, name: str) -> Iterator[Operation]:
    """Write a file as Spark does: beside its place with a checksum, then both are renamed (recorded with strace)."""
    kept, kept_crc = Path(name), Path(name).with_name(f".{Path(name).name}.crc")
    fresh = kept.with_name(f".{kept.name}.{TOKEN}.tmp")
    fresh_crc = fresh.with_name(f".{fresh.name}.crc")

    def write(root: Path) -> None:
        shutil.copy(whole / kept, root / fresh)
        shutil.copy(whole / kept_crc, root / fresh_crc)

    yield lambda root: (root / fresh).touch()
    yield lambda root: (root / fresh_crc).touch()
    yield write
    yield lambda root: (root / fresh).rename(root / kept)
    yield lambda root: (root / fresh_crc).rename(root / kept_crc)


def rename_query(query_id: str, checkpoint: Path, lake: Path) -> None:
    """Give a query an id of its own: Spark runs one query of an id at a time."""
    other = str(uuid.uuid4()).encode()
    for path in (*checkpoint.glob("metadata"), *checkpoint.glob(".metadata.*.tmp"), *lake.glob("_commits/*")):
        path.write_bytes(path.read_bytes().replace(query_id.encode(), other))
    for crc in (*checkpoint.glob(".metadata.crc"), *checkpoint.glob("..metadata.*.tmp.crc")):
        named = crc.with_name(crc.name[1 : -len(".crc")])
        data = (named if named.exists() else checkpoint / "metadata").read_bytes()
        crc.write_bytes(b"crc\x00" + (512).to_bytes(4, "big") + zlib.crc32(data).to_bytes(4, "big"))


@dataclass(frozen=True)
class State:
    """The files that a kill leaves."""

    name: str
    checkpoint: Path
    archived: int
    """Commits of the archive."""


def states(whole: Path, place: Path) -> Iterator[State]:
    """Every prefix of the operations that made a checkpoint of two batches, with all archives that fit it."""
    made = place / "made"
    steps: list[tuple[str, Operation, int]] = [
        (name, lambda root, name=name: (root / name).mkdir(), 0)  # type: ignore[misc]
        for name in (".", "offsets", "commits")
    ]
    for archived, name in enumerate(("metadata", "offsets/0", "commits/0", "offsets/1", "commits/1")):
        steps += [(name, operation, archived // 2) for operation in operations(whole, name)]
    for number, (name, operation, archived) in enumerate(steps):
        operation(made)
        if name.endswith("/1") and number % 5 not in (FIRST_WRITE, RENAME):
            continue  # as in batch 0
        # A batch whose offsets are written is archived before it is marked as done, or not yet.
        is_planned = name.startswith("offsets") and (made / name).exists()
        for commits in (archived, archived + 1) if is_planned else (archived,):
            copy = place / f"{number:02d}-{commits}-{name.replace('/', '-')}"
            shutil.copytree(made, copy)
            yield State(copy.name, copy, commits)


def is_the_same(one: Path, other: Path) -> bool:
    """Tell whether directories hold files of the same names."""
    names = [{str(path.relative_to(root)) for path in root.rglob("*")} for root in (one, other)]
    return names[0] == names[1]


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_the_same_command_goes_on_from_every_write_that_a_kill_can_cut(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    whole, lake = tmp_path / "whole", tmp_path / "lake"
    topic = topics.fill(60, queues=2)
    lakes = [tmp_path / f"lake-{number}" for number in range(3)]
    lakes[0].mkdir()

    def keep(batch: ArchivedBatch) -> None:
        shutil.copytree(lake, lakes[batch.batch_id + 1])

    archive(topics.namesrv, topic, lake, whole, max_offsets_per_trigger=30, spark=spark, on_batch=keep)
    found = list(states(whole, tmp_path))
    assert is_the_same(tmp_path / "made", whole), "Spark writes other files than this test knows"
    assert len(found) == 26
    query_id = Checkpoint(whole).query_id()
    assert query_id is not None

    def go_on(state: State) -> Path:
        to = tmp_path / f"to-{state.name}"
        shutil.copytree(lakes[state.archived], to)
        rename_query(query_id, state.checkpoint, to)
        report = archive(topics.namesrv, topic, to, state.checkpoint, max_offsets_per_trigger=30, spark=spark)
        assert report.total_rows == 60, state
        return to

    with ThreadPoolExecutor(4) as pool:
        ends = list(pool.map(go_on, found))
    for to in ends[:: len(ends) // 4]:
        demand_exactly(spark, to, topic, {0: 30, 1: 30})


def test_what_a_dead_start_left_is_set_aside_and_nothing_else_is_touched(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path / "none").set_aside_dead_start() is None
    root = tmp_path / "checkpoint"
    (root / "commits").mkdir(parents=True)
    (root / "offsets").mkdir()
    (root / "state" / "0").mkdir(parents=True)
    (root / "state" / "0" / "_metadata").write_text("v1")
    (root / "metadata").write_text(json.dumps({"id": "a"}))
    (root / "offsets" / ".0.a.tmp").write_text("v1")
    assert Checkpoint(root).set_aside_dead_start() == f"{SET_ASIDE}/0"
    aside = root / SET_ASIDE / "0"
    assert (aside / "offsets" / ".0.a.tmp").read_text() == "v1"
    assert (aside / "state" / "0" / "_metadata").read_text() == "v1"
    assert (root / "metadata").exists()
    assert Checkpoint(root).set_aside_dead_start() is None, "once"

    (root / "offsets" / ".0.a.tmp").write_text("v1 again")
    assert Checkpoint(root).set_aside_dead_start() == f"{SET_ASIDE}/1", "what was set aside before stays"

    (root / "metadata").write_text("")
    assert Checkpoint(root).set_aside_dead_start() == f"{SET_ASIDE}/2"
    assert (root / SET_ASIDE / "2" / "metadata").exists()
    for name in ("offsets/0", "commits/0"):
        (root / "offsets" / ".1.a.tmp").touch()
        (root / name).touch()
        assert Checkpoint(root).set_aside_dead_start() is None, "a batch was planned"
        (root / name).unlink()

    other = tmp_path / "of-something-else"
    (other / "state").mkdir(parents=True)
    (other / "state" / "file").touch()
    assert Checkpoint(other).set_aside_dead_start() is None


def test_only_batches_count_as_batches(tmp_path: Path) -> None:
    (tmp_path / "commits").mkdir()
    for name in ("2", "10", ".11.a.tmp", "12_sum.crc", "9.compact"):
        (tmp_path / "commits" / name).touch()
    assert Checkpoint(tmp_path).last_committed_batch() == 10


def dead_start(checkpoint: Path) -> None:
    """The files that a kill between the metadata and the first offsets leaves."""
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": "3920f37b-6416-4936-861a-305b301df572"}))
    (checkpoint / "offsets" / f".0.{TOKEN}.tmp").touch()


def test_an_archive_of_what_is_new_begins_where_the_start_that_died_would_have(
    spark: Any, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.fill(20, queues=2)
    checkpoint = tmp_path / "checkpoint"
    monkeypatch.setattr("cometmq.spark.jobs.archive.job.driver_session", lambda *_: dying(checkpoint))
    with pytest.raises(KeyboardInterrupt):
        archive(topics.namesrv, topic, tmp_path / "lake", checkpoint, starting_offsets="latest")
    monkeypatch.undo()
    topics.send(topic, 0, [b"between"] * 5)
    report = archive(topics.namesrv, topic, tmp_path / "lake", checkpoint, starting_offsets="latest", spark=spark)
    assert report.rows == 5


def dying(checkpoint: Path) -> Any:
    dead_start(checkpoint)
    raise KeyboardInterrupt


def test_a_stream_of_what_is_new_that_begins_anew_skips_nothing(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topic = topics.fill(20, queues=2)
    checkpoint, kept_in = tmp_path / "checkpoint", tmp_path / "begin.json"
    source = {"namesrvAddr": topics.namesrv, "topic": topic, "startingOffsets": "latest"}

    def start() -> Any:
        begin = source | {"startingOffsets": kept_starting_offsets(kept_in, source)}
        rows = spark.readStream.format("rocketmq").options(**begin).load().writeStream.format("noop")
        return rows.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()

    kept_starting_offsets(kept_in, source)
    dead_start(checkpoint)
    topics.send(topic, 1, [b"between"] * 5)
    with pytest.raises(Exception, match="STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"):
        start().awaitTermination()
    shutil.rmtree(checkpoint)
    again = start()
    again.awaitTermination()
    assert sum(progress["numInputRows"] for progress in again.recentProgress) == 5


def test_kept_offsets_stay_and_what_is_new_is_looked_up(topics: Topics, tmp_path: Path) -> None:
    topic, other = topics.fill(20, queues=2), topics.fill(6, queues=1)
    path = tmp_path / "some" / "begin.json"
    source = {"namesrvAddr": topics.namesrv, "topic": topic, "startingOffsets": "latest"}
    begin = {"broker-a": {"0": 10, "1": 10}}
    assert json.loads(kept_starting_offsets(path, source)) == {topic: begin}
    topics.send(topic, 0, [b"more"])
    topics.create(3, topic)
    assert json.loads(kept_starting_offsets(path, source)) == {topic: begin}, "a new queue begins at its first message"
    both = source | {"topic": f"{topic},{other}"}
    assert json.loads(kept_starting_offsets(path, both)) == {topic: begin, other: {"broker-a": {"0": 6}}}
    assert json.loads(kept_starting_offsets(path, source | {"topic": other})) == {other: {"broker-a": {"0": 6}}}
    assert json.loads(kept_starting_offsets(path, source)) == {topic: begin}
    named = source | {"startingOffsets": json.dumps({topic: {"broker-a": {"0": 3, "1": "latest"}}})}
    assert json.loads(kept_starting_offsets(path, named))[topic]["broker-a"] == {"0": 3, "1": 10, "2": 0}
    with pytest.raises(OptionError, match="has topic"):
        kept_starting_offsets(path, source | {"topic": "nowhere"})
    for damaged in ("", "[]", '{"asked": {"startingOffsets": "latest"}, "offsets": 3}'):
        path.write_text(damaged)
        with pytest.raises(SparkSourceError, match="does not contain a stream"):
            kept_starting_offsets(path, source)


def test_what_spark_refuses_of_a_checkpoint_is_told_with_the_way_out(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    """By a power cut: Spark does not flush what it writes."""
    topic = topics.fill(20, queues=1)
    lake, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    archive(topics.namesrv, topic, lake, checkpoint, spark=spark)
    topics.send(topic, 0, [b"more"] * 2)
    (checkpoint / "offsets" / "1").touch()
    with pytest.raises(SparkSourceError, match=r"Failed to read log file .*name a new --checkpoint"):
        archive(topics.namesrv, topic, lake, checkpoint, spark=spark)
    (checkpoint / "metadata").unlink()
    with pytest.raises(ArchiveError, match=r"has batches that .* a new checkpoint"):
        archive(topics.namesrv, topic, lake, checkpoint, spark=spark)
    shutil.rmtree(checkpoint / "commits")
    with pytest.raises(SparkSourceError, match=r"METADATA_FILE.* restore the metadata .*name a new --checkpoint"):
        archive(topics.namesrv, topic, lake, checkpoint, spark=spark)
    assert archive(topics.namesrv, topic, lake, tmp_path / "new", spark=spark).rows == 2
    demand_exactly(spark, lake, topic, {0: 22})
