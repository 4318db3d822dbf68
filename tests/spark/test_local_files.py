"""Files of the pipeline are reached through storages, so that they can be anywhere."""

from __future__ import annotations

import re
from pathlib import Path

import cometmq.spark

FILE_CALL = re.compile(
    r"\.(?:r?glob|iterdir|unlink|rename|mkdir|read_bytes|write_bytes|write_text|rmdir|touch)\(|\bfcntl\b|\brmtree\b"
    r"|\breplace_file\b|\bflush_(?:file|directory)\b|\bos\.(?:open|fsync|replace|remove|listdir|scandir)\b"
)
LOCAL = {
    "bodies/protobuf.py": "reads a descriptor of the user's",
    "jobs/archive/checkpoint.py": "finds hidden files that Spark left in a directory",
    "jobs/delay/progress.py": "reads a store",
    "jobs/mask/keys.py": "opens a database",
    "jobs/rebuild/job.py": "repairs a store",
    "jobs/rebuild/tasks.py": "repairs a store",
    "jobs/table/watch.py": "writes figures for the exporter and the console of the machine",
    "source/lag.py": "writes figures for the machine's Prometheus exporter",
    "store/place.py": "reads a store",
}


def test_files_of_the_pipeline_are_reached_through_storages() -> None:
    root = Path(cometmq.spark.__file__).parent
    names = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
    found = {name for name, path in names.items() if FILE_CALL.search(path.read_text("utf-8"))}
    assert found == LOCAL.keys()
