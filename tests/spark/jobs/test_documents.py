"""Documents and Parquet files of jobs: created once, listed, and named when they are damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed (pip install cometmq[spark])")

import pyarrow as pa
import pyarrow.parquet as pq

from cometmq.spark.errors import ArchiveError
from cometmq.spark.jobs.documents import Series
from cometmq.spark.jobs.task_files import FILES, delete_unnamed, unique_path, write_file, write_new_table
from cometmq.storage import open_storage

ROWS = pa.RecordBatch.from_pydict({"n": range(50_000)})


def test_a_document_is_created_once_and_named_when_it_is_damaged_or_missing(tmp_path: Path) -> None:
    series = Series(open_storage(tmp_path), "commits", dict[str, int])
    series.create(10, {"rows": 1})
    series.create(9, {"rows": 2})
    series.create(9, {"rows": 2})  # as after an answer that was lost
    with pytest.raises(ArchiveError, match=r"another job has written .*0009\.json"):
        series.create(9, {"rows": 3})
    assert (series.numbers(), series.read([9, 10]), series.find(11)) == ([9, 10], [{"rows": 2}, {"rows": 1}], None)
    with pytest.raises(ArchiveError, match=r"0011\.json is missing") as missing:
        series.read([9, 11])
    (tmp_path / "commits" / f"{10:020d}.json").write_bytes(b'{"rows"')
    with pytest.raises(ArchiveError, match=r"0010\.json is damaged") as damaged:
        series.find(10)
    assert {missing.value.next_step, damaged.value.next_step} == {"restore it from a backup"}


def test_a_file_has_small_row_groups_and_a_task_that_fails_leaves_none(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    assert write_file(storage, "part.parquet", []) is None
    file = write_file(storage, unique_path("run=0"), [ROWS] * 5)
    assert file is not None
    assert (file.rows, file.bytes) == (250_000, (tmp_path / file.path).stat().st_size)
    with pq.ParquetFile(tmp_path / file.path) as opened:
        assert [opened.metadata.row_group(at).num_rows for at in range(3)] == [100_000, 100_000, 50_000]

    def failing() -> Any:
        yield from [ROWS] * 3
        raise RuntimeError("the task fails")

    with pytest.raises(RuntimeError, match="the task fails"):
        write_file(storage, unique_path("run=0"), failing())
    left = write_file(storage, unique_path("run=0"), [ROWS])  # its task was repeated
    assert left is not None
    delete_unnamed(storage, "run=0", {file.path})
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()] == [file.path]


@pytest.mark.spark
@pytest.mark.parametrize("count", [0, 1000])
def test_a_new_table_is_read_by_other_tools(spark: Any, tmp_path: Path, count: int) -> None:
    """Also if it has no rows."""
    storage = open_storage(tmp_path / "table")
    frame = spark.range(0, count, 1, 4).selectExpr("id", "timestamp_millis(id) AS at")
    write_new_table(frame, storage)
    found = spark.read.parquet(str(tmp_path / "table"))
    assert (found.count(), found.distinct().count(), found.columns) == (count, count, ["id", "at"])
    write_new_table(frame, storage)
    assert spark.read.parquet(str(tmp_path / "table")).count() == count, "repeated tasks replace their files"
    files = {path.name for path in (tmp_path / "table").glob("*.parquet")}
    assert files == {path.name for path in (tmp_path / "table").iterdir()} - {FILES}
    assert len(files) == (4 if count else 1)
