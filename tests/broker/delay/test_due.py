"""Messages in memory come in the order of due times; a burst does not hold up those that fall due behind it."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cometmq.broker.delay.due import ADDED_AT_ONCE, DueMessages, Waiting
from cometmq.loop import finish
from cometmq.store.timer.unit import MESSAGE, UNIT_DTYPE, TimerEntry, Units


def entry(serial: int, due_ms: int) -> TimerEntry:
    return TimerEntry(due_ms, serial, serial + 1, 7, MESSAGE, serial * 100, b"record")


def window(serials_and_dues: list[tuple[int, int]]) -> Units:
    units = np.zeros(len(serials_and_dues), UNIT_DTYPE)
    for index, (due_ms, serial) in enumerate(sorted((due, serial) for serial, due in serials_and_dues)):
        units[index]["due"], units[index]["serial"], units[index]["key"] = due_ms, serial, serial + 1
    return units


def drain(due: DueMessages, now_ms: int, most: int) -> list[Waiting]:
    taken: list[Waiting] = []
    while (first := due.next_due()) is not None and first <= now_ms:
        part = due.take_due(now_ms, most)
        assert len(part) <= most
        taken += part
    return taken


def test_both_sources_come_in_one_order() -> None:
    due = DueMessages()
    due.add_window(window([(0, 500), (1, 1500), (2, 3000)]))
    for serial, due_ms in ((3, 400), (4, 1600), (5, 501), (6, 9000)):
        due.add(entry(serial, due_ms))
    assert due.next_due() == 400
    taken = [waiting.serial for now in range(0, 4000, 10) for waiting in drain(due, now, 2)]
    assert taken == [3, 0, 5, 1, 4, 2]
    assert due.next_due() == 9000
    assert len(due) == 1


def test_what_falls_due_in_a_burst_is_not_behind_it() -> None:
    for burst_is_loaded in (True, False):
        due = DueMessages()
        burst = [(serial, 1000) for serial in range(10_000)]
        if burst_is_loaded:
            due.add_window(window(burst))
        else:
            for serial, due_ms in burst:
                due.add(entry(serial, due_ms))
        others = {20_000 + number: 1002 + number * 7 for number in range(100)}
        for serial, due_ms in others.items():
            due.add(entry(serial, due_ms))
        now_ms = 1000
        lateness: dict[int, int] = {}
        order: list[int] = []
        while taken := due.take_due(now_ms, 20):
            now_ms += 3  # what 20 messages take in this test
            lateness |= {waiting.serial: now_ms - waiting.due_ms for waiting in taken}
            order += [waiting.serial for waiting in taken if waiting.serial < 20_000]
        assert max(lateness[serial] for serial in others) < 60
        assert len(lateness) == 10_100
        assert order == sorted(order), "a burst stays in its own order"


class DueMachine(RuleBasedStateMachine):
    """Against a table of serials and due times."""

    def __init__(self) -> None:
        super().__init__()
        self.due = DueMessages()
        self.model: dict[int, int] = {}
        self.serial = 0
        self.now_ms = 10_000
        self.horizon_ms = 10_000

    @rule(delays=st.lists(st.integers(-50, 5_000), max_size=8))
    def add(self, delays: list[int]) -> None:
        for delay in delays:
            self.serial += 1
            self.model[self.serial] = self.now_ms + delay
            self.due.add(entry(self.serial, self.now_ms + delay))

    @rule(gaps=st.lists(st.integers(0, 900), max_size=8))
    def add_window(self, gaps: list[int]) -> None:
        found = []
        for gap in gaps:
            self.serial += 1
            self.horizon_ms += gap
            found.append((self.serial, self.horizon_ms))
            self.model[self.serial] = self.horizon_ms
        self.due.add_window(window(found))

    @rule(choice=st.integers(0, 1000))
    def recall(self, choice: int) -> None:
        waiting = [serial for serial, due_ms in self.model.items() if due_ms > self.now_ms]
        if waiting:
            serial = waiting[choice % len(waiting)]
            self.due.recall(self.model.pop(serial), serial + 1)

    @rule(ms=st.integers(0, 2_000))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    @rule(most=st.integers(2, 9))
    def take_some(self, most: int) -> None:
        for waiting in self.due.take_due(self.now_ms, most):
            assert self.model.pop(waiting.serial) == waiting.due_ms <= self.now_ms

    @rule(most=st.integers(2, 9), back=st.integers(0, 9))
    def take_and_put_back(self, most: int, back: int) -> None:
        taken = self.due.take_due(self.now_ms, most)
        self.due.put_back(taken[back:])
        for waiting in taken[:back]:
            del self.model[waiting.serial]

    @rule()
    def take_all(self) -> None:
        for waiting in drain(self.due, self.now_ms, 16):
            assert self.model.pop(waiting.serial) <= self.now_ms
        assert all(due_ms > self.now_ms for due_ms in self.model.values())

    @rule(ahead_ms=st.integers(-100, 3_000))
    def forget(self, ahead_ms: int) -> None:
        due_ms = self.now_ms + ahead_ms
        self.due.forget_from(due_ms)
        self.model = {serial: due for serial, due in self.model.items() if due < due_ms}

    @rule()
    def forget_recalls(self) -> None:
        self.due.forget_recalls(self.now_ms + 1)

    @invariant()
    def nothing_is_forgotten(self) -> None:
        until = self.now_ms + 700
        recalled = self.due._recalled
        there = [s for s in self.due.due_until(until) if not any(s + 1 == key for _, key in recalled)]
        assert sorted(there) == sorted(serial for serial, due_ms in self.model.items() if due_ms <= until)
        first = self.due.next_due()
        if self.model:
            assert first is not None
            assert first <= min(self.model.values()) or first <= self.now_ms


def test_recalls_are_forgotten_while_others_are_late() -> None:
    due = DueMessages()
    due.add_window(window([(0, 7_000), (1, 9_000)]))
    due.add(entry(2, 6_000))
    for recalled_ms in (1_000, 5_999, 6_000, 7_000):
        due.recall(recalled_ms, 1)
    due.forget_recalls(10_000)
    assert set(due._recalled) == {(6_000, 1), (7_000, 1)}
    assert [waiting.serial for waiting in drain(due, 10_000, 9)] == [2, 1]
    due.forget_recalls(6_500)
    assert set(due._recalled) == {(7_000, 1)}
    due.forget_recalls(10_000)
    assert not due._recalled


def processor_time_of_arrivals(messages: int) -> float:
    """Seconds that it takes to add so many messages that are due at once, with a look after each turn of 16."""
    due = DueMessages()
    entries = [entry(serial, 5_000) for serial in range(messages)]
    began = time.thread_time()
    for number, one in enumerate(entries):
        due.add(one)
        if number % 16 == 15:
            assert due.next_due() == 5_000
    return time.thread_time() - began


def test_each_arrival_costs_the_same_however_many_are_due_with_it() -> None:
    few = min(processor_time_of_arrivals(3_000) for _ in range(3))
    assert processor_time_of_arrivals(30_000) < 40 * few  # 100 times as much if each look goes through all


def late_of_both_sources(messages: int) -> tuple[DueMessages, list[int]]:
    """So many late messages, of which every other was loaded, and their serials in the order of due times."""
    due = DueMessages()
    due.add_window(window([(serial, serial) for serial in range(0, messages, 2)]))
    for serial in range(1, messages, 2):
        due.add(entry(serial, serial))
    return due, list(range(messages))


def test_late_messages_of_both_sources_come_from_both_ends() -> None:
    due, order = late_of_both_sources(2_000)
    first = [waiting.serial for waiting in due.take_due(10_000, 64)]
    assert sorted(first) == order[:32] + order[-32:]
    taken = first + [waiting.serial for waiting in drain(due, 10_000, 64)]
    assert sorted(taken) == order


def test_a_backlog_of_both_sources_is_not_merged_at_once() -> None:
    """Half a million loaded messages and as many that had arrived held the event loop for 250 ms."""
    due, _ = late_of_both_sources(200_000)
    due._begin_slots(10_000)
    began = time.thread_time()
    assert len(due.take_due(1_000_000, 128)) == 128
    assert time.thread_time() - began < 0.01


def test_unwritten_messages_are_added_in_slices_without_those_that_arrive_meanwhile() -> None:
    due = DueMessages()
    entries = [entry(serial, 1_000 + serial) for serial in range(ADDED_AT_ONCE + 5)]
    last_ms = 1_000 + len(entries)
    steps = due.add_between(entries, 1_010, last_ms - 2)
    next(steps)
    assert len(due) == ADDED_AT_ONCE - 10
    entries.append(entry(len(entries), 1_010))
    assert finish(steps) == last_ms - 2
    assert len(due) == ADDED_AT_ONCE + 5 - 10 - 2


def test_messages_that_arrived_take_60_bytes_each() -> None:
    due = DueMessages()
    tracemalloc.start()
    try:
        for serial in range(20_000):
            due.add(entry(serial, 5_000 + serial))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 20_000 * 75  # buffers grow ahead by an eighth
    assert len(due) == 20_000


DueMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestDueMachine = DueMachine.TestCase
