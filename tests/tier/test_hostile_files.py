"""Parquet files with anything in them: each gives an error that names the file, and never a wrong record."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.tier.archives import QUEUE, ask, make_records, open_reader, write_archive

from cometmq.archive import ArchiveError
from cometmq.message.record import iter_records
from cometmq.tier import footers
from cometmq.tier.frames import FindKey, FindPosition, FindTime
from cometmq.tier.lookups import Lookups

ROWS = 100


def rewritten(root: Path, change: Callable[[Any], Any], **options: Any) -> None:
    """Change the table of the archive's only file, and the file's size in its commit."""
    (path,) = root.glob("topic=*/*/*.parquet")
    pq.write_table(change(pq.read_table(path, partitioning=None)), path, **options)
    for commit in root.glob("_commits/*.json"):
        content = json.loads(commit.read_text())
        for file in content["files"]:
            file["bytes"] = path.stat().st_size
        commit.write_text(json.dumps(content))


def column(name: str, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A change of one column."""
    return lambda table: table.set_column(
        table.column_names.index(name), name, change(table.column(name).combine_chunks())
    )


def listed(change: Callable[[list[Any]], list[Any]]) -> Callable[[Any], Any]:
    return lambda values: pa.array(change(values.to_pylist()), values.type)


def replaced(value: Any, at: int = 7) -> Callable[[Any], Any]:
    return listed(lambda values: [*values[:at], value, *values[at + 1 :]])


CHANGES: dict[str, Callable[[Any], Any]] = {
    "another type": column("queueOffset", lambda values: values.cast(pa.float64())),
    "a smaller type": column("queueOffset", lambda values: values.cast(pa.int32())),
    "texts for numbers": column("sysFlag", lambda values: values.cast(pa.string())),
    "nested": column("body", lambda values: pa.array([{"x": value} for value in values.to_pylist()])),
    "a list": column("body", lambda values: pa.array([[value] for value in values.to_pylist()])),
    "seconds": column("storeTimestamp", lambda values: values.cast(pa.timestamp("ms", tz="UTC"))),
    "a missing column": lambda table: table.drop_columns(["bornHost"]),
    "two columns of a name": lambda table: table.append_column("flag", table.column("flag")),
    "no rows": lambda table: table.slice(0, 0),
    "fewer rows": lambda table: table.slice(0, 90),
    "more rows": lambda table: pa.concat_tables([table, table.slice(0, 1)]),
    "negative offsets": column("queueOffset", listed(lambda values: [value - 50 for value in values])),
    "offsets of other messages": column("queueOffset", listed(lambda values: [value + 1 for value in values])),
    "offsets that fall": column("queueOffset", listed(lambda values: values[::-1])),
    "an offset twice": column("queueOffset", replaced(8)),
    "no offset": column("queueOffset", replaced(None)),
    "no flag": column("sysFlag", replaced(None)),
    "no body": column("body", replaced(None)),
    "another topic": column("topic", replaced("secrets")),
    "no topic": column("topic", replaced(None)),
    "another queue": column("queueId", replaced(3)),
    "a name for a host": column("bornHost", replaced("example.com:1")),
    "no port": column("storeHost", replaced("127.0.0.1")),
    "a large port": column("storeHost", replaced("127.0.0.1:99999999999")),
    "an address of another kind": column("bornHost", replaced("[::2]:1", at=8)),
    "long properties": column("propertiesText", replaced("x" * 40_000)),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("options", [{}, {"row_group_size": 30}, {"write_statistics": False}], ids=str)
def test_a_file_with_other_contents_is_an_error_that_names_it(
    tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    write_archive(tmp_path, [make_records(ROWS)])
    rewritten(tmp_path, CHANGES[name], **options)
    errors = set()
    for offset in range(0, ROWS, 10):  # row groups without the wrong value may be read
        try:
            open_reader(tmp_path).read(ask(offset, count=10))
        except ArchiveError as error:
            errors.add(str(error))
    (reason,) = errors
    assert re.search(r"part-.*parquet is damaged: .*restore it from a backup", reason)


@pytest.mark.parametrize("options", [{"row_group_size": 30}, {"write_statistics": False}, {"compression": "gzip"}])
def test_files_written_in_another_way_are_read(tmp_path: Path, options: dict[str, Any]) -> None:
    records = make_records(ROWS)
    write_archive(tmp_path, [records])
    rewritten(tmp_path, lambda table: table, **options)
    reader = open_reader(tmp_path)
    got = [bytes(reader.read(ask(offset, count=1))[1]) for offset in range(ROWS)]
    assert got == records


@pytest.mark.parametrize("seed", range(20))
def test_wrong_bytes_give_an_error_or_records_of_the_queue_in_order(tmp_path: Path, seed: int) -> None:
    """The contents of bodies are not checked here: clients check their CRC."""
    write_archive(tmp_path, [make_records(ROWS)])
    (path,) = tmp_path.glob("topic=*/*/*.parquet")
    content = bytearray(path.read_bytes())
    chosen = np.random.default_rng(seed)
    begin = 0 if seed % 2 else len(content) - 12_000  # the footer is at the end
    for at in chosen.integers(max(begin, 0), len(content), 1 + seed % 5).tolist():
        content[at] ^= int(chosen.integers(1, 256))
    path.write_bytes(content)
    try:
        _, payload = open_reader(tmp_path).read(ask(0))
    except ArchiveError:
        return
    offsets = [record.queue_offset for record in iter_records(bytes(payload))]
    assert offsets == list(range(len(offsets)))


def test_all_questions_give_the_error(tmp_path: Path) -> None:
    write_archive(tmp_path, [make_records(ROWS)])
    rewritten(tmp_path, CHANGES["another topic"], write_statistics=False)
    reader = open_reader(tmp_path)
    lookups = Lookups(reader._catalog, reader._groups)
    position = next(iter(iter_records(make_records(1)[0]))).physical_offset
    for question in (
        lambda: reader.find_time(FindTime(1, QUEUE.topic, 0, 0, ROWS)),
        lambda: lookups.find_position(FindPosition(1, position)),
        lambda: lookups.find_key(FindKey(1, QUEUE.topic, "key-3", False, 0, 2**62, {0: ROWS}, 9)),
    ):
        with pytest.raises(ArchiveError, match="is damaged"):
            question()


def test_a_row_group_that_is_too_large_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footers, "ROW_GROUP_BYTES_MAX", 1_000)
    write_archive(tmp_path, [make_records(ROWS)])
    with pytest.raises(ArchiveError, match=r"row group 0 has \d+ bytes, at most 1000 are read"):
        open_reader(tmp_path).read(ask(0))


BOMB = """
import sys
from pathlib import Path
from tests.tier.archives import ask, open_reader
from cometmq.tier.process import limit_memory
limit_memory()
reader = open_reader(Path(sys.argv[1]))
for _ in range(2):
    try:
        reader.read(ask(0))
    except Exception as error:
        print(type(error).__name__, error)
print(reader.read(ask(1_000))[0].count)
"""


def test_a_file_that_grows_without_end_when_it_is_read_is_an_error_and_others_are_read(tmp_path: Path) -> None:
    """A dictionary with one body of a megabyte, which 50,000 messages have: a small file, and 50 GB in memory."""
    write_archive(tmp_path, [make_records(10)])
    body = os.urandom(1 << 20)

    def grow(table: Any) -> Any:
        many = pa.concat_tables([table] * 5_000)
        many = column("queueOffset", lambda values: pa.array(range(len(values)), values.type))(many)
        indices = pa.array(np.zeros(len(many), np.int32))
        bodies = pa.DictionaryArray.from_arrays(indices, pa.array([body], pa.binary()))
        return many.set_column(many.column_names.index("body"), "body", bodies)

    rewritten(tmp_path, grow, store_schema=False)
    commit = max(tmp_path.glob("_commits/*.json"))
    content = json.loads(commit.read_text())
    content["files"][0] |= {"rows": 50_000, "end": 50_000}
    content["queues"][0] |= {"next": 50_000}
    commit.write_text(json.dumps(content))
    write_archive(tmp_path, [make_records(10, first=100_000)], begin=1)
    command = [sys.executable, "-c", BOMB.replace("1_000", "100_000"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ArchiveError") == 2, done.stdout
    assert "needs more memory than the" in done.stdout
    assert done.stdout.endswith("\n10\n")
