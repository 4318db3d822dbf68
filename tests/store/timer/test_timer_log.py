"""The timer log: what it keeps, in what order it gives it back, and what crashes, damage and full disks leave of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.store.timer.timer_logs import T0, entry, opened, serials

import cometmq.store.timer.log
from cometmq import descriptors
from cometmq.limits import MAX_OPEN_TIMER_DAYS
from cometmq.message.record import decode_record
from cometmq.store.disk import Disk
from cometmq.store.errors import StoreError
from cometmq.store.timer.day import DAY_MS, TimerDay
from cometmq.store.timer.log import FOREVER_MS
from cometmq.store.timer.position import RENUMBERED, LogEnd, TimerPosition
from cometmq.store.timer.unit import MESSAGE, RECALL, UNIT_BYTES, Units, entry_of, text_hash


def test_what_an_entry_is_read_from() -> None:
    message = entry(7, T0, topic="A", unique="U")
    assert (message.kind, message.due_ms, message.key) == (MESSAGE, T0, text_hash("A+U"))
    recall = entry(8, T0, topic="A", unique="other", recalls="U")
    assert (recall.kind, recall.key) == (RECALL, message.key)


@pytest.mark.parametrize("due_ms", [-1, 1 << 43, 1 << 63, 10**30])
def test_an_entry_with_a_due_time_that_no_unit_holds_is_none(due_ms: int) -> None:
    """Another broker's record; the units of all others would never be written."""
    with pytest.raises(ValueError, match="invalid due time"):
        entry(1, due_ms)


@pytest.mark.parametrize("lacking", ["TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID"])
def test_an_entry_without_its_properties_is_none(lacking: str) -> None:
    record = entry(1, T0).record.replace(lacking.encode(), b"X" * len(lacking))
    with pytest.raises(ValueError, match="rmq_sys_wheel_timer"):
        entry_of(record, 1, 0)


@settings(max_examples=100, deadline=None)
@example(dues=[T0 - 1, T0], low=T0 - 9, width=100, most=1)
@given(
    dues=st.lists(st.integers(T0 - DAY_MS, T0 + 3 * DAY_MS), max_size=40),
    low=st.integers(T0 - DAY_MS, T0 + 3 * DAY_MS),
    width=st.integers(0, 2 * DAY_MS),
    most=st.integers(1, 20),
)
def test_windows_are_what_is_due_in_order(
    tmp_path_factory: pytest.TempPathFactory, dues: list[int], low: int, width: int, most: int
) -> None:
    log = opened(tmp_path_factory.mktemp("timer"))
    log.append([entry(serial, due) for serial, due in enumerate(dues)])
    expected = sorted((due, serial) for serial, due in enumerate(dues) if low <= due < low + width)
    found: list[tuple[int, int]] = []
    at = low
    while at < low + width:
        loaded = log.load(at, low + width, 1 << 40, most)
        part = [(int(unit["due"]), int(unit["serial"])) for unit in loaded.units]
        assert len(part) <= most or len({due for due, _ in part}) == 1
        assert at < loaded.until_ms <= low + width
        found += part
        at = loaded.until_ms
        assert all(not loaded.until_ms <= due < loaded.next_ms for due in dues)
    assert found == expected
    log.close()


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([entry(serial, T0 + serial * DAY_MS // 3) for serial in range(10)])
    for unit in log.load(0, FOREVER_MS, 1 << 40, 100).units:
        record = log.record(int(unit["due"]), int(unit["at"]), int(unit["size"]), int(unit["crc"]))
        assert record is not None
        assert decode_record(record).body == b"body %d" % unit["serial"]


def test_a_recall_takes_back_the_message_of_its_time_and_key_only(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(
        [
            entry(0, T0, unique="a"),
            entry(1, T0, unique="b"),
            entry(2, T0 + 1, unique="a"),
            entry(3, T0, topic="Other", unique="a"),
            entry(4, T0),
        ]
    )
    log.append([entry(5, T0, recalls="a"), entry(6, T0, recalls="a"), entry(7, T0, recalls="nobody")])
    assert serials(log) == [1, 3, 4, 2]


def test_what_is_saved_survives_and_what_is_not_is_written_again(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([entry(0, T0), entry(1, T0 + DAY_MS)])
    log.save(TimerPosition(serial=2, log_offset=5))
    log.append([entry(2, T0), entry(3, T0 + 2 * DAY_MS)])
    log.close()
    again = opened(tmp_path)
    assert again.position.serial == 2
    assert serials(again) == [0, 1]
    again.append([entry(2, T0), entry(3, T0 + 2 * DAY_MS)])
    assert serials(again) == [0, 2, 1, 3]


def test_delivered_ones_are_not_given_again(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([entry(serial, T0 + serial) for serial in range(6)])
    log.save(TimerPosition(serial=6, until_ms=T0 + 3, late=[1]))
    assert serials(opened(tmp_path)) == [1, 4, 5]


def test_days_that_are_over_are_deleted(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([entry(0, T0), entry(1, T0 + DAY_MS)])
    log.save(TimerPosition(serial=2, until_ms=T0 + DAY_MS - 1, late=[0]))
    assert len(list((tmp_path / "timer").glob("*.data"))) == 2
    log.save(TimerPosition(serial=2, until_ms=T0 + DAY_MS - 1))
    assert [path.name for path in (tmp_path / "timer").glob("*.data")] == ["2024-10-05.data"]
    assert serials(log) == [1]
    assert opened(tmp_path).findings == []


def test_a_day_that_a_crash_left_behind_is_deleted_at_the_next_start(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([entry(0, T0), entry(1, T0 + DAY_MS)])
    log.save(TimerPosition(serial=2))
    first = {path: path.read_bytes() for path in (tmp_path / "timer").glob("2024-10-04*")}
    log.save(TimerPosition(serial=2, until_ms=T0 + DAY_MS - 1))
    for path, content in first.items():
        path.write_bytes(content)
    again = opened(tmp_path)
    assert (serials(again), again.findings) == ([1], [])
    assert not any(path.exists() for path in first)


@pytest.mark.parametrize("cut", [1, UNIT_BYTES - 1, UNIT_BYTES, UNIT_BYTES + 7])
def test_a_saved_index_that_lost_its_end_is_told(tmp_path: Path, cut: int) -> None:
    log = opened(tmp_path)
    log.append([entry(serial, T0 + serial) for serial in range(5)])
    log.save(TimerPosition(serial=5))
    (index,) = (tmp_path / "timer").glob("*.index")
    os.truncate(index, 5 * UNIT_BYTES - cut)
    again = opened(tmp_path)
    assert serials(again) == list(range(5 - -(-cut // UNIT_BYTES)))
    assert f"{-(-cut // UNIT_BYTES)} of 5 waiting messages" in again.findings[0]


@pytest.mark.parametrize("gone", [".index", ".data"])
def test_a_saved_file_that_is_gone_is_told(tmp_path: Path, gone: str) -> None:
    log = opened(tmp_path)
    log.append([entry(0, T0), entry(1, T0 + DAY_MS), entry(2, T0)])
    log.save(TimerPosition(serial=3))
    (tmp_path / f"timer/2024-10-04{gone}").unlink()
    again = opened(tmp_path)
    assert serials(again) == [1]
    assert "2024-10-04.index: 2 of 2 waiting messages" in again.findings[0]


def test_a_damaged_unit_at_the_end_is_told(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([entry(serial, T0 + serial) for serial in range(5)])
    log.save(TimerPosition(serial=5))
    (index,) = (tmp_path / "timer").glob("*.index")
    data = bytearray(index.read_bytes())
    data[4 * UNIT_BYTES + 3] ^= 1
    index.write_bytes(data)
    again = opened(tmp_path)
    assert serials(again) == [0, 1, 2, 3]
    assert "1 of 5" in again.findings[0]


def test_what_was_not_saved_is_no_damage(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([entry(0, T0)])
    log.save(TimerPosition(serial=1))
    log.append([entry(1, T0), entry(2, T0 + DAY_MS)])
    for path in (tmp_path / "timer").glob("2024-10-05*"):
        os.truncate(path, 10)
    again = opened(tmp_path)
    assert (serials(again), again.findings) == ([0], [])


def test_a_damaged_record_is_none(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([entry(0, T0)])
    unit = log.load(0, FOREVER_MS, 1 << 40, 1).units[0]
    (data,) = (tmp_path / "timer").glob("*.data")
    content = bytearray(data.read_bytes())
    content[90] ^= 1
    data.write_bytes(content)
    assert log.record(T0, int(unit["at"]), int(unit["size"]), int(unit["crc"])) is None


def test_a_position_that_cannot_be_read_makes_everything_be_read_again(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([entry(serial, T0 + serial) for serial in range(5)])
    log.save(TimerPosition(serial=5, until_ms=T0 + 1))
    (tmp_path / "timer/position.json").write_text("{")
    again = opened(tmp_path)
    assert again.position == TimerPosition()
    assert any("position.json" in line for line in again.findings)
    again.append([entry(serial, T0 + serial) for serial in range(3)])
    assert serials(again) == [0, 1, 2, 3, 4], "each once"


class NoRoom(Disk):
    def __init__(self) -> None:
        self.writes_left = 1 << 30

    def write(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
        self.writes_left -= 1
        if self.writes_left < 0:
            super().write(fd, memoryview(data)[: len(data) // 2], at)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(fd, data, at)


@pytest.mark.parametrize("writes", range(5))
def test_an_append_that_fails_anywhere_counts_for_nothing_and_can_be_repeated(tmp_path: Path, writes: int) -> None:
    disk = NoRoom()
    log = opened(tmp_path, disk)
    log.append([entry(0, T0), entry(1, T0 + DAY_MS)])
    more = [entry(2, T0), entry(3, T0 + DAY_MS), entry(4, T0 + 2 * DAY_MS)]
    disk.writes_left = writes
    with pytest.raises(OSError, match="space"):
        log.append(more)
    assert serials(log) == [0, 1]
    disk.writes_left = 1 << 30
    log.append(more)
    assert serials(log) == [0, 2, 1, 3, 4]
    log.save(TimerPosition(serial=5))
    assert serials(opened(tmp_path)) == [0, 2, 1, 3, 4]


def test_a_recall_holds_for_a_message_that_was_late_when_the_position_was_saved(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([entry(0, T0, unique="U"), entry(1, T0, unique="V"), entry(2, T0, unique="r", recalls="U")])
    log.save(TimerPosition(serial=3, until_ms=T0, late=[0, 1]))
    log.close()
    log = opened(tmp_path)
    assert serials(log) == [1]
    log.close()


def lost(serial: int, times: int = 1) -> int:
    """The serial of a message that the log has lost, at the so manieth loss."""
    return serial + times * RENUMBERED


def test_messages_that_the_log_has_lost_are_kept_beside_those_that_get_their_serials(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([entry(serial, T0 + serial * DAY_MS // 2) for serial in range(6)])
    log.save(TimerPosition(serial=6, log_offset=100, until_ms=T0 + DAY_MS, late=[1]))
    log.close()
    log = opened(tmp_path, end=LogEnd(100, 4, T0))
    assert "number 4 on are no longer in the log" in log.findings[0]
    assert log.position.serial == 4
    assert serials(log, before=4) == [1, 3, lost(4), lost(5)]
    log.append([entry(4, T0 + 2 * DAY_MS), entry(5, T0 + 7 * DAY_MS)])
    assert serials(log, before=4) == [1, 3, lost(4), lost(5)]
    assert serials(log, before=6) == [1, 3, 4, lost(4), lost(5), 5]
    log.save(TimerPosition(serial=6, log_offset=200, until_ms=T0 + 2 * DAY_MS, late=[1, lost(4)]))
    log.close()
    log = opened(tmp_path, end=LogEnd(200, 5, T0))
    assert serials(log, before=5) == [1, lost(4), lost(5), lost(5, 2)]
    log.save(TimerPosition(serial=5, log_offset=300, until_ms=T0 + 3 * DAY_MS))
    assert serials(log) == [lost(5, 2)]
    log.close()
    log = opened(tmp_path)
    assert log.findings == []
    assert serials(log) == [lost(5, 2)]


def test_a_late_message_that_the_log_has_lost_is_still_late(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([entry(serial, T0 + serial) for serial in range(6)])
    log.save(TimerPosition(serial=6, log_offset=100, until_ms=T0 + 5, late=[2, 4]))
    log.close()
    for _ in range(2):
        log = opened(tmp_path, end=LogEnd(100, 3, T0))
        assert serials(log, before=3) == [2, lost(4)]
        log.close()


def test_what_was_delivered_behind_the_end_of_the_log_is_given_again(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([entry(serial, T0 + serial) for serial in range(6)])
    log.save(TimerPosition(serial=6, log_offset=100, until_ms=T0 + 5, late=[1]))
    log.close()
    log = opened(tmp_path, end=LogEnd(60, 6, T0 + 2))
    assert "ends at 60; messages that fell due after that end are delivered again" in log.findings[0]
    assert serials(log) == [1, 3, 4, 5]


def test_lost_messages_are_kept_without_a_position_too(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([entry(serial, T0 + serial) for serial in range(6)])
    log.save(TimerPosition(serial=6, log_offset=100, until_ms=T0))
    log.close()
    (tmp_path / "timer/position.json").unlink()
    log = opened(tmp_path, end=LogEnd(60, 4, T0))
    log.append([entry(serial, T0 + serial) for serial in range(4)])
    assert serials(log) == [0, 1, 2, 3, lost(4), lost(5)]


def test_a_loss_that_cannot_be_written_down_stops_the_start(tmp_path: Path) -> None:
    disk = NoRoom()
    log = opened(tmp_path, disk)
    log.append([entry(serial, T0 + serial) for serial in range(6)])
    log.save(TimerPosition(serial=6, log_offset=100))
    log.close()
    before = (tmp_path / "timer/position.json").read_bytes()
    disk.writes_left = 0
    with pytest.raises(StoreError, match=r"position\.json cannot be written: No space"):
        opened(tmp_path, disk, LogEnd(60, 4, T0))
    assert (tmp_path / "timer/position.json").read_bytes() == before
    assert serials(opened(tmp_path, end=LogEnd(60, 4, T0)), before=4) == [0, 1, 2, 3, lost(4), lost(5)]


def test_messages_of_any_number_of_days_are_read_with_few_open_files(tmp_path: Path) -> None:
    """A list of what waits reads a message of each day."""
    log = opened(tmp_path)
    entries = [entry(number, T0 + number * DAY_MS) for number in range(100)]
    log.append(entries)
    before = descriptors.in_use()
    units = log.load(0, FOREVER_MS, 1 << 40, 1000).units
    found = [log.record(int(unit["due"]), int(unit["at"]), int(unit["size"]), int(unit["crc"])) for unit in units]
    assert found == [one.record for one in entries]
    assert descriptors.in_use() - before <= MAX_OPEN_TIMER_DAYS
    log.close()
    assert descriptors.in_use() <= before


def test_a_window_with_many_messages_is_not_read_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path)
    log.append([entry(serial, T0 + serial // 4) for serial in range(4_000)])
    read = []
    units_of = TimerDay.units

    def noted(day: TimerDay, low_ms: int, high_ms: int, before_serial: int) -> Units:
        units = units_of(day, low_ms, high_ms, before_serial)
        read.append(len(units))
        return units

    monkeypatch.setattr(TimerDay, "units", noted)
    low_ms, found = 0, 0
    while low_ms < FOREVER_MS:
        loaded = log.load(low_ms, FOREVER_MS, 4_000, 500)
        assert len(loaded.units) <= 500
        low_ms, found = loaded.until_ms, found + len(loaded.units)
    assert found == 4_000
    assert max(read) <= 500


def test_a_day_of_many_messages_is_read_in_few_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each window reads the whole index of its day: 560 MB if 10,000,000 messages are due on it."""
    monkeypatch.setattr(cometmq.store.timer.log, "_LARGE_DAY", 100)
    log = opened(tmp_path)
    count = 480
    log.append([entry(serial, T0 + serial * DAY_MS // count) for serial in range(count)])
    found: list[int] = []
    windows, at = 0, T0
    while at < T0 + DAY_MS:
        loaded = log.load(at, at + 60_000, 1 << 40, 1_000)
        assert at < loaded.until_ms <= T0 + DAY_MS
        found += loaded.units["serial"].tolist()
        windows, at = windows + 1, loaded.until_ms
    assert found == list(range(count))
    assert windows <= 64
    assert log.load(T0, T0 + 60_000, 1 << 40, 5).units["serial"].tolist() == [0, 1, 2, 3, 4]
    log.close()


def test_messages_are_counted_without_recalled_and_delivered_ones(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([entry(serial, T0 + serial, unique=f"u{serial}") for serial in range(9)])
    log.append([entry(9, T0 + 4, recalls="u4")])
    log.append([entry(serial, T0 + DAY_MS + serial) for serial in range(10, 15)])
    log.save(TimerPosition(15, 1000, T0 + 2, [1]))
    again = opened(tmp_path)
    assert again.count_when_opened() == 1 + 5 + 5  # the late one, those of the first day without the recalled one


def test_a_start_checks_only_days_that_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path)
    log.append([entry(serial, T0 + serial * DAY_MS) for serial in range(4)])
    log.save(TimerPosition(4, 1000, T0 - 1))
    log.append([entry(4, T0 + 2 * DAY_MS)])  # after the position, as before a kill
    checked: list[int] = []
    find_damaged = TimerDay._find_damaged

    def noted(day: TimerDay) -> Iterator[int]:
        checked.append(day.number - T0 // DAY_MS)
        return find_damaged(day)

    monkeypatch.setattr(TimerDay, "_find_damaged", noted)
    again = opened(tmp_path)
    assert checked == [2]
    assert serials(again) == [0, 1, 2, 3]
    again.save(again.position)
    checked.clear()
    monkeypatch.setattr("cometmq.store.timer.log.boot_id", lambda: "another boot")
    assert serials(opened(tmp_path)) == [0, 1, 2, 3]
    assert checked == [0, 1, 2, 3]
