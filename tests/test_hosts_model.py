"""The model behind docs/scale.md: it reads the measured figures, is sane, and the page shows what it says."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from benchmarks.curves import plot
from benchmarks.figures import PAGE, FigureError, measured, number, tables
from benchmarks.hosts import Figures, Need, Site, need, record_bytes, rounded

ROOT = Path(__file__).resolve().parent.parent
FIGURES = Figures.read(PAGE.read_text(encoding="utf-8"))
TABLE = """
| case | Apache | CometMQ |
|---|---|---|
| send | 28,377/s | 54,961/s |
| read | – | 467 k rows/s |

| case | CPU |
|---|---|
| archive | 3.1 s / 6.6 s |
"""


@pytest.mark.parametrize(
    ("row", "column", "expected"),
    [("send", "CometMQ", 54_961), ("send", "Apache", 28_377), ("read", "CometMQ", 467_000), ("archive", "CPU", 6.6)],
)
def test_figures_are_read_from_tables(row: str, column: str, expected: float) -> None:
    found = measured(tables(TABLE), row, column)
    assert (found.value, found.measured) == (expected, True)


def test_a_figure_that_the_page_does_not_have_is_assumed_or_named() -> None:
    assert not measured(tables(TABLE), "none", assumed=3.0).measured
    with pytest.raises(FigureError, match="no row 'none' with a column 'CometMQ'"):
        measured(tables(TABLE), "none")
    with pytest.raises(FigureError, match="holds no number"):
        number("–")


def test_a_small_site_by_hand() -> None:
    """The rate of one broker at its limit, and the room on its disk."""
    rate = FIGURES.send_large_per_s.value
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
    found = need(site, FIGURES)
    assert found.brokers == 2, "one takes everything in, the archive takes its share"
    assert found.disk_bytes == pytest.approx(site.messages_per_day * (record_bytes(site) + 20))
    assert found.archive_cores == pytest.approx(rate * FIGURES.archive_cpu_s.value / 1e6, abs=1)


MORE = ("brokers", "disk_bytes", "archive_cores", "stream_cores", "sink_cores", "lake_bytes_per_day", "queues")


@given(
    st.floats(1e6, 1e12),
    st.integers(1, 1 << 20),
    st.sampled_from(["messages_per_day", "body_bytes", "consumer_groups", "retention_hours", "peak_factor", "keys"]),
)
def test_who_wants_more_needs_no_less(messages: float, body: int, what: str) -> None:
    less = Site(messages_per_day=messages, body_bytes=body)
    before = need(less, FIGURES)
    after = need(dataclasses.replace(less, **{what: getattr(less, what) * 2}), FIGURES)
    assert all(getattr(after, name) >= getattr(before, name) for name in MORE)
    assert after.hosts >= before.hosts


def test_what_is_written_at_once_costs_flushes() -> None:
    lazy, strict = (need(Site(sync_flush=flag), FIGURES) for flag in (False, True))
    assert strict.brokers > lazy.brokers
    assert strict.disk_iops > lazy.disk_iops


def test_the_scarcest_resource_decides() -> None:
    def bound_by(**more: float) -> str:
        return need(dataclasses.replace(Site(), **more), FIGURES).bound_by  # type: ignore[arg-type]

    assert bound_by() == "disk space"
    assert bound_by(retention_hours=1) == "CPU"
    assert bound_by(retention_hours=1, broker_cores=1000, host_disk_mb_s=10.0) == "disk writes"
    assert bound_by(retention_hours=1, broker_cores=1000, host_network_gbit=0.1) == "network"


def test_files_are_larger_when_commits_are_rarer() -> None:
    def at(minutes: float) -> Need:
        return need(Site(commit_minutes=minutes), FIGURES)

    assert at(1).file_mb < at(15).file_mb
    assert at(1).files_per_day > at(15).files_per_day
    assert at(15).files_per_day * at(15).file_mb * 1e6 == pytest.approx(at(15).lake_bytes_per_day)


@pytest.mark.parametrize(
    ("value", "text"), [(2, "2 B"), (9_999, "9,999 B"), (30e9, "30 GB"), (3.15e15, "3.15 PB"), (28_900, "28.9 kB")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert rounded(value, "B") == text


def test_the_picture_is_sound_and_has_every_curve() -> None:
    drawn = ElementTree.fromstring(plot([1e9, 1e10], {"a & b": [1.0, 100.0], "c": [3.0, 3.0]}, "messages"))
    texts = [element.text for element in drawn.iter() if element.tag.endswith("text")]
    assert {"a & b", "c", "messages", "1 G", "10 G", "100"} <= set(texts)
    assert sum(element.tag.endswith("polyline") for element in drawn.iter()) == 2


def test_the_page_is_up_to_date() -> None:
    """After a change of docs/performance.md or of the model: scripts/hosts_page."""
    check = [sys.executable, str(ROOT / "scripts" / "hosts_page"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr


def test_the_command_takes_other_numbers() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "hosts.py"), "--messages-per-day", "1e9", "--sync-flush"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "messages a second at the peak            28.9 k" in done.stdout
