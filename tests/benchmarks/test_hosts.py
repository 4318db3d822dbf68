"""The model behind docs/scale.md: it reads the measured figures, is sane, and the page shows what it says."""

from __future__ import annotations

import dataclasses

import pytest
from benchmarks.scale.hosts import DOCS, Rates, Site, need, page, record_bytes, rounded
from hypothesis import given
from hypothesis import strategies as st

RATES = Rates.read((DOCS / "performance.md").read_text(encoding="utf-8"))
PAGE = """
| case | Apache | CometMQ | ratio | CPU |
|---|---|---|---|---|
| send, 64 connections, 128 B | 38,464/s | 119,388/s | 3.10 × | |
| send, 64 connections, 1 KB, 2 keys, 4 properties, 3 topics | 1/s | 105,455/s | | |
| SYNC_FLUSH, 64 connections | 1/s | 61,103/s | | |
| drain by pulls of 32 | 1/s | 1,239,464/s | | |
| archive from a broker, tuned | 122 k rows/s | 287 k rows/s | 2.36 × | – | 9.9 s / 5.4 s | |

| case, an older table | Apache | CometMQ |
|---|---|---|
| send, 64 connections, 128 B | 27,140/s | 48,554/s |
"""


def test_figures_are_those_of_the_first_table_that_has_them() -> None:
    assert Rates.read(PAGE) == Rates(119_388, 105_455, 61_103, 1_239_464, 5.4)


def test_a_page_without_a_figure_is_refused() -> None:
    with pytest.raises(KeyError, match="drain by pulls of 32"):
        Rates.read(PAGE.replace("drain by", "drain with"))


def test_a_small_site_by_hand() -> None:
    """The rate of one broker at its limit, and the room on its disk."""
    rate = RATES.send_large_per_s
    site = Site(
        messages_per_day=rate * 86_400,
        peak_factor=1,
        utilisation=1,
        consumer_groups=0,
        retention_hours=24,
        replicas=1,
        disk_fill=1,
        keys=0,
    )
    found = need(site, RATES)
    assert found.brokers == 2, "one takes everything in, the archive takes its share"
    assert found.all_disk_bytes == pytest.approx(site.messages_per_day * (record_bytes(site) + 20))
    assert found.archive_cores == pytest.approx(rate * RATES.archive_cpu_s / 1e6, abs=1)


MORE = ("brokers", "hosts", "all_disk_bytes", "archive_cores", "archive_bytes_per_day")


@given(
    st.floats(1e6, 1e12),
    st.integers(1, 1 << 20),
    st.sampled_from(["messages_per_day", "body_bytes", "consumer_groups", "retention_hours", "peak_factor", "keys"]),
)
def test_who_wants_more_needs_no_less(messages: float, body: int, what: str) -> None:
    less = Site(messages_per_day=messages, body_bytes=body)
    before = need(less, RATES)
    after = need(dataclasses.replace(less, **{what: getattr(less, what) * 2}), RATES)
    assert all(getattr(after, name) >= getattr(before, name) for name in MORE)


def test_messages_that_wait_for_the_disk_need_more_brokers() -> None:
    lazy, strict = (need(Site(sync_flush=flag), RATES) for flag in (0, 1))
    assert strict.brokers > lazy.brokers


def test_the_scarcest_resource_decides() -> None:
    def bound_by(**more: float) -> str:
        return need(dataclasses.replace(Site(), **more), RATES).bound_by  # type: ignore[arg-type]

    assert bound_by() == "disk space"
    assert bound_by(retention_hours=1, broker_cores=1) == "CPU"
    assert bound_by(retention_hours=1, broker_cores=1000, host_disk_mb_s=10.0) == "disk writes"
    assert bound_by(retention_hours=1, broker_cores=1000, host_network_gbit=0.1) == "network"


@pytest.mark.parametrize(
    ("value", "text"), [(2, "2 B"), (9_999, "9,999 B"), (30e9, "30 GB"), (3.15e15, "3.15 PB"), (28_900, "28.9 kB")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert rounded(value, "B") == text


def test_the_page_is_up_to_date() -> None:
    """After a change of docs/performance.md or of the model: python -m benchmarks.scale.hosts --page."""
    text = (DOCS / "scale.md").read_text(encoding="utf-8")
    assert page(text, RATES) == text
