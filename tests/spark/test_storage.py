"""Files of the pipeline: flushed before a commit, found by name, replaced as a whole; and one place for all of them."""

from __future__ import annotations

import pickle
import re
import threading
from pathlib import Path

import pytest

import cometmq.spark
from cometmq.spark.errors import ArchiveError
from cometmq.spark.storage import Directory, NumberedFiles

SECONDS = 10


def test_moved_files_keep_their_new_names_after_a_power_cut(tmp_path: Path, flushed: set[int]) -> None:
    directory = Directory(tmp_path / "lake")
    for name in ("new/1", "new/2"):
        directory.new_path(name).write_bytes(b"x")
    directory.move({"new/1": "topic=A/hour=1/a", "new/2": "topic=B/hour=1/b"})
    assert directory.names("topic=*/hour=*/*") == ["topic=A/hour=1/a", "topic=B/hour=1/b"]
    assert not directory.names("new/*")
    changed = [directory.root, *(directory.path(name) for name in directory.names("topic=*"))]
    changed += [directory.path(name) for name in directory.names("topic=*/hour=*")]
    assert flushed >= {path.stat().st_ino for path in changed}
    assert tmp_path.stat().st_ino not in flushed


def test_attempts_of_one_task_may_write_a_file_at_the_same_time(tmp_path: Path) -> None:
    directory = pickle.loads(pickle.dumps(Directory(tmp_path)))
    content = b"line\n" * 1000
    attempts = [
        threading.Thread(target=lambda: [directory.write_from_task("bad/a", content) for _ in range(50)])
        for _ in range(4)
    ]
    failures: list[object] = []
    hook, threading.excepthook = threading.excepthook, failures.append
    try:
        for attempt in attempts:
            attempt.start()
        for attempt in attempts:
            attempt.join()
    finally:
        threading.excepthook = hook
    assert not failures
    assert directory.names("bad/*") == ["bad/a"]
    assert directory.read("bad/a") == content


def test_a_numbered_file_that_is_missing_or_damaged_is_named_with_the_next_step(tmp_path: Path) -> None:
    files = NumberedFiles(Directory(tmp_path), "commits", dict[str, int])
    files.write(10, {"rows": 1})
    files.write(9, {"rows": 2})
    assert (files.numbers(), files.read(9), files.find(11)) == ([9, 10], {"rows": 2}, None)
    with pytest.raises(ArchiveError, match=r"0011\.json is missing") as missing:
        files.read(11)
    (tmp_path / "commits" / f"{10:020d}.json").write_bytes(b'{"rows"')
    with pytest.raises(ArchiveError, match=r"0010\.json is damaged") as damaged:
        files.read(10)
    assert {missing.value.next_step, damaged.value.next_step} == {"restore it from a backup"}


FILE_CALL = re.compile(
    r"\.(?:glob|iterdir|unlink|rename|mkdir|read_bytes|write_bytes|write_text|rmdir|touch)\(|\bfcntl\b|\brmtree\b"
    r"|\breplace_file\b|\bflush_(?:file|directory)\b|\bos\.(?:open|fsync|replace|remove|listdir|scandir)\b"
)
LOCAL = {
    "bodies/protobuf.py": "reads a descriptor of the user's",
    "jobs/delay/progress.py": "reads a store",
    "jobs/mask/keys.py": "opens a database",
    "jobs/rebuild/job.py": "repairs a store",
    "jobs/rebuild/tasks.py": "repairs a store",
    "source/lag.py": "writes figures for the machine's Prometheus exporter",
    "store/place.py": "reads a store",
}


def test_files_of_the_pipeline_are_reached_in_one_place() -> None:
    root = Path(cometmq.spark.__file__).parent
    names = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
    found = {name for name, path in names.items() if FILE_CALL.search(path.read_text("utf-8"))}
    assert found - {"storage.py"} == LOCAL.keys()
