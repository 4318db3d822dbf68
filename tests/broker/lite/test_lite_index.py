"""The index of lite topics in the compiled core does the same as that in Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.broker.lite.index import LiteIndex
from cometmq.broker.lite.name_table import NO_NAME
from cometmq.core import CORE

NAMES = [*(f"lite-{number}" for number in range(6)), "x", "y" * 64, "ü", "two words"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "send", "take back", "stored", "remove", "put back", "drop", "save"]),
        st.integers(0, len(NAMES) - 1),
        st.integers(0, 9),
    ),
    max_size=60,
)


class Both:
    """The two indexes; each step is done to both, and everything that can be asked is compared."""

    def __init__(self) -> None:
        self.sides: list[Any] = [LiteIndex("P"), CORE.LiteIndex("P")]
        self.log_offset = 0
        self.removed: list[tuple[Any, Any]] = []

    def all(self, name: str, *args: Any) -> list[Any]:
        found = [getattr(side, name)(*args) for side in self.sides]
        assert found[0] == found[1], (name, args)
        return found

    def step(self, kind: str, name: str, value: int) -> None:
        (number, _) = self.all("find", name)
        if kind == "send":
            if number == NO_NAME:
                (number, _) = self.all("add", name, value)
            self.log_offset += 100
            self.all("append", number, self.log_offset)
        elif kind == "take back":
            if self.sides[0].unstored:
                self.all("take_back")
        elif kind == "stored":
            self.all("stored")
        elif kind == "remove":
            if number != NO_NAME and not self.sides[0].unstored:
                python, core = self.all("remove", number)
                self.removed.append((python, core))
        elif kind == "put back":
            if self.removed and not self.sides[0].unstored:
                python, _ = self.removed.pop()
                self.all("put_back", python)
        elif kind == "drop":
            if not self.sides[0].unstored:
                self.all("drop_before", max(self.log_offset - value * 100, 0))
        elif not self.sides[0].unstored:
            self.save()
        self.compare()

    def save(self) -> None:
        """Load both from what the other one has saved, as a start does."""
        first, end = self.sides[0].base, self.sides[0].end
        (names, _), (begins, _) = self.all("dump_names", 0, 99), self.all("dump_begins", 0, 99)
        (entries, _) = self.all("dump_entries", first, end)
        self.sides = [LiteIndex("P"), CORE.LiteIndex("P")]
        self.removed.clear()
        for side in self.sides:
            side.load(names, begins, *entries)

    def compare(self) -> None:
        for name in ("count", "size", "base", "end", "unsaved", "unstored", "parent"):
            assert getattr(self.sides[0], name) == getattr(self.sides[1], name), name
        first, end = self.sides[0].base, self.sides[0].end
        for number in range(self.sides[0].size):
            for asked in ("name", "raw_name", "extent", "next_offset", "first", "last"):
                self.all(asked, number)
            begin, after = self.sides[0].extent(number)
            for offset in range(begin - 1, after + 1):
                (entry, _) = self.all("entry", number, offset)
                for near_offset in range(begin, after):
                    self.all("entry", number, offset, self.sides[0].entry(number, near_offset), near_offset)
                if entry >= 0:
                    self.all("offset_at", number, entry)
        for entry in range(first, end):
            for asked in ("log_offset", "owner", "following"):
                self.all(asked, entry)
        for begin in (first, first + 1, end):
            self.all("owners", begin, end)
            self.all("idle", begin)


@pytest.mark.skipif(CORE is None, reason="the compiled core is not installed (make test builds it)")
@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_both_indexes_are_equal(steps: list[tuple[str, int, int]]) -> None:
    both = Both()
    for kind, name, value in steps:
        both.step(kind, NAMES[name], value)


def index_classes() -> list[Any]:
    return [LiteIndex] if CORE is None else [LiteIndex, CORE.LiteIndex]


@pytest.mark.parametrize("made", index_classes())
def test_many_names_are_found_after_removals_and_a_load(made: Any) -> None:
    index = made("P")
    for number in range(5_000):
        index.add(f"session-{number}")
    for number in range(0, 5_000, 3):
        index.remove(index.find(f"session-{number}"))
    for number in range(5_000, 6_000):
        index.append(index.add(f"session-{number}", 7), number)
    index.stored()
    again = made("P")
    again.load(index.dump_names(0, index.size), index.dump_begins(0, index.size), *index.dump_entries(0, index.end))
    for found in (index, again):
        assert found.count == 5_000 - 1_667 + 1_000
        assert [found.find(f"session-{number}") == NO_NAME for number in range(6)] == [True, False, False] * 2
        assert found.extent(found.find("session-5500")) == (7, 8)
        assert found.find("half \udc80") == NO_NAME


@pytest.mark.parametrize("made", index_classes())
@pytest.mark.parametrize(
    "parts",
    [
        ((b"", b"\1", b""), b"", b"", b""),
        ((b"abcdefgh", b"\x09", bytes(4)), bytes(8), b"", b""),
        ((b"abcdefgh", b"\1", b"\xff" * 4), bytes(8), b"", b""),
        ((b"abcdefgh", b"\1", bytes(4)), b"", b"", b""),
        ((b"abcdefgh", b"\1", bytes(4)), bytes(8), bytes(8), b""),
        ((b"abcdefgh", b"\1", bytes(4)), bytes(8), bytes(8), b"\1\0\0\0"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(made: Any, parts: Any) -> None:
    with pytest.raises(ValueError, match="belong together"):
        made("P").load(*parts)
