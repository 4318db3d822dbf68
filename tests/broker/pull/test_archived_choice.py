"""Filters of archived messages: limits of count and size, and of the time that they hold up the loop."""

from __future__ import annotations

import pytest
from tests.tier.archives import make_records

from cometmq.broker.pull.archived_choice import choose_records
from cometmq.broker.pull.filters import EVERYTHING, MessageFilter, parse_tags
from cometmq.clock import SYSTEM_CLOCK

RECORDS = [memoryview(record) for record in make_records(9)]


@pytest.mark.parametrize(
    ("expression", "most", "most_bytes", "chosen", "rest"),
    [
        ("*", 9, 1 << 20, list(range(9)), None),
        ("*", 4, 1 << 20, [0, 1, 2, 3], 4),
        ("*", 9, 1, [0], 1),
        ("tag-1", 9, 1 << 20, [1, 4, 7], None),
        ("tag-1", 2, 1 << 20, [1, 4], 7),
        ("other", 2, 1 << 20, [], None),
    ],
)
def test_the_choice_keeps_to_its_limits(
    expression: str, most: int, most_bytes: int, chosen: list[int], rest: int | None
) -> None:
    found, undecided = choose_records(RECORDS, parse_tags(expression), most, most_bytes)
    assert found == [RECORDS[number] for number in chosen]
    assert undecided is (None if rest is None else RECORDS[rest])


def test_a_slow_filter_ends_early_and_goes_on_at_the_next_record() -> None:
    def takes_long(_record: memoryview) -> bool:
        until = SYSTEM_CLOCK.monotonic() + 0.02
        while SYSTEM_CLOCK.monotonic() < until:
            pass
        return False

    assert choose_records(RECORDS, MessageFilter(predicate=takes_long), 9, 1 << 20) == ([], RECORDS[1])
    assert choose_records(RECORDS, EVERYTHING, 9, 1 << 20)[1] is None
