"""Consume queues and index made anew from the log are those that the broker wrote, byte for byte."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.helpers.unpack import unpack
from tests.spark.store_files import HOST, bad_records, damage, write_store

from cometmq.cli.jobs.pipeline import command
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.options import load_options
from cometmq.spark.errors import StoreReadError
from cometmq.spark.jobs.rebuild import job as job
from cometmq.spark.jobs.rebuild.job import rebuild
from cometmq.store.config import StoreConfig
from cometmq.store.errors import StoreError
from cometmq.store.message_store import MessageStore
from cometmq.store.write_batch import NewRecord
from cometmq.testing import VirtualClock

pytestmark = pytest.mark.spark

SIZES = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 20 * 100,
    "max_hash_slot_num": 50,
    "max_index_num": 700,
}


def config(directory: Path) -> StoreConfig:
    return StoreConfig(store_path_root_dir=str(directory), **SIZES)  # type: ignore[arg-type]


def fill(directory: Path, messages: int) -> None:
    """A store with tags, keys, a delayed topic, and a topic that has been deleted and made anew."""
    store = MessageStore.open(config(directory), clock=(clock := VirtualClock()))
    for number in range(messages):
        clock.advance(0.01)
        if number == messages // 2:
            store.delete_topic("Anew")
        topic = ("T", "T", "Anew", SCHEDULE_TOPIC)[number % 4]
        keys = [f"u{number}", f"k{number % 7}"]
        text = f"UNIQ_KEY\x01{keys[0]}\x02KEYS\x01{keys[1]}" + (f"\x02TAGS\x01tag{number % 3}" if number % 5 else "")
        queue = store.queue(topic, number // 4 % 3)
        store.batch.put(queue, NewRecord(b"%d" % number, text.encode(), 0, 0, 0, HOST, HOST, 0, 0, _code(text), keys))
        store.batch.commit()
    store.close_now()


def _code(text: str) -> int:
    from cometmq.message.ids import tags_code

    _, _, tag = text.partition("TAGS\x01")
    return tags_code(tag) if tag else 0


def contents(directory: Path) -> dict[str, bytes]:
    """Every file of the queues by its name, and those of the index in their order."""
    queues = directory / "consumequeue"
    found = {str(path.relative_to(directory)): path.read_bytes() for path in queues.rglob("*") if path.is_file()}
    index = sorted((directory / "index").iterdir())
    return found | {f"index {number}": path.read_bytes() for number, path in enumerate(index)}


def test_queues_and_index_are_those_of_the_broker(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the log is looked through in several jobs."""
    monkeypatch.setattr(job, "SPLITS_OF_JOB", 2)
    fill(tmp_path, 3000)
    before = contents(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "index")
    done = rebuild(tmp_path, config=config(tmp_path), spark=spark)
    after = contents(tmp_path)
    assert {name for name in before if "Anew" not in name} <= set(after)
    assert all(after[name] == data for name, data in before.items() if name in after)
    assert (done.messages, done.indexed) == (3000 - 3000 // 8, 3000)
    store = MessageStore.open(config(tmp_path))
    assert {queue_id: queue.max_offset() for queue_id, queue in store.queues()["Anew"].items()} == {
        0: 125,
        1: 125,
        2: 125,
    }
    store.close_now()


def test_queues_of_an_earlier_life_are_not_made_again(spark: Any, tmp_path: Path) -> None:
    """Topic, or queue, without a message since, and one with a single message; the broker's table tells of them."""
    store = MessageStore.open(config(tmp_path))
    for topic, queue_id, messages in (("Anew", 0, 5), ("Anew", 1, 5), ("Empty", 0, 5), ("Anew", 0, 1)):
        if messages == 1:
            store.delete_topic("Anew")
            store.delete_topic("Empty")
            deleted = {name: {"position": store.max_physical_offset, "timeMs": 0} for name in ("Anew", "Empty")}
        for _ in range(messages):
            store.batch.put(store.queue(topic, queue_id), NewRecord(b"body", b"", 0, 0, 0, HOST, HOST, 0, 0, 0, ()))
        store.batch.commit()
    store.close_now()
    (tmp_path / "comet" / "deletedTopics.json").write_text(json.dumps({"topics": deleted}))
    done = rebuild(tmp_path, config=config(tmp_path), spark=spark)
    assert [(of.topic, of.queue_id, of.units) for of in done.queues] == [("Anew", 0, 1)]
    store = MessageStore.open(config(tmp_path))
    ends = {
        (topic, queue_id): queue.max_offset() for topic, of in store.queues().items() for queue_id, queue in of.items()
    }
    store.close_now()
    assert {key: end for key, end in ends.items() if end} == {("Anew", 0): 1}


@pytest.mark.parametrize("name", ["clean", "v6"])
def test_an_apache_store_gets_the_queues_it_had(spark: Any, tmp_path: Path, golden: Path, name: str) -> None:
    unpack(golden / "stores" / name / "store.tar.gz", tmp_path)
    root = tmp_path / "store"
    text = (tmp_path / "broker.conf").read_text()
    conf, _ = load_options(StoreConfig, text, source="broker.conf", overrides={"store_path_root_dir": str(root)})
    truth = {path: data for path, data in contents(root).items() if "index" not in path and any(data)}
    compared = rebuild(root, dry_run=True, config=conf, spark=spark)
    assert compared.differ == 0
    shutil.rmtree(root / "consumequeue")
    rebuild(root, config=conf, spark=spark)
    after = contents(root)
    assert {path: after[path] for path in truth} == truth


def test_a_dry_run_finds_what_differs_and_changes_nothing(spark: Any, tmp_path: Path) -> None:
    fill(tmp_path, 400)
    path = tmp_path / "consumequeue" / "T" / "1" / f"{0:020d}"
    units = bytearray(path.read_bytes())
    units[20 * 5 + 12] ^= 1
    path.write_bytes(units)
    before = contents(tmp_path)
    found = rebuild(tmp_path, dry_run=True, config=config(tmp_path), spark=spark)
    assert found.differ == 1
    assert [(of.topic, of.queue_id) for of in found.queues if of.differ] == [("T", 1)]
    assert contents(tmp_path) == before
    rebuild(tmp_path, config=config(tmp_path), spark=spark)
    assert rebuild(tmp_path, dry_run=True, config=config(tmp_path), spark=spark).differ == 0
    assert any((tmp_path / "comet" / "quarantine").iterdir())


def test_a_run_that_died_has_changed_nothing(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, 200)
    before = contents(tmp_path)
    monkeypatch.setattr(job, "fill_blank", lambda *_: (_ for _ in ()).throw(ConnectionAbortedError))
    with pytest.raises(ConnectionAbortedError):
        rebuild(tmp_path, config=config(tmp_path), spark=spark)
    assert contents(tmp_path) == before
    monkeypatch.undo()
    rebuild(tmp_path, config=config(tmp_path), spark=spark)
    assert contents(tmp_path) == before
    assert not (tmp_path / job.WORKSHOP).exists()


def test_a_run_that_died_goes_on_where_it_stopped(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units that are on the disk are not written again; an index that is not said to be whole is, and all of it when
    the log has grown meanwhile."""
    fill(tmp_path, 200)
    workshop = tmp_path / job.WORKSHOP

    def die() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(job, "fill_blank", lambda *_: (_ for _ in ()).throw(ConnectionAbortedError))
            with pytest.raises(ConnectionAbortedError):
                rebuild(tmp_path, config=config(tmp_path), spark=spark)

    def times(kind: str) -> set[int]:
        return {path.stat().st_mtime_ns for path in (workshop / kind).rglob("*") if path.is_file()}

    die()
    (workshop / "done" / "index").unlink()
    next((workshop / "index").iterdir()).write_bytes(b"half of it")
    units, index = times("consumequeue"), times("index")
    die()
    assert times("consumequeue") == units
    assert not times("index") & index
    fill(tmp_path, 50)
    die()
    assert not times("consumequeue") & units
    assert rebuild(tmp_path, config=config(tmp_path), spark=spark).indexed == 250
    assert rebuild(tmp_path, dry_run=True, config=config(tmp_path), spark=spark).differ == 0


@pytest.mark.parametrize("renamed", range(4))
def test_a_run_that_died_while_files_were_put_in_place_leaves_a_store_that_opens(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renamed: int
) -> None:
    """Two directories are set aside and two come; it dies before one of these. The broker makes what is missing."""
    fill(tmp_path, 200)
    before = contents(tmp_path)
    rename, left = Path.rename, [renamed]

    def dying(path: Path, target: Path) -> Path:
        if left[0] == 0:
            raise ConnectionAbortedError
        left[0] -= 1
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", dying)
    with pytest.raises(ConnectionAbortedError):
        rebuild(tmp_path, config=config(tmp_path), spark=spark)
    monkeypatch.undo()
    MessageStore.open(config(tmp_path)).close_now()
    after = contents(tmp_path)
    assert {name: after[name] for name in before if "Anew" not in name} == {
        name: data for name, data in before.items() if "Anew" not in name
    }


def test_damaged_records_get_no_unit_and_are_told_once(spark: Any, tmp_path: Path) -> None:
    """Of a log of several files, each of which is looked through three times."""
    offsets = write_store(tmp_path, 900, body=lambda number: b"x" * 100, segment=1 << 16)
    damage(tmp_path, offsets[7] + 90, b"\xff", segment=1 << 16)
    with pytest.raises(Exception, match="badRecordsPath"):
        rebuild(tmp_path, spark=spark)
    done = rebuild(tmp_path, spark=spark, bad_records_path=str(tmp_path / "bad"))
    assert done.messages == 899
    assert [bad["logOffset"] for bad in bad_records(tmp_path / "bad")] == [offsets[7]]


def test_a_store_in_use_is_refused(spark: Any, tmp_path: Path) -> None:
    write_store(tmp_path / "store", 3, body=lambda _: b"x")
    store = MessageStore.open(StoreConfig(store_path_root_dir=str(tmp_path / "store")))
    try:
        with pytest.raises(StoreError):
            rebuild(tmp_path / "store", spark=spark)
    finally:
        store.close_now()
    with pytest.raises(StoreReadError):
        rebuild(tmp_path / "absent", spark=spark)


def test_the_command_says_whether_they_agree(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.spark.session.environment.local_session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    fill(tmp_path / "store", 100)
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "storePathRootDir=/elsewhere\nmappedFileSizeConsumeQueue=2000\nmaxHashSlotNum=50\nmaxIndexNum=700\n"
    )
    words = ["rebuild", "--store", str(tmp_path / "store"), "--config", str(conf)]
    compare = [*words, "--dry-run", "-o", "json"]
    assert CliRunner().invoke(command, compare, standalone_mode=False).return_value == 0
    next((tmp_path / "store" / "consumequeue" / "T" / "1").iterdir()).write_bytes(bytes(2000))
    assert CliRunner().invoke(command, compare, standalone_mode=False).return_value == 1
    assert CliRunner().invoke(command, words, standalone_mode=False).return_value == 0
    page = tmp_path / "page.html"
    again = CliRunner().invoke(command, [*compare, "--report", str(page)], standalone_mode=False)
    assert "0 differ from the log" in page.read_text()
    assert (again.return_value, json.loads(again.stdout)["differ"]) == (0, 0)
