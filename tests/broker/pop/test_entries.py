"""Entries of the POP log: what is joined before it is stored, what is taken back, and what earlier versions wrote."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.pop.entries import (
    Acked,
    AnyEntry,
    Changed,
    OffsetSet,
    Popped,
    PoppedInOrder,
    Revived,
    decode_entries,
    joined,
)
from cometmq.broker.pop.state import PopState

SPLIT = OffsetSet("T", "G", 1, 5)


def acked(pop_time: int, *offsets: int, queue_id: int = 0) -> Acked:
    return Acked("T", "G", queue_id, pop_time, list(offsets))


def test_acknowledgements_of_one_pop_are_stored_as_one_entry() -> None:
    entries: list[AnyEntry] = [acked(1, 5), acked(2, 7), acked(1, 3, 4), acked(1, 9, queue_id=1), SPLIT, acked(1, 6)]
    first: list[AnyEntry] = [acked(1, 5, 3, 4), acked(2, 7), acked(1, 9, queue_id=1)]
    assert joined(entries) == [*first, SPLIT, acked(1, 6)]
    assert entries[0] == acked(1, 5)


ENTRIES = st.one_of(
    st.builds(acked, st.integers(1, 3), st.integers(0, 5), queue_id=st.integers(0, 1)),
    st.builds(Changed, st.just("T"), st.just("G"), st.integers(0, 1), *[st.integers(1, 3)] * 3, st.just(10)),
    st.builds(OffsetSet, st.just("T"), st.just("G"), st.integers(0, 1), st.integers(0, 5)),
    st.builds(
        Popped,
        *(st.just("T"), st.just("G"), st.integers(0, 1), st.integers(0, 3), st.just([1, 1]), st.integers(3, 6)),
        *(st.integers(1, 3), st.just(10)),
    ),
)


@given(st.lists(ENTRIES, max_size=12))
def test_joined_entries_lead_to_the_same_state(entries: list[AnyEntry]) -> None:
    states = [PopState(), PopState()]
    for state, stored in zip(states, (entries, joined(entries)), strict=True):
        for entry in stored:
            state.apply(entry)
    one, other = ([(queue.key, queue.next_offset, queue.invisible.dump()) for queue in state] for state in states)
    assert one == other


OFFSETS = st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True).map(sorted)
IN_ORDER = st.one_of(
    st.builds(
        PoppedInOrder,
        *(st.just("T"), st.just("G"), st.integers(0, 1), OFFSETS, st.lists(st.integers(-1, 3), min_size=4, max_size=4)),
        *(st.integers(5, 7), st.integers(1, 3), st.just(10), st.sampled_from(["", "one"]), st.booleans()),
    ),
    st.builds(
        Revived,
        *(st.just("T"), st.just("G"), st.integers(0, 1), st.integers(1, 3), st.integers(0, 5), st.just("D")),
        *(st.just(0), st.just(0), st.integers(-1, 5)),
    ),
    ENTRIES,
)


@given(st.lists(IN_ORDER, max_size=12), st.integers(0, 12))
def test_entries_that_are_not_stored_are_taken_back(entries: list[AnyEntry], stored: int) -> None:
    one, other = PopState(), PopState()
    undo = [one.apply(entry) for entry in entries][stored:]
    for entry in entries[:stored]:
        other.apply(entry)
    for take_back in reversed(undo):
        take_back()
    assert in_order(one) == in_order(other)


def in_order(state: PopState) -> list[object]:
    ordered = {queue.key: (queue.next_offset, queue.ordered) for queue in state if queue.ordered is not None}
    return [
        (key, next_offset, at.next_offset, at.messages, at.attempts, at.by_group)
        for key, (next_offset, at) in sorted(ordered.items())
    ]


def test_the_delivery_of_a_dead_letter_does_not_count_for_the_message_behind_it() -> None:
    state = PopState()
    state.apply(PoppedInOrder("T", "G", 0, [0, 1, 2], [3, 0, 0], 3, 1_000, 10, ""))
    state.apply(Revived("T", "G", 0, 1_000, 0, "D", 0, 0, 1))
    state.apply(Revived("T", "G", 0, 1_000, 0, "D", 0, 0, 2))
    ordered = state.queue("T", "G", 0).ordered
    assert ordered is not None
    assert [ordered.messages[offset].times for offset in (1, 2)] == [-1, 0], "the second entry is an old one"
    assert ordered.held(1, 1_000) is not None, "a late acknowledgement still holds"
    assert ordered.counts([1, 2], "", {1}) == [0, 0]


def test_entries_of_earlier_versions_have_neither_an_order_nor_a_message_behind() -> None:
    earlier = [[7, "T", "G", 0, [0], [0], 1, 1_000, 10, ""], [4, "T", "G", 0, 1_000, 0, "D", 5, 0]]
    popped, revived = decode_entries(msgspec.msgpack.encode(earlier))
    assert isinstance(popped, PoppedInOrder)
    assert isinstance(revived, Revived)
    assert (popped.by_group, revived.follower) == (False, -1)
