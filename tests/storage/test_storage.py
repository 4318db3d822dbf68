"""All storages keep the rules of the interface, on real servers."""

from __future__ import annotations

import io
import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cometmq.storage import ObjectExistsError, ObjectNotFoundError, Storage, check_conditional_writes, open_storage


def test_an_object_is_read_as_it_was_put_and_replaced(storage: Storage) -> None:
    storage.put("a/b", b"first")
    storage.put("a/b", b"second one")
    assert storage.read("a/b") == b"second one"
    assert storage.read("a/b", 2, 6) == b"cond"
    assert storage.read("a/b", 7) == b"one"
    assert storage.read("a/b", 7, 99) == b"one"
    assert storage.read_ranges("a/b", [(0, 3), (7, 10)]) == [b"sec", b"one"]
    found = storage.stat("a/b")
    assert found is not None
    assert (found.key, found.size) == ("a/b", 10)


def test_a_missing_object_is_named(storage: Storage) -> None:
    assert storage.stat("none") is None
    for ask in (
        lambda: storage.read("none"),
        lambda: storage.read("none", 1, 2),
        lambda: storage.read_ranges("none", [(0, 1)]),
        lambda: storage.open_reader("none"),
    ):
        with pytest.raises(ObjectNotFoundError, match="none does not exist"):
            ask()


def test_an_object_is_created_once(storage: Storage) -> None:
    storage.create("chain/1", b"mine")
    storage.create("chain/1", b"mine")  # the same again, as after a lost answer
    with pytest.raises(ObjectExistsError) as raised:
        storage.create("chain/1", b"yours")
    assert raised.value.content == b"mine"
    assert storage.read("chain/1") == b"mine"


def test_one_of_several_writers_creates_an_object(storage: Storage) -> None:
    def race(number: int) -> str:
        try:
            storage.create(f"race/{number // 4}", b"%d" % number)
        except ObjectExistsError:
            return "refused"
        return f"race/{number // 4}"

    with ThreadPoolExecutor(4) as threads:
        outcomes = Counter(threads.map(race, range(20)))
    assert outcomes.pop("refused") == 15
    assert outcomes == {f"race/{number}": 1 for number in range(5)}


def test_the_probe_accepts_the_storage_and_leaves_nothing(storage: Storage) -> None:
    check_conditional_writes(storage)
    assert list(storage.list_objects()) == []


def test_lists_have_what_is_below_a_directory(storage: Storage) -> None:
    for key in ("orders/1", "orders/2", "orders-2/1", "orders/deep/er/3", "top"):
        storage.put(key, key.encode())
    assert {found.key: found.size for found in storage.list_objects("orders")} == {
        "orders/1": 8,
        "orders/2": 8,
        "orders/deep/er/3": 16,
    }
    assert sorted(found.key for found in storage.list_objects("orders", after="orders/1")) == [
        "orders/2",
        "orders/deep/er/3",
    ]
    assert len(list(storage.list_objects())) == 5
    assert list(storage.list_objects("none")) == []
    assert storage.list_directories() == ["orders", "orders-2"]
    assert storage.list_directories("orders") == ["deep"]
    assert storage.list_directories("none") == []


def test_keys_with_any_character_come_back(storage: Storage) -> None:
    keys = {"topic=%25RETRY%25g/x", "topic=中文/x", "topic=a b+c/x", "part-a#b?c=d&e/x", "topic=a%2Fb/x", "{b}~/x"}
    for key in keys:
        storage.put(key, key.encode())
    assert {found.key for found in storage.list_objects()} == keys
    for key in keys:
        assert storage.read(key) == key.encode()


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/./b", "a\\b", "x" * 901])
def test_a_key_that_some_storage_cannot_keep_is_refused(storage: Storage, key: str) -> None:
    with pytest.raises(ValueError, match="key"):
        storage.put(key, b"x")


def test_deleting_ignores_what_is_not_there(storage: Storage) -> None:
    for key in ("d/1", "d/2", "d/3"):
        storage.put(key, b"x")
    storage.delete(["d/none", "d/1", "d/2"])
    storage.delete(["d/1"])
    storage.delete([])
    assert [found.key for found in storage.list_objects()] == ["d/3"]


def test_a_written_file_appears_at_the_end_of_its_block(storage: Storage) -> None:
    block = b"0123456789abcdef" * 65536  # 1 MiB: more than one part in all
    with storage.open_writer("big/file") as file:
        for _ in range(20):
            file.write(block)
        assert file.tell() == 20 << 20
        assert storage.stat("big/file") is None
        assert list(storage.list_objects()) == []
    found = storage.stat("big/file")
    assert found is not None
    assert found.size == 20 << 20
    assert storage.read("big/file", (15 << 20) - 2, (15 << 20) + 2) == b"ef01"
    assert [found.key for found in storage.list_objects()] == ["big/file"]


@pytest.mark.parametrize("size", [100, 20 << 20])
def test_an_exception_leaves_no_object(storage: Storage, size: int) -> None:
    def task() -> None:
        with storage.open_writer("half") as file:
            file.write(b"x" * size)
            raise RuntimeError("the task dies")

    with pytest.raises(RuntimeError, match="dies"):
        task()
    assert storage.stat("half") is None
    assert list(storage.list_objects()) == []


def test_an_error_of_the_writing_task_stays_its_own(storage: Storage) -> None:
    def task() -> None:
        with storage.open_writer("half") as file:
            file.write(b"x")
            raise FileNotFoundError("an input of the task")

    with pytest.raises(FileNotFoundError, match="an input of the task"):
        task()


def test_pyarrow_writes_and_reads_parquet(storage: Storage) -> None:
    table = pa.table({"queueOffset": list(range(1000)), "body": [b"%d" % number for number in range(1000)]})
    with storage.open_writer("topic=a/part.parquet") as file:
        pq.write_table(table, file, row_group_size=100)
    found = pq.ParquetFile(storage.open_reader("topic=a/part.parquet"))
    assert found.metadata.num_row_groups == 10
    assert found.read_row_group(3, columns=["body"]).column("body").to_pylist()[0] == b"300"
    assert found.read().equals(table)


def test_a_failing_parquet_writer_publishes_nothing(storage: Storage) -> None:
    def task() -> None:
        table = pa.table({"a": [1]})
        with storage.open_writer("part.parquet") as file, pq.ParquetWriter(file, table.schema) as writer:
            writer.write_table(table)
            raise RuntimeError("the task dies")

    with pytest.raises(RuntimeError, match="dies"):
        task()
    assert storage.stat("part.parquet") is None


def test_a_reader_is_a_seekable_file(storage: Storage) -> None:
    storage.put("text", b"line one\nline two\n")
    file = io.BufferedReader(storage.open_reader("text"))
    assert file.readline() == b"line one\n"
    assert file.seek(-4, io.SEEK_END) == 14
    assert file.read() == b"two\n"


def test_a_storage_can_be_pickled(storage: Storage) -> None:
    storage.put("a", b"x")
    copy: Storage = pickle.loads(pickle.dumps(storage))
    assert copy.url == storage.url
    assert copy.read("a") == b"x"


def test_an_empty_object_is_refused(storage: Storage) -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        storage.put("a", b"")


def test_temporary_files_of_killed_writers_are_listed_and_deleted(storage: Storage) -> None:
    def killed() -> None:
        with storage.open_writer("topic=a/x") as file:
            file.write(b"text")
            assert list(storage.list_objects()) == []
            unfinished = [found.key for found in storage.list_unfinished()]
            assert len(unfinished) == (0 if storage.url.startswith(("s3:", "gs:", "abfs")) else 1)
            storage.delete(unfinished)
            raise KeyError

    with pytest.raises(KeyError):
        killed()
    assert list(storage.list_unfinished()) == []


def test_deletions_do_not_disturb_writers_in_the_same_directory(tmp_path: Path) -> None:
    """A deletion removes a directory that becomes empty, while a writer creates it."""
    storage = open_storage(tmp_path)

    def write(number: int) -> None:
        for time in range(100):
            storage.put(f"a/b/{number}-{time}", b"x")
            storage.delete([f"a/b/{number}-{time}"])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    assert list(storage.list_objects()) == []
