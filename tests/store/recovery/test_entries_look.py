"""The look at the queue entries of a stopped store finds those that lead to no message, and no others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.store.conftest import StoreBench, fill

from cometmq.store.queue.consume_queue import BLANK_UNIT, UNIT
from cometmq.store.recovery.entries_look import MissingEntries, missing_entries

FILE_UNITS = 100
UNITS_OF_QUEUE = 230
QUEUE = "consumequeue/TopicTest/1"


def stopped(bench: StoreBench) -> Path:
    """A store with three queues of three files each."""
    store = bench.open()
    fill(store, 3 * UNITS_OF_QUEUE)
    store.close_now()
    return bench.root


def put_units(root: Path, offset: int, units: bytes) -> None:
    path = root / QUEUE / f"{offset // FILE_UNITS * FILE_UNITS * 20:020}"
    with path.open("r+b") as file:
        file.seek(offset % FILE_UNITS * 20)
        file.write(units)


def unit(root: Path, offset: int) -> bytes:
    path = root / QUEUE / f"{offset // FILE_UNITS * FILE_UNITS * 20:020}"
    at = offset % FILE_UNITS * 20
    return path.read_bytes()[at : at + 20]


def remove(root: Path, *starts: int) -> None:
    for start in starts:
        (root / QUEUE / f"{start * 20:020}").unlink()


DAMAGES: dict[str, tuple[Callable[[Path], object], int, int]] = {
    "zeros": (lambda root: put_units(root, 17, bytes(60)), 17, 3),
    "zeros at the end": (lambda root: put_units(root, UNITS_OF_QUEUE - 2, bytes(40)), UNITS_OF_QUEUE - 2, 2),
    "behind the log": (lambda root: put_units(root, 5, UNIT.pack(1 << 40, 100, 0)), 5, 1),
    "a negative size": (lambda root: put_units(root, 5, UNIT.pack(100, -4, 0)), 5, 1),
    "an older message": (lambda root: put_units(root, 150, unit(root, 20)), 150, 1),
    "an older message, across files": (lambda root: put_units(root, 100, unit(root, 98)), 100, 1),
    "the first file": (lambda root: remove(root, 0), 0, 100),
    "a file between": (lambda root: remove(root, 100), 100, 100),
    "the last file": (lambda root: remove(root, 200), 200, 30),
    "a file that is cut short": (lambda root: (root / QUEUE / f"{2000:020}").write_bytes(bytes(0)), 100, 100),
    "all files": (lambda root: shutil.rmtree(root / QUEUE), 0, UNITS_OF_QUEUE),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_and_missing_entries_are_counted(bench: StoreBench, name: str) -> None:
    root = stopped(bench)
    damage, first, count = DAMAGES[name]
    damage(root)
    assert list(missing_entries(root)) == [MissingEntries("TopicTest", 1, first, count)]


def test_the_look_changes_nothing_and_a_start_mends_what_the_log_has(bench: StoreBench) -> None:
    root = stopped(bench)
    put_units(root, 17, bytes(60))
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert list(missing_entries(root))
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    store = bench.open()
    queue = store.queue("TopicTest", 1)
    offset = 0
    while offset < queue.max_offset():
        offset = store.get_message(queue, offset, 32).next_begin_offset
    store.close_now()
    assert not list(missing_entries(root))


@pytest.mark.parametrize("end", ["stopped", "killed", "log files deleted", "marked as lost", "no position", "rebuilt"])
def test_a_sound_store_has_none(bench: StoreBench, end: str, tmp_path: Path) -> None:
    store = bench.open()
    fill(store, 3 * UNITS_OF_QUEUE)
    root = bench.root
    if end == "killed":
        root = bench.crashed_copy(tmp_path / "killed").root
    store.close_now()
    if end == "log files deleted":
        for path in bench.log_files[:2]:
            path.unlink()
        store = bench.open()
        fill(store, 30)
        store.close_now()
    elif end == "marked as lost":
        put_units(root, 17, BLANK_UNIT)
    elif end != "killed" and end != "stopped":
        path = root / "comet" / "position.json"
        put_units(root, 17, bytes(60))
        if end == "no position":
            path.unlink()
        else:
            path.write_text(json.dumps(json.loads(path.read_text()) | {"made_anew": True}))
    assert not list(missing_entries(root)), "the next start looks itself where nothing proves the ends"


def test_queues_of_a_topic_that_was_deleted_are_missed_by_nobody(bench: StoreBench) -> None:
    """Its deletion came after the position was written, or before it."""
    root = stopped(bench)
    shutil.rmtree(root / "consumequeue" / "TopicTest")
    assert len(list(missing_entries(root))) == 3
    position = json.loads((root / "comet" / "position.json").read_text())["offset"]
    deleted = {"TopicTest": {"position": position, "timeMs": 0}}
    (root / "comet" / "deletedTopics.json").write_text(json.dumps({"topics": deleted}))
    assert not list(missing_entries(root))
    (root / "comet" / "deletedTopics.json").unlink()
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": {"Other": {}}}))
    assert not list(missing_entries(root))
