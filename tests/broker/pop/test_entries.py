"""Entries of the POP log: what is joined before it is stored."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.pop.entries import Acked, AnyEntry, Changed, OffsetSet, Popped, joined
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
