"""A log that has lost its end: what is left is served, and no offset that was given before is given again."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.store.disks import NoFlushDisk
from tests.store.recovery import damaged_stores as stores
from tests.store.recovery.damaged_stores import LOG_FILE_BYTES, QUEUES, SPOILT, Written, check, missing, open_at

from cometmq.store.disk import Disk
from cometmq.store.errors import StoreError
from cometmq.store.message_store import MessageStore
from cometmq.store.recovery.position import Position, load_position


def position_of(root: Path) -> Position:
    position = load_position(root / "comet" / "position.json")
    assert position is not None
    return position


def files_of(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def cut_at(offset: int) -> Callable[[Path], int]:
    def cut(root: Path) -> int:
        for path in files_of(root):
            if int(path.name) <= offset < int(path.name) + LOG_FILE_BYTES:
                os.truncate(path, offset - int(path.name))
            elif int(path.name) > offset:
                path.unlink()
        return offset

    return cut


def without_files(count: int) -> Callable[[Path], int]:
    def cut(root: Path) -> int:
        gone = files_of(root)[-count:]
        for path in gone:
            path.unlink()
        return int(gone[0].name)

    return cut


def cuts(written: Written) -> dict[str, Callable[[Path], int]]:
    """Each loses what the position file knows; its argument is the store, its result where the log is cut off."""
    end = position_of(written.root).offset
    in_order = sorted((m for m in written.messages if m.offset < end), key=lambda m: m.offset)
    in_last_file = [m for m in in_order if m.offset >= in_order[-1].offset // LOG_FILE_BYTES * LOG_FILE_BYTES]
    middle = in_last_file[len(in_last_file) // 2]
    beyond = len(files_of(written.root)) - 1 - in_order[-1].offset // LOG_FILE_BYTES
    return {
        "before the last record": cut_at(in_order[-1].offset),
        "in the head of the last record": cut_at(in_order[-1].offset + 6),
        "in the last record": cut_at(in_order[-1].offset + in_order[-1].size - 3),
        "in the middle": cut_at(middle.offset),
        "within a record in the middle": cut_at(middle.offset + 40),
        "in the first record of the file": cut_at(in_last_file[0].offset + 1),
        "to nothing": cut_at(in_last_file[0].offset // LOG_FILE_BYTES * LOG_FILE_BYTES),
        "last file gone": without_files(beyond + 1),
        "two last files gone": without_files(beyond + 2),
        "all files gone": without_files(len(files_of(written.root))),
    }


def is_gone(position_spoilt: str) -> bool:
    return "position" in position_spoilt or position_spoilt == "all gone"


@pytest.mark.parametrize("spoilt", [name for name in SPOILT if not is_gone(name)])
def test_no_offset_is_given_twice_by_a_log_that_has_lost_its_end(spoilt: str, written: Written, tmp_path: Path) -> None:
    known = position_of(written.root)
    for name, cut in cuts(written).items():
        root = written.copy(tmp_path / name)
        at = cut(root)
        SPOILT[spoilt](root)
        damaged = {message.place for message in written.messages if message.offset + message.size > at}
        left = shutil.copytree(root, tmp_path / f"{name}, once more")
        all_gone = name == "all files gone"
        findings = check(root, written, damaged, spoilt, keys=not all_gone, begin_anew=all_gone)
        if name != "in the last record":  # its head says that it was there, and where it ends
            assert sum("no log or queue offset is used twice" in line for line in findings) == 1, name
        assert_behind(left, known, stores.settings(spoilt))
        stores.scrub(root)
        stores.scrub(left)


def assert_behind(root: Path, known: Position, changes: dict[str, Any] | None = None) -> None:
    """New messages get offsets behind those that a position file knows, also when that start ends by a kill."""
    killed = root.with_name(root.name + ", killed")
    store = open_at(root, begin_anew=True, **(changes or {}))
    shutil.copytree(root, killed)
    store.close_now()
    for place in (root, killed):
        store = open_at(place, **(changes or {}))
        assert store.max_physical_offset >= known.offset
        for topic, queue_id in QUEUES:
            assert store.queues()[topic][queue_id].max_offset() >= known.queues[topic][queue_id][1]
        end = store.max_physical_offset
        stores.send(store, 1000, 9)
        new = [message for message in stores.newest(store) if len(message.key) == 8]
        assert len(new) == 9
        assert min(message.offset for message in new) >= end
        for message in new:
            topic, queue_id, offset = message.place
            assert offset >= known.queues[topic][queue_id][1]
        store.close_now()
    stores.scrub(killed)


@pytest.mark.parametrize("spoilt", [name for name in SPOILT if is_gone(name)])
def test_without_a_position_file_what_is_left_is_served(spoilt: str, written: Written, tmp_path: Path) -> None:
    for name, cut in cuts(written).items():
        if name == "all files gone":
            continue
        root = written.copy(tmp_path / name)
        at = cut(root)
        SPOILT[spoilt](root)
        damaged = {message.place for message in written.messages if message.offset + message.size > at}
        check(root, written, damaged, spoilt)
        stores.scrub(root)


@pytest.mark.parametrize("spoilt", ["all gone", "position gone"])
@pytest.mark.parametrize("count", [0, 1, 9])
def test_the_log_itself_says_which_offsets_were_given(
    spoilt: str, count: int, stopped: Written, tmp_path: Path
) -> None:
    """Queues that are made again from it later end where they did, however few messages came since."""
    root = stopped.copy(tmp_path / "case")
    without_files(2)(root)
    store = open_at(root)
    stores.send(store, 1000, count)
    new = [message for message in stores.newest(store) if len(message.key) == 8]
    ends = {key: store.queues()[key[0]][key[1]].max_offset() for key in QUEUES}
    assert len(new) == count
    store.close_now()
    SPOILT[spoilt](root)
    again = open_at(root)
    assert {key: again.queues()[key[0]][key[1]].max_offset() for key in QUEUES} == ends
    assert missing(again, new) == set()
    again.close_now()


def test_units_that_are_younger_than_the_position_file_count_as_given(tmp_path: Path) -> None:
    store = open_at(tmp_path / "store")
    stores.send(store, 0, 30)
    store._maintenance.write_derived()
    store._maintenance.checkpoints.save_now()
    stores.send(store, 30, 10)
    store._maintenance.write_derived()
    ends = {key: store.queues()[key[0]][key[1]].max_offset() for key in QUEUES}
    end = store.max_physical_offset
    root = shutil.copytree(tmp_path / "store", tmp_path / "killed")
    store.close_now()
    cut_at(position_of(root).last_offset)(root)
    again = open_at(root)
    assert {key: again.queues()[key[0]][key[1]].max_offset() for key in QUEUES} == ends
    assert again.max_physical_offset >= end
    again.close_now()


def test_a_position_file_of_another_store_says_nothing(stopped: Written, tmp_path: Path) -> None:
    """Of a longer log, whose end is not this one's."""
    root = tmp_path / "other"
    store = open_at(root)
    stores.send(store, 500, 8)
    expected = {message.place: message for message in stores.all_messages(store)}
    end = store.max_physical_offset
    store.close_now()
    shutil.copy(stopped.root / "comet" / "position.json", root / "comet" / "position.json")
    again = open_at(root)
    assert again.max_physical_offset == end
    assert {message.place: message for message in stores.all_messages(again)} == expected
    assert "comet/position.json: does not belong to this log; everything is checked instead" in again.findings
    again.close_now()


def test_a_position_file_older_than_the_log_says_nothing(stopped: Written, tmp_path: Path) -> None:
    """A log that was cut back and written over, as Apache does, has other records where the position file ends."""
    root = stopped.copy(tmp_path / "case")
    old = (root / "comet" / "position.json").read_bytes()
    (root / "comet" / "position.json").unlink()
    without_files(1)(root)
    store = open_at(root)
    stores.send(store, 500, 60)
    ends = {key: store.queues()[key[0]][key[1]].max_offset() for key in QUEUES}
    end = store.max_physical_offset
    store.close_now()
    (root / "comet" / "position.json").write_bytes(old)
    again = open_at(root)
    assert again.max_physical_offset == end
    assert {key: again.queues()[key[0]][key[1]].max_offset() for key in QUEUES} == ends
    again.close_now()


@pytest.mark.parametrize("field", ["offset", "last_offset", "queues"])
def test_a_damaged_position_file_says_nothing(field: str, stopped: Written, tmp_path: Path) -> None:
    """A number in it that is wrong would make the log or a queue grow without end."""
    root = stopped.copy(tmp_path / "case")
    path = root / "comet" / "position.json"
    content = path.read_bytes()
    position = position_of(root)
    wrong = {
        "offset": (b'"offset":%d' % position.offset, b'"offset":9%d' % position.offset),
        "last_offset": (b'"last_offset":%d' % position.last_offset, b'"last_offset":9%d' % position.last_offset),
        "queues": (b"[0,%d]" % position.queues["B"][0][1], b"[0,999999%d]" % position.queues["B"][0][1]),
    }[field]
    assert wrong[0] in content
    path.write_bytes(content.replace(*wrong, 1))
    at = without_files(1)(root)
    damaged = {message.place for message in stopped.messages if message.offset + message.size > at}
    findings = check(root, stopped, damaged, "nothing")
    assert "comet/position.json: does not belong to this log; everything is checked instead" in findings
    assert sum(path.stat().st_size for path in (root / "consumequeue").rglob("0*")) < 10_000


def test_a_slave_goes_on_where_its_log_ends(stopped: Written, tmp_path: Path) -> None:
    """Its master has what it lost, at the same offsets."""
    root = stopped.copy(tmp_path / "case")
    at = without_files(1)(root)
    left = [message for message in stopped.messages if message.offset < at]
    store = MessageStore.open(stores.config_of(root), disk=NoFlushDisk(), is_slave=True)
    assert store.max_physical_offset == at
    assert store.lost_from is None
    for topic, queue_id in QUEUES:
        end = store.queues()[topic][queue_id].max_offset()
        assert end == sum(message.place[:2] == (topic, queue_id) for message in left)
    store.close_now()


def test_a_disk_without_room_refuses_messages_until_the_end_is_made_up_for(stopped: Written, tmp_path: Path) -> None:
    class FullDisk(NoFlushDisk):
        full = True

        def write(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
            if self.full and bytes(data[5:7]) in (b"\xa3\x20", b"\xd4\x31"):  # records and fillers
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            Disk.write(self, fd, data, at)

    root = stopped.copy(tmp_path / "case")
    known = position_of(root)
    at = without_files(1)(root)
    disk = FullDisk()
    store = MessageStore.open(stores.config_of(root), disk=disk)
    assert any("messages are refused until this succeeds" in line for line in store.findings)
    assert missing(store, [message for message in stopped.messages if message.offset < at]) == set()
    with pytest.raises(StoreError):
        stores.send(store, 1000, 1)
    disk.full = False
    stores.send(store, 2000, 3)
    assert store.last_record[0] >= known.offset
    store.close_now()
    again = open_at(root)
    assert again.findings == []
    again.close_now()
