"""Statistics of a broker: what is counted, over which windows, and what is forgotten."""

from __future__ import annotations

from collections.abc import Generator
from random import Random

import pytest

import cometmq.broker.statistics.stats_items
from cometmq.broker.statistics.stats import PUT_TIME_LABELS, BrokerStats
from cometmq.broker.statistics.stats_items import StatsItem
from cometmq.broker.statistics.traffic import NORMAL
from cometmq.remoting.admin_bodies import BrokerStatsData, BrokerStatsItem
from cometmq.testing import VirtualClock


@pytest.fixture
def stats(clock: VirtualClock) -> BrokerStats:
    stats = BrokerStats("C", clock=clock)
    stats.start()
    return stats


def view(stats: BrokerStats, name: str, key: str) -> BrokerStatsData:
    found = stats.view(name, key)
    assert found is not None
    return found


def test_a_minute_is_seen_after_its_first_sample(stats: BrokerStats, clock: VirtualClock) -> None:
    stats.put("T", 6, 600)
    assert view(stats, "TOPIC_PUT_NUMS", "T").stats_minute == BrokerStatsItem(sum=0, tps=0.0, avgpt=0.0)
    clock.advance(10)
    assert view(stats, "TOPIC_PUT_NUMS", "T").stats_minute == BrokerStatsItem(sum=6, tps=0.6, avgpt=6.0)
    assert view(stats, "TOPIC_PUT_SIZE", "T").stats_minute.sum == 600
    assert view(stats, "BROKER_PUT_NUMS", "C").stats_minute.sum == 6


def test_the_minute_window_moves(stats: BrokerStats, clock: VirtualClock) -> None:
    for _ in range(12):
        stats.get("T", "G", 10, 1000)
        clock.advance(10)
    minute = view(stats, "GROUP_GET_NUMS", "T@G").stats_minute
    assert (minute.sum, minute.tps, minute.avgpt) == (60, 1.0, 10.0)
    assert stats.per_minute("GROUP_GET_NUMS", "T@G") == minute
    clock.advance(60)
    assert view(stats, "GROUP_GET_NUMS", "T@G").stats_minute.sum == 0


def test_hours_and_days_add_up(stats: BrokerStats, clock: VirtualClock) -> None:
    for _ in range(26):
        stats.put("T", 1, 1)
        clock.advance(3600)
    assert view(stats, "TOPIC_PUT_NUMS", "T").stats_day.sum == 24
    assert view(stats, "TOPIC_PUT_NUMS", "T").stats_hour.sum == 1


def test_nothing_counted_is_nothing_seen(stats: BrokerStats) -> None:
    assert stats.view("TOPIC_PUT_NUMS", "T") is None
    assert stats.view("NOPE", "T") is None
    assert stats.per_minute("TOPIC_PUT_NUMS", "T").sum == 0


def test_what_is_deleted_is_forgotten(stats: BrokerStats) -> None:
    stats.put("T", 1, 1)
    stats.get("T", "G", 1, 1)
    stats.get("U", "G", 1, 1)
    stats.send_back("U", "H")
    stats.forget_topic("T")
    assert stats.view("TOPIC_PUT_NUMS", "T") is None
    assert stats.view("GROUP_GET_NUMS", "T@G") is None
    assert stats.view("GROUP_GET_NUMS", "U@G") is not None
    stats.forget_group("G")
    assert stats.view("GROUP_GET_SIZE", "U@G") is None
    assert stats.view("SNDBCK_PUT_NUMS", "U@H") is not None
    stats.put("T", 1, 1)
    assert stats.view("TOPIC_PUT_NUMS", "T") is not None


def test_what_is_idle_for_a_day_is_forgotten_and_counts_again(stats: BrokerStats, clock: VirtualClock) -> None:
    stats.put("T", 1, 1)
    stats.get("T", "G", 1, 1)
    clock.advance(27 * 3600)
    assert stats.view("TOPIC_PUT_NUMS", "T") is None
    assert stats.view("GROUP_GET_NUMS", "T@G") is None
    assert stats.view("BROKER_PUT_NUMS", "C") is not None
    stats.put("T", 5, 5)
    clock.advance(10)
    assert view(stats, "TOPIC_PUT_NUMS", "T").stats_minute.sum == 5


def test_rates_of_the_broker(stats: BrokerStats, clock: VirtualClock) -> None:
    for _ in range(60):
        stats.put("T", 100, 10_000)
        stats.get("T", "G", 50, 5_000)
        stats.count_pull_miss()
        clock.advance(1)
    info = stats.runtime_info()
    assert info["putTps"] == "100.0 100.0 100.0"
    assert info["getFoundTps"] == info["getMissTps"] == "1.0 1.0 1.0"
    assert info["getTotalTps"] == "2.0 2.0 2.0"
    assert info["getTransferedTps"] == "50.0 50.0 50.0"
    assert info["putMessageAverageSize"] == "100.0"
    assert info["runtime"] == "[ 0 days, 0 hours, 1 minutes, 0 seconds ]"


def test_every_figure_is_a_number_from_the_first_moment(clock: VirtualClock) -> None:
    info = BrokerStats("C", clock=clock).runtime_info()
    for key in ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferedTps"):
        assert [float(part) for part in info[key].split(" ")] == [0.0, 0.0, 0.0]


def test_put_times_fall_into_their_classes(stats: BrokerStats) -> None:
    for milliseconds in (0, 1, 9, 10, 4999, 5000, 10_000):
        stats.stored([(("T", NORMAL), 1, 100, ())], milliseconds)
    counts = dict(part.rsplit(":", 1) for part in stats.runtime_info()["putMessageDistributeTime"].split())
    assert list(counts) == list(PUT_TIME_LABELS)
    assert {label for label, count in counts.items() if count != "0"} == {
        "[<=0ms]",
        "[0~10ms]",
        "[10~50ms]",
        "[4~5s]",
        "[5~10s]",
        "[10s~]",
    }
    assert counts["[0~10ms]"] == "2"
    assert stats.runtime_info()["putMessageEntireTimeMax"] == "10000"
    assert float(stats.runtime_info()["putLatency999"]) == 10_000


def test_the_day_begins_at_midnight(clock: VirtualClock, stats: BrokerStats) -> None:
    stats.put("T", 7, 7)
    clock.advance(86_400)
    stats.put("T", 5, 5)
    info = stats.runtime_info()
    assert (info["msgPutTotalTodayMorning"], info["msgPutTotalTodayNow"]) == ("7", "12")
    clock.advance(86_400)
    assert stats.runtime_info()["msgPutTotalYesterdayMorning"] == "7"


def test_sampling_stops(stats: BrokerStats, clock: VirtualClock) -> None:
    stats.put("T", 1, 1)
    stats.stop()
    clock.advance(60)
    assert view(stats, "TOPIC_PUT_NUMS", "T").stats_minute.sum == 0


def test_a_sample_touches_no_item_but_those_that_are_counted_after_it(
    stats: BrokerStats, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 20,000 topics a sample of all items took 60 ms, every 10 s."""
    touched: list[StatsItem] = []
    plain = StatsItem._record_windows

    def noted(item: StatsItem) -> None:
        touched.append(item)
        plain(item)

    monkeypatch.setattr(StatsItem, "_record_windows", noted)
    for number in range(50):
        stats.get(f"T{number}", "G", 6, 60)
    clock.advance(60)
    assert not touched
    stats.get("T7", "G", 1, 1)
    stats.get("T7", "G", 1, 1)
    assert len(touched) == 2  # with that of the broker
    assert all(stats.per_minute("GROUP_GET_NUMS", f"T{number}@G").sum == 6 for number in range(50))
    clock.advance(10)
    assert (stats.per_minute("GROUP_GET_NUMS", "T7@G").sum, stats.per_minute("GROUP_GET_NUMS", "T8@G").sum) == (2, 0)
    assert stats.per_minute("GROUP_GET_SIZE", "T7@G").sum == 2


def test_what_is_seen_is_what_was_counted_between_the_samples(stats: BrokerStats, clock: VirtualClock) -> None:
    random = Random(7)
    counted: list[int] = []  # in each 10 s
    for _ in range(400):
        numbers = random.choices(range(1, 100), k=random.choice((0, 0, 0, 1, 3)))
        for number in numbers:
            stats.put("T", number, 2 * number)
        counted.append(sum(numbers))
        clock.advance(10)
        if any(counted):
            minute = view(stats, "TOPIC_PUT_NUMS", "T").stats_minute
            assert minute.sum == sum(counted[-6:])
            assert view(stats, "TOPIC_PUT_SIZE", "T").stats_minute.sum == 2 * minute.sum
            assert view(stats, "TOPIC_PUT_NUMS", "T").stats_hour.sum == sum(counted[: len(counted) // 60 * 60][-360:])


def test_idle_items_are_looked_for_in_slices(
    stats: BrokerStats, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.statistics.stats_items, "STATS_ITEMS_PER_SLICE", 7)
    for number in range(50):
        stats.get(f"T{number}", "G", 6, 1)
    assert len(list(stats._items.drop_idle())) == 50 // 7
    clock.advance(26 * 3600)
    assert all(stats.view("GROUP_GET_NUMS", f"T{number}@G") is None for number in range(50))


def test_a_topic_of_many_groups_is_forgotten_in_slices(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """200,000 items took 0.4 s in one step; others may drop some of them in between."""
    monkeypatch.setattr(cometmq.broker.statistics.stats_items, "STATS_ITEMS_PER_SLICE", 10)
    works: list[Generator[None, None, None]] = []
    stats = BrokerStats("c", clock=clock, do=works.append)
    for number in range(20):
        stats.get("T", f"G{number}", 1, 1)
        stats.get("U", f"G{number}", 1, 1)
    stats.put("T", 1, 1)
    stats.forget_topic("T")
    stats.forget_group("G19")
    of_topic, of_group = works
    assert stats.view("TOPIC_PUT_NUMS", "T") is None
    next(of_topic)
    assert stats.view("GROUP_GET_NUMS", "T@G18") is not None
    assert list(of_group) == [None]
    assert len(list(of_topic)) == 9
    assert stats.view("GROUP_GET_NUMS", "T@G18") is None
    assert stats.view("GROUP_GET_NUMS", "U@G18") is not None
    assert stats.view("GROUP_GET_NUMS", "U@G19") is None
    stats.get("T", "G18", 4, 4)
    assert stats.view("GROUP_GET_NUMS", "T@G18") is not None


def test_a_topic_is_forgotten_without_a_look_at_all_items(stats: BrokerStats, clock: VirtualClock) -> None:
    """Among 200,000 pairs each deletion took 60 ms."""
    for number in range(30):
        stats.get("T", f"G{number}", 1, 1)
        stats.get("U", f"G{number}", 1, 1)
        stats.send_back("T", f"G{number}")
    stats.put("T", 1, 1)
    stats.forget_topic("T")
    stats.forget_group("G3")
    clock.advance(10)
    assert stats.view("TOPIC_PUT_NUMS", "T") is None
    assert stats.view("SNDBCK_PUT_NUMS", "T@G5") is None
    assert stats.view("GROUP_GET_NUMS", "U@G3") is None
    assert stats.view("GROUP_GET_NUMS", "U@G4") is not None
    stats.put("T", 2, 2)
    stats.get("T", "G3", 4, 4)
    clock.advance(10)
    assert stats.per_minute("TOPIC_PUT_NUMS", "T").sum == 2
    assert stats.per_minute("GROUP_GET_NUMS", "T@G3").sum == 4
    for group in range(30):
        stats.forget_group(f"G{group}")
    for topic in ("T", "U"):
        stats.forget_topic(topic)
    assert not stats._topic_put
    assert not stats._group_get
    assert not stats._items._of_topic
    assert not stats._items._of_group
