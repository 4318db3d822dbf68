"""Who gives the mark of its last copy gets the names that changed since, or hears that it must copy all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cometmq.broker.tables.changed_names
from cometmq.broker.tables.changed_names import ChangedNames

SLAVES = 3
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("change"), st.sampled_from("abcdefgh")),
        st.tuples(st.just("copy"), st.integers(0, SLAVES - 1)),
        st.tuples(st.just("forget"), st.none()),
    ),
    max_size=60,
)


@given(steps=STEPS, most_names=st.integers(1, 8), most_parts=st.integers(1, 5))
def test_every_slave_has_the_table_after_each_copy(
    steps: list[tuple[str, str | int | None]], most_names: int, most_parts: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cometmq.broker.tables.changed_names, "MAX_CHANGED_NAMES", most_names)
        patched.setattr(cometmq.broker.tables.changed_names, "MAX_CHANGED_PARTS", most_parts)
        changes = ChangedNames()
        table: dict[str, int] = {}
        marks = [""] * SLAVES
        copies: list[dict[str, int]] = [{} for _ in range(SLAVES)]
        for step, value in steps:
            if step == "change":
                table[str(value)] = table.get(str(value), 0) + 1
                changes.note(str(value))
            elif step == "forget":
                changes.forget()
            else:
                slave = int(value or 0)
                marks[slave], names = changes.since(marks[slave])
                copies[slave].update(table if names is None else {name: table[name] for name in names})
                assert copies[slave] == table


def test_one_change_is_one_name_and_none_is_none() -> None:
    changes = ChangedNames()
    changes.note("before anybody asked")
    mark, names = changes.since("")
    assert names is None
    mark, names = changes.since(mark)
    assert names == set()
    changes.note("a")
    changes.note("a")
    other, _ = changes.since("")
    mark, names = changes.since(mark)
    assert names == {"a"}
    assert changes.since(other)[1] == set()


@pytest.mark.parametrize("mark", ["", "x", "0.1", "x.1", ".", "é.²"])
def test_a_mark_of_another_process_means_nothing(mark: str) -> None:
    changes = ChangedNames()
    own, _ = changes.since("")
    assert changes.since(mark)[1] is None
    assert changes.since(own.partition(".")[0] + ".99")[1] is None
    assert ChangedNames().since(own)[1] is None


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cometmq.broker.tables.changed_names, "MAX_CHANGED_NAMES", 10)
    changes = ChangedNames()
    mark, _ = changes.since("")
    for number in range(1_000):
        changes.note(f"n{number}")
        changes.since("")
    assert sum(len(names) for _, names in changes._parts) <= 10
    assert changes.since(mark)[1] is None
