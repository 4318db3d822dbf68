"""Files keep their sizes whatever the configuration says, and nothing is cut or cleared that it contradicts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.store.conftest import SEGMENT_BYTES, StoreBench, fill, keys_found, put, served
from tests.store.test_version import everything_in

from cometmq.store.errors import StoreError
from cometmq.store.message_store import MessageStore
from cometmq.store.recovery.file_sizes import numbered_files
from cometmq.store.recovery.lost_log import LostLogError

SIZES = {
    "mapped_file_size_commit_log": (4 * SEGMENT_BYTES, SEGMENT_BYTES, 16 * SEGMENT_BYTES, 3 * SEGMENT_BYTES),
    "mapped_file_size_consume_queue": (2_000, 400, 20_000, 2_020),
    "max_hash_slot_num": (100, 50, 105, 7),
    "max_index_num": (400, 40, 399, 4_000),
}
"""The size of the files, then others."""


def lengths(root: Path) -> dict[str, int]:
    """The length of every file of log, queues and index."""
    return {
        str(path.relative_to(root)): path.stat().st_size
        for name in ("commitlog", "consumequeue", "index")
        for path in sorted((root / name).rglob("*"))
        if path.is_file()
    }


def quarantine(root: Path) -> list[str]:
    directory = root / "comet" / "quarantine"
    return [path.name for path in directory.iterdir()] if directory.is_dir() else []


def only_files_of_apache(root: Path) -> None:
    shutil.rmtree(root / "comet")


@pytest.mark.parametrize("messages", [20, 300, 1_500])
@pytest.mark.parametrize("other", [1, 2, 3])
@pytest.mark.parametrize("crashed", [False, True], ids=["stopped", "killed"])
def test_no_size_in_the_configuration_changes_the_files(
    messages: int, other: int, crashed: bool, bench: StoreBench, tmp_path: Path
) -> None:
    right: dict[str, Any] = {key: values[0] for key, values in SIZES.items()}
    wrong: dict[str, Any] = {key: values[other] for key, values in SIZES.items()}
    store = bench.open(**right)
    fill(store, messages - 5)
    store.close_now()
    store = bench.open(**right)
    fill(store, 5, start=messages - 5)
    expected = served(store)
    if crashed:
        bench = bench.crashed_copy(tmp_path / "killed")
    else:
        store.close_now()
    log_before = {name: size for name, size in lengths(bench.root).items() if "commitlog" in name}
    for sizes in (wrong, right, wrong):
        again = bench.open(**sizes)
        assert served(again) == expected
        assert keys_found(again, "TopicTest", range(messages)) == list(range(messages))
        again.close_now()
        found = lengths(bench.root)
        assert {name: size for name, size in found.items() if "commitlog" in name} == log_before
        assert {size for name, size in found.items() if "consumequeue" in name} == {2_000}
        assert {size for name, size in found.items() if "index" in name} == {40 + 400 + 8_000}
        assert quarantine(bench.root) == []
    again = bench.open(**wrong)
    kept = [line for line in again.findings if "their size is kept" in line]
    assert len(kept) == 3, kept
    fill(again, 600, start=messages)
    assert len(served(again)["TopicTest", 0]) > len(expected["TopicTest", 0])
    again.close_now()
    assert {size for name, size in lengths(bench.root).items() if "commitlog" in name} == {4 * SEGMENT_BYTES}
    bench.close_all()


@pytest.mark.parametrize("messages", [20, 300, 1_500])
@pytest.mark.parametrize("other", [1, 2, 3])
def test_sizes_are_found_in_a_store_that_apache_wrote(messages: int, other: int, bench: StoreBench) -> None:
    store = bench.open(mapped_file_size_commit_log=4 * SEGMENT_BYTES)
    fill(store, messages)
    expected = served(store)
    store.close_now()
    only_files_of_apache(bench.root)
    before = {name: size for name, size in lengths(bench.root).items() if "index" not in name}
    wrong: dict[str, Any] = {key: values[other] for key, values in SIZES.items()}
    again = bench.open(**wrong)
    assert served(again) == expected
    assert keys_found(again, "TopicTest", range(messages)) == list(range(messages))
    assert {name: size for name, size in lengths(bench.root).items() if "index" not in name} == before


def test_a_log_whose_first_files_retention_has_deleted_keeps_its_size(bench: StoreBench) -> None:
    store = bench.open()
    fill(store, 1_000)
    store.close_now()
    for path in bench.log_files[:-1]:
        path.unlink()
    (last,) = bench.log_files
    for size in (4096, 2 * SEGMENT_BYTES, 1 << 20):
        again = bench.open(mapped_file_size_commit_log=size)
        assert again.min_physical_offset == int(last.name)
        assert len(served(again)) == 3
        again.close_now()
        assert [path.stat().st_size for path in bench.log_files] == [SEGMENT_BYTES]


def test_a_log_file_that_was_cut_short_gets_its_size_back(bench: StoreBench) -> None:
    """The sizes of the last start tell it from a file of another size."""
    store = bench.open()
    fill(store, 20)
    expected = served(store)
    store.close_now()
    (path,) = bench.log_files
    os.truncate(path, 4 * 4096)
    again = bench.open()
    assert served(again) == expected
    assert path.stat().st_size == SEGMENT_BYTES
    again.close_now()
    os.truncate(path, 0)
    with pytest.raises(LostLogError):
        bench.open()


def test_garbage_behind_the_only_log_file_makes_it_no_larger_one(bench: StoreBench) -> None:
    store = bench.open()
    fill(store, 20)
    expected = served(store)
    store.close_now()
    (path,) = bench.log_files
    with path.open("ab") as file:
        file.write(b"garbage " * 1000)
    again = bench.open()
    assert served(again) == expected
    assert path.stat().st_size == SEGMENT_BYTES
    assert len(quarantine(bench.root)) == 1


def test_files_of_two_sizes_with_records_are_refused_before_anything_is_changed(bench: StoreBench) -> None:
    """Both orders: the longer file first, and last."""
    store = bench.open()
    fill(store, 1_000)
    store.close_now()
    first, second, *_ = bench.log_files
    first.write_bytes(first.read_bytes() + second.read_bytes())
    second.unlink()
    before = everything_in(bench.root)
    for _ in range(2):
        with pytest.raises(StoreError, match="are of different sizes: most have 65,536 bytes") as refused:
            bench.open()
        assert "restore a backup" in str(refused.value)
        assert everything_in(bench.root) == before


@pytest.mark.parametrize("paths", ["/a,/b", "{root}/b,{root}/a", "{root}/log,"])
def test_a_log_in_several_directories_is_refused_before_anything_is_changed(paths: str, tmp_path: Path) -> None:
    bench = StoreBench(tmp_path / "store")
    named = paths.format(root=tmp_path)
    with pytest.raises(StoreError, match="names several directories") as refused:
        bench.open(store_path_commit_log=named)
    assert "move the log files of all these directories into one" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_the_files_of_several_directories_in_one_are_a_log(bench: StoreBench, tmp_path: Path) -> None:
    """The way on that the refusal names: Apache gives the files of its directories names that do not clash."""
    store = bench.open()
    fill(store, 1_000)
    expected = served(store)
    store.close_now()
    one, other = tmp_path / "one", tmp_path / "other"
    for number, path in enumerate(bench.log_files):
        (one, other)[number % 2].mkdir(exist_ok=True)
        path.rename((one, other)[number % 2] / path.name)
    for path in list(other.iterdir()):
        path.rename(one / path.name)
    assert served(bench.open(store_path_commit_log=str(one))) == expected


def no_files(root: Path) -> None:
    for path in (root / "commitlog").iterdir():
        path.unlink()


def no_directory(root: Path) -> None:
    shutil.rmtree(root / "commitlog")


def only_zeros(root: Path) -> None:
    for path in (root / "commitlog").iterdir():
        path.write_bytes(bytes(path.stat().st_size))


def no_bytes(root: Path) -> None:
    for path in (root / "commitlog").iterdir():
        os.truncate(path, 0)


@pytest.mark.parametrize("lose", [no_files, no_directory, only_zeros, no_bytes])
@pytest.mark.parametrize("apaches", [False, True])
@pytest.mark.parametrize("is_slave", [False, True])
def test_a_missing_log_stops_the_start_and_changes_nothing(
    lose: Callable[[Path], None], apaches: bool, is_slave: bool, bench: StoreBench
) -> None:
    store = bench.open()
    fill(store, 300)
    end = store.max_physical_offset
    store.close_now()
    lose(bench.root)
    if apaches:
        only_files_of_apache(bench.root)
    before = everything_in(bench.root)
    for _ in range(2):
        with pytest.raises(LostLogError, match="missing or empty, but 3 queues") as refused:
            MessageStore.open(bench.config, is_slave=is_slave)
        assert "storePathCommitLog" in str(refused.value)
        assert "--begin-anew" in str(refused.value)
        assert everything_in(bench.root) == before
    again = MessageStore.open(bench.config, is_slave=is_slave, begin_anew=True)
    if not is_slave:
        assert again.max_physical_offset >= end, "no offset is given twice"
        assert [queue.max_offset() for queue in again.queues()["TopicTest"].values()] == [100] * 3
        fill(again, 3)
        assert [queue.max_offset() for queue in again.queues()["TopicTest"].values()] == [101] * 3
    again.close_now()
    MessageStore.open(bench.config, is_slave=is_slave, begin_anew=is_slave).close_now()


def test_a_log_that_is_named_wrongly_costs_nothing(bench: StoreBench, tmp_path: Path) -> None:
    store = bench.open()
    fill(store, 300)
    expected = served(store)
    store.close_now()
    with pytest.raises(LostLogError):
        bench.open(store_path_commit_log=str(tmp_path / "elsewhere"))
    assert not (tmp_path / "elsewhere").exists()
    assert served(bench.open()) == expected


def test_a_store_behind_links_is_served(bench: StoreBench, tmp_path: Path) -> None:
    store = bench.open()
    fill(store, 300)
    expected = served(store)
    store.close_now()
    for name in ("commitlog", "consumequeue"):
        (bench.root / name).rename(tmp_path / name)
        (bench.root / name).symlink_to(tmp_path / name)
    bench.root.rename(tmp_path / "real")
    bench.root.symlink_to(tmp_path / "real")
    again = bench.open(mapped_file_size_commit_log=4096)
    assert served(again) == expected
    assert again.findings[1:] == []


def test_a_message_is_held_against_the_size_that_the_files_have(bench: StoreBench) -> None:
    store = bench.open()
    fill(store, 5)
    store.close_now()
    again = bench.open(mapped_file_size_commit_log=1 << 20)
    assert again.config.mapped_file_size_commit_log == SEGMENT_BYTES
    with pytest.raises(ValueError, match="log file"):
        put(again, "TopicTest", 0, bytes(SEGMENT_BYTES))


def test_an_empty_store_takes_the_sizes_of_the_configuration(bench: StoreBench) -> None:
    bench.open().close_now()
    store = bench.open(mapped_file_size_commit_log=2 * SEGMENT_BYTES)
    assert store.findings == []
    fill(store, 5)
    assert [file.size for file in numbered_files(bench.root / "commitlog")] == [2 * SEGMENT_BYTES]
