"""The messages that are handed out: in little memory, found by offset, due in time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.pop.entries import Forgotten, popped
from cometmq.broker.pop.invisible import NEVER, InvisibleMessages
from cometmq.broker.pop.state import PopQueue, PopState

BATCH = 128
Steps = Iterable[tuple[str, int, int]]


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "remove", "from", "due", "save"]), st.integers(0, 99), st.integers(0, 9))
    )
)
def test_it_behaves_as_a_dictionary(steps: Steps) -> None:
    found, model = InvisibleMessages(), dict[int, tuple[int, int]]()
    for step, offset, times in steps:
        if step == "add":
            offsets = range(offset, offset + times + 1)
            found.add(offsets, times, times * 10)
            model |= dict.fromkeys(offsets, (times, times * 10))
        elif step == "remove":
            expected = model.pop(offset)[1] if model.get(offset, (None, 0))[0] == times else None
            assert found.remove(offset, times) == expected
        elif step == "from":
            gone = [model.pop(at)[0] for at in sorted(model) if at >= offset]
            assert found.remove_from(offset) == max(gone, default=0)
        elif step == "save":
            found = InvisibleMessages.load(*found.dump())
        else:
            due = [(at, *pair) for at, pair in model.items() if pair[1] <= offset]
            expected_due = sorted(due, key=lambda message: (message[2], message[0]))[: times + 1]
            assert found.due_messages(offset, times + 1) == expected_due
            for at, pop_time, _ in expected_due:
                found.remove(at, pop_time)
                del model[at]
            assert found.first_due == min((pair[1] for pair in model.values()), default=NEVER)
        assert found.count == len(model)
        assert all(found.find(at) == model.get(at) for at in range(110))
        assert all(found.first_due <= pair[1] for pair in model.values())


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_million_messages_by_batches_over_queues_take_little_memory() -> None:
    state = PopState()
    before = resident_bytes()
    for batch in range(1_000_000 // 32):
        queue_id, start = batch % 16, batch // 16 * 32
        state.apply(popped("T", "G", queue_id, range(start, start + 32), start + 32, batch, 60_000))
    assert state.in_flight("T", "G") == 1_000_000
    assert resident_bytes() - before <= 60_000_000


def processor_time_to_end_all(messages: int) -> float:
    """Seconds that it takes to find all of so many due messages in batches, and to remove them."""
    found = InvisibleMessages()
    for start in range(0, messages, 32):
        found.add(range(start, start + 32), start // 1_000, 60_000 + start // 1_000)
    began = time.thread_time()
    while due := found.due_messages(1_000_000, BATCH):
        for offset, pop_time, _ in due:
            found.remove(offset, pop_time)
    assert not found.count
    return time.thread_time() - began


def test_many_messages_that_are_due_at_once_cost_as_much_each_as_few() -> None:
    few = min(processor_time_to_end_all(8_000) for _ in range(3))
    assert processor_time_to_end_all(80_000) < 40 * few  # 100 times as much if each batch looks at all


def test_a_message_that_is_due_before_those_found_already_comes_first() -> None:
    found = InvisibleMessages()
    found.add(range(100), 1, 500)
    assert found.due_messages(600, 2) == [(0, 1, 500), (1, 1, 500)]
    found.add([200], 2, 400)
    found.remove(0, 1)
    assert found.due_messages(600, 2) == [(200, 2, 400), (1, 1, 500)]


def test_what_is_overdue_is_counted_with_the_time_since_the_first() -> None:
    messages = InvisibleMessages()
    assert messages.overdue(1_000) == (0, 0)
    messages.add([1, 2, 3], 100, 500)
    messages.add([4], 200, 800)
    assert messages.overdue(499) == (0, 0)
    assert messages.overdue(700) == (3, 200)
    messages.remove(2, 100)
    assert messages.overdue(900) == (3, 400)
    messages.add([5], 300, 2_000)
    assert messages.overdue(900) == (3, 400)


class Unsearched(dict[tuple[str, str], dict[int, PopQueue]]):
    """A table that nobody may go through."""

    def __iter__(self) -> Iterator[tuple[str, str]]:
        raise AssertionError

    def items(self) -> Any:
        raise AssertionError


def test_a_topic_and_a_group_are_forgotten_without_a_look_at_all_others() -> None:
    state = PopState()
    state._queues = Unsearched()
    for topic in "TUV":
        for group in "ghi":
            state.queue(topic, group, 0)
    undo = state.apply(Forgotten("T", "", 0))
    assert state.find("T", "g", 0) is None
    assert state.find("U", "g", 0) is not None
    undo()
    assert state.find("T", "g", 0) is not None
    state.apply(Forgotten("", "g", 0))
    assert [state.find(topic, "g", 0) for topic in "TUV"] == [None] * 3
    state.apply(Forgotten("U", "h", 0))
    assert state.find("U", "h", 0) is None
    assert state.find("U", "i", 0) is not None
    for topic in "TUV":
        state.apply(Forgotten(topic, "", 0))
    assert not state._of_topic
    assert not state._of_group
