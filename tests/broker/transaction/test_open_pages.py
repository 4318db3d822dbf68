"""The open half messages in pages, compared with one dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cometmq.broker.transaction.open_pages import OpenPages, Pages, Transaction

PAGE: Final = 4_096


def transaction(first: int, begun_ms: int) -> Transaction:
    """A transaction of which only these values matter."""
    return Transaction(first, begun_ms, begun_ms, None, 0, "group")


class PagesMachine(RuleBasedStateMachine):
    """Adds, records and removes half messages, many at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = OpenPages()
        self.model: dict[int, Transaction | None] = {}
        self.end = PAGE - 5

    @rule(count=st.integers(1, 3 * PAGE))
    def add(self, count: int) -> None:
        new = range(self.end, self.end + count)
        self.pages.add(new)
        self.model.update(dict.fromkeys(new))
        self.end += count

    @rule(begun_ms=st.integers(0, 9))
    def add_recorded(self, begun_ms: int) -> None:
        noted = transaction(self.end, begun_ms)
        self.pages.record(self.end, noted)
        self.model[self.end] = noted
        self.end += 1

    @rule(data=st.data(), step=st.sampled_from((1, 7, 500)), begun_ms=st.integers(0, 9))
    def record(self, data: st.DataObject, step: int, begun_ms: int) -> None:
        start = data.draw(st.integers(0, self.end))
        for offset in [offset for offset in self.model if offset >= start][::step]:
            noted = transaction(offset, begun_ms + offset % 3)
            self.pages.record(offset, noted)
            self.model[offset] = noted

    @rule(data=st.data(), step=st.sampled_from((1, 2, 7)))
    def remove(self, data: st.DataObject, step: int) -> None:
        start, stop = data.draw(st.integers(0, self.end)), data.draw(st.integers(0, self.end))
        for offset in range(start, stop, step):
            assert self.pages.pop(offset) == self.model.pop(offset, None)

    @invariant()
    def equals_the_dictionary(self) -> None:
        assert len(self.pages) == len(self.model)
        assert list(self.pages.offsets()) == list(self.model)
        assert self.pages.last() == next(reversed(self.model), None)
        middle = self.end // 2
        assert list(self.pages.offsets(middle)) == [offset for offset in self.model if offset >= middle]
        unrecorded = [offset for offset, noted in self.model.items() if noted is None]
        assert self.pages.first_unrecorded() == (unrecorded[0] if unrecorded else None)
        begun = [noted.begun_ms for noted in self.model.values() if noted is not None]
        oldest = self.pages.oldest_recorded()
        assert (oldest.begun_ms if oldest else None) == min(begun, default=None)
        assert all(self.pages.get(offset) is self.model[offset] for offset in list(self.model)[:3])
        assert self.end not in self.pages


TestPages = PagesMachine.TestCase


def test_a_page_shrinks_when_most_of_it_is_removed() -> None:
    pages: Pages[int] = Pages()
    pages.update({offset: offset for offset in range(PAGE)})
    large = pages.pages[0].__sizeof__()
    for offset in range(PAGE - 100):
        assert pages.pop(offset) == offset
    assert pages.pages[0].__sizeof__() < large / 8
    assert list(pages.offsets()) == list(range(PAGE - 100, PAGE))


class NotGoneThrough(dict[int, Any]):
    """A page that nobody may go through."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError

    def items(self) -> Any:
        raise AssertionError

    values = items


def test_the_oldest_of_many_is_found_in_one_page() -> None:
    pages = OpenPages()
    for offset in range(3 * PAGE):
        pages.record(offset, transaction(offset, offset))
    for number in range(3):
        assert pages.pop(number * PAGE) is not None
    for number in (1, 2):
        pages._pages[number] = NotGoneThrough(pages._pages[number])
    oldest = pages.oldest_recorded()
    assert oldest is not None
    assert oldest.first_offset == 1
