"""Selectors over stored records, one by one and together: records a second of one core, three terms, 10 % match."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from functools import partial

import numpy as np

from cometmq.broker.limits import MAX_FILTER_WORK
from cometmq.filter import parse_selector
from cometmq.message.hosts import encode_host
from cometmq.message.record import encode_record

RECORDS = 1_000
ROUNDS = 20
SELECTORS = {
    "text first": "region = 'eu' AND amount > 100 AND kind IN ('buy', 'sell')",
    "numbers first": "amount >= 900 AND amount < 2000.5 AND region <> 'us'",
    "one number": "amount >= 900",
    "OR": "region = 'xx' OR amount >= 900 OR kind = 'none'",
}


def record(number: int, physical_offset: int) -> memoryview:
    """A message of 1 KB with nine properties."""
    host = encode_host("10.0.0.1", 10911)
    region = "eu" if number % 10 == 0 else "asia"
    properties = {
        "MSG_REGION": "DefaultRegion",
        "UNIQ_KEY": f"7F00000100002A139C6B{number:012X}",
        "CLUSTER": "DefaultCluster",
        "WAIT": "true",
        "TAGS": "TagA",
        "KEYS": f"order-{number}",
        "region": region,
        "amount": str(950 if number % 10 == 0 else number % 900),
        "kind": "buy",
    }
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    return memoryview(
        encode_record(
            topic="Orders",
            queue_id=0,
            queue_offset=number,
            physical_offset=physical_offset,
            body=b"x" * 1_024,
            properties_text=text,
            born_timestamp=1,
            born_host=host,
            store_timestamp=2,
            store_host=host,
        )
    )


def main() -> None:
    """Print one line for each selector."""
    records: list[memoryview] = []
    for number in range(RECORDS):
        records.append(record(number, sum(map(len, records))))
    view = memoryview(b"".join(records) + bytes(1_024))
    sizes = np.array([len(one) for one in records], np.int64)
    at = sizes.cumsum() - sizes
    for name, text in SELECTORS.items():
        selector = parse_selector(text)
        found = sum(map(selector.matches_record, records))
        together = partial(selector.matches_block, view, 0, at, sizes, len("Orders"), MAX_FILTER_WORK)
        assert together().wanted.sum() == found
        single_s = min(timeit.repeat(partial(_scan, selector.matches_record, records), number=1, repeat=ROUNDS))
        together_s = min(timeit.repeat(together, number=1, repeat=ROUNDS))
        print(
            f"{name:14} {RECORDS / single_s:>12,.0f} records/s one by one {RECORDS / together_s:>12,.0f} together"
            f"   {100 * found / RECORDS:.0f} % match   {text}"
        )


def _scan(matches: Callable[[memoryview], bool], records: list[memoryview]) -> None:
    for one in records:
        matches(one)


if __name__ == "__main__":
    main()
