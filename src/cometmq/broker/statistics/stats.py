"""Statistics of a running broker, by topic and group and in total.

As in Apache's broker, there are *items* by name and key (``BrokerStatsManager``: TOPIC_PUT_NUMS of a topic,
GROUP_GET_NUMS of ``topic@group``, …) over the last minute, hour and day, and broker *totals* (``StoreStatsService``)
over 10, 60 and 600 seconds. Counting takes a few additions per write or pull; rates and averages are computed from
samples.
"""

from __future__ import annotations

import datetime
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from cometmq.broker.statistics.creation_times import CreationTimes
from cometmq.broker.statistics.stats_items import NOTHING, SAMPLE_SECONDS, StatsItem, StatsItems
from cometmq.broker.statistics.traffic import Traffic
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.loop import finish
from cometmq.message.names import RETRY_PREFIX
from cometmq.periodic import Periodic
from cometmq.remoting.admin_bodies import BrokerStatsData, BrokerStatsItem

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
SNDBCK_PUT_NUMS: Final = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"
TIMER_ENQUEUE_NUMS: Final = "TIMER_ENQUEUE_NUMS"
TIMER_DEQUEUE_NUMS: Final = "TIMER_DEQUEUE_NUMS"
_OF_THE_BROKER: Final = (BROKER_PUT_NUMS, BROKER_GET_NUMS, TIMER_ENQUEUE_NUMS, TIMER_DEQUEUE_NUMS)
"""Names of broker-wide statistics items, which are never dropped."""
_BYTES_OF: Final = {TOPIC_PUT_SIZE: TOPIC_PUT_NUMS, GROUP_GET_SIZE: GROUP_GET_NUMS}
"""Names of byte counts, each with the name of the matching message count."""

_TOTAL_SAMPLES: Final = 601

PUT_TIME_LABELS: Final = (
    "[<=0ms]",
    "[0~10ms]",
    "[10~50ms]",
    "[50~100ms]",
    "[100~200ms]",
    "[200~500ms]",
    "[500ms~1s]",
    "[1~2s]",
    "[2~3s]",
    "[3~4s]",
    "[4~5s]",
    "[5~10s]",
    "[10s~]",
)
_PUT_TIME_BOUNDS_MS: Final = (10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)


Counted = tuple[str, str]
"""A topic and a message type (:mod:`cometmq.broker.statistics.traffic`) for which stored messages are counted."""


class _Total:
    """Messages that were stored with one write, for one topic and type."""

    __slots__ = ("large", "messages", "size_bytes")

    def __init__(self) -> None:
        self.messages = self.size_bytes = 0
        self.large: list[int] = []


class Delivered(NamedTuple):
    """The messages from a topic that a group received."""

    topic: str
    group: str
    is_retry: bool
    """True for messages that were delivered again."""
    messages: int
    size_bytes: int


class BrokerStats:
    """All statistics of a broker; ``start`` begins sampling and ``stop`` ends it.

    :param do: runs work in slices.
    """

    def __init__(
        self,
        cluster: str,
        traffic: Traffic | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        do: Callable[[Generator[None, None, None]], None] = finish,
    ) -> None:
        self._clock = clock
        self._do = do
        self._ticking = Periodic("sampling statistics", 1.0, self._tick, clock=clock)
        self._items = StatsItems(_OF_THE_BROKER, self._forgotten)
        self._topic_put: dict[str, StatsItem] = {}
        self._group_get: dict[tuple[str, str], StatsItem] = {}
        self._retried: dict[tuple[str, str], tuple[int, int]] = {}
        """Messages and bytes from POP retry topics, by original topic and group; the other counts include them."""
        self._broker_put = self.item(BROKER_PUT_NUMS, cluster)
        self._broker_get = self.item(BROKER_GET_NUMS, cluster)
        self.boot_ms: Final = clock.now_ms()
        self.put_messages = 0
        self.put_bytes = 0
        self.put_failed = 0
        self.put_ms_max = 0
        self.get_s_max = 0.0
        self.get_found = 0
        self.get_missed = 0
        self.get_messages = 0
        self.put_times = [0] * len(PUT_TIME_LABELS)
        self.put_today_morning = self.put_yesterday_morning = 0
        self.get_today_morning = self.get_yesterday_morning = 0
        self._day = self._today()
        self._ticks = 0
        self.creations: Final = CreationTimes(clock)
        self.traffic: Final = traffic
        """Additional counters, if metrics are enabled."""
        self._samples: deque[tuple[int, int, int, int, int]] = deque(maxlen=_TOTAL_SAMPLES)

    # --- counting -----------------------------------------------------------------------------
    def stored(self, counts: Iterable[tuple[Counted, int, int, Sequence[int]]], took_ms: int) -> None:
        """Count the messages in a turn.

        :param counts: topic and type, messages, their bytes, and the sizes of those above
            :data:`~cometmq.broker.statistics.traffic.SMALL_BYTES`; a topic and type may occur several times.
        :param took_ms: time in milliseconds that the messages waited for the write.
        """
        totals: dict[Counted, _Total] = {}
        last, total = None, _Total()
        for counted, messages, size_bytes, large in counts:
            if counted is not last:
                last = counted
                total = totals.get(counted) or _Total()
                totals[counted] = total
            total.messages += messages
            total.size_bytes += size_bytes
            if large:
                total.large.extend(large)
        stored = 0
        for (topic, kind), total in totals.items():
            stored += total.messages
            self.put(topic, total.messages, total.size_bytes)
            if self.traffic is not None:
                self.traffic.stored(topic, kind, total.messages, total.size_bytes, total.large)
        self._count_put_time(took_ms, stored)

    def put(self, topic: str, messages: int, size_bytes: int) -> None:
        """Count messages stored in a topic; called once per topic and turn."""
        item = self._topic_put.get(topic)
        if item is None:
            item = self._topic_put[topic] = self.item(TOPIC_PUT_NUMS, topic)
        item.add(messages, size_bytes)
        self._broker_put.add(messages)
        self.put_messages += messages
        self.put_bytes += size_bytes

    def _count_put_time(self, milliseconds: int, messages: int) -> None:
        """Count the time that messages waited for their turn's write."""
        if milliseconds > self.put_ms_max:
            self.put_ms_max = milliseconds
        place = 1 + bisect_right(_PUT_TIME_BOUNDS_MS, milliseconds) if milliseconds > 0 else 0
        self.put_times[place] += messages

    def get(self, topic: str, group: str, messages: int, size_bytes: int) -> None:
        """Count a pull that returned messages."""
        item = self._group_get.get((topic, group))
        if item is None:
            item = self._group_get[topic, group] = self.item(GROUP_GET_NUMS, f"{topic}@{group}")
        item.add(messages, size_bytes)
        self._broker_get.add(messages)
        self.get_found += 1
        self.get_messages += messages

    def retried(self, topic: str, group: str, messages: int, size_bytes: int) -> None:
        """Count the messages in a pop that came from a retry topic."""
        before = self._retried.get((topic, group), (0, 0))
        self._retried[topic, group] = before[0] + messages, before[1] + size_bytes

    def taken(self) -> Iterator[Delivered]:
        """Yield the number of messages that each group has received from each topic."""
        for (topic, group), item in list(self._group_get.items()):
            retried, retried_bytes = self._retried.get((topic, group), (0, 0))
            yield Delivered(
                topic, group, topic.startswith(RETRY_PREFIX), item.value - retried, item.size - retried_bytes
            )
            if retried:
                yield Delivered(topic, group, True, retried, retried_bytes)

    def count_pull_miss(self) -> None:
        """Count a pull that returned no messages."""
        self.get_missed += 1

    def count_read_time(self, seconds: float) -> None:
        """Count the duration of a read from the store, which blocks the loop."""
        if seconds > self.get_s_max:
            self.get_s_max = seconds

    def send_back(self, topic: str, group: str) -> None:
        """Count a message that a group sent back."""
        self.item(SNDBCK_PUT_NUMS, f"{topic}@{group}").add(1)

    def item(self, name: str, key: str) -> StatsItem:
        """Return the counter for a name and key; create it if necessary."""
        return self._items.item(name, key)

    # --- forgetting ---------------------------------------------------------------------------
    def forget_topic(self, topic: str) -> None:
        """Drop a deleted topic's items (``BrokerStatsManager.onTopicDeleted``)."""
        self._do(self._items.forget_topic(topic))

    def forget_group(self, group: str) -> None:
        """Drop a deleted group's items (``BrokerStatsManager.onGroupDeleted``)."""
        self._do(self._items.forget_group(group))

    def _forgotten(self, name: str, key: str) -> None:
        """Stop using an item of this name and key, which was dropped."""
        if name == TOPIC_PUT_NUMS:
            self._topic_put.pop(key, None)
        elif name == GROUP_GET_NUMS:
            topic, _, group = key.partition("@")
            self._group_get.pop((topic, group), None)
            self._retried.pop((topic, group), None)

    # --- sampling -----------------------------------------------------------------------------
    def start(self) -> None:
        """Start sampling, once a second."""
        self._sample_totals()
        self._ticking.start()

    def stop(self) -> None:
        """Stop sampling."""
        self._ticking.close()

    def _tick(self) -> None:
        self._ticks += 1
        self._sample_totals()
        if self._ticks % SAMPLE_SECONDS == 0 and self._items.sample(self._clock.now_ms()):
            self._do(self._items.drop_idle())
        today = self._today()
        if today != self._day:
            self._day = today
            self.put_yesterday_morning, self.put_today_morning = self.put_today_morning, self.put_messages
            self.get_yesterday_morning, self.get_today_morning = self.get_today_morning, self.get_messages

    def _today(self) -> datetime.date:
        return datetime.datetime.fromtimestamp(self._clock.now_ms() / 1000).astimezone().date()

    def _sample_totals(self) -> None:
        self._samples.append(
            (self._clock.now_ms(), self.put_messages, self.get_found, self.get_missed, self.get_messages)
        )

    # --- answers ------------------------------------------------------------------------------
    def view(self, name: str, key: str) -> BrokerStatsData | None:
        """Return an item's values over the last minute, hour and day, or ``None`` if it has never been counted (request
        code 315).
        """
        found = self._items.get(_BYTES_OF.get(name, name), key)
        if found is None:
            return None
        minute, hour, day = (found.seen(window, in_bytes=name in _BYTES_OF) for window in range(3))
        return BrokerStatsData(stats_minute=minute, stats_hour=hour, stats_day=day)

    def per_minute(self, name: str, key: str) -> BrokerStatsItem:
        """Return an item's values over the last minute, which are zero if nothing was counted."""
        found = self._items.get(_BYTES_OF.get(name, name), key)
        return NOTHING if found is None else found.seen(0, in_bytes=name in _BYTES_OF)

    def _per_second(self, *columns: int) -> str:
        """Return the averages per second of some counters over 10, 60 and 600 s, or since the start."""
        newest = self._samples[-1]
        figures = []
        for seconds in (10, 60, 600):
            oldest = self._samples[max(0, len(self._samples) - 1 - seconds)]
            elapsed_ms = newest[0] - oldest[0]
            grown = sum(newest[column] - oldest[column] for column in columns)
            figures.append(str(grown * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0))
        return " ".join(figures)

    def runtime_info(self) -> dict[str, str]:
        """Return the totals under the keys used by GET_BROKER_RUNTIME_INFO."""
        uptime_s = (self._clock.now_ms() - self.boot_ms) // 1000
        days, rest = divmod(uptime_s, 86_400)
        hours, rest = divmod(rest, 3_600)
        minutes, seconds = divmod(rest, 60)
        puts = max(self.put_messages, 1)
        if not self._samples:
            self._sample_totals()
        return {
            "bootTimestamp": str(self.boot_ms),
            "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]",
            "putMessageEntireTimeMax": str(self.put_ms_max),
            "getMessageEntireTimeMax": str(round(self.get_s_max * 1000)),
            "putMessageTimesTotal": str(self.put_messages),
            "putMessageFailedTimes": str(self.put_failed),
            "putMessageSizeTotal": str(self.put_bytes),
            "putMessageAverageSize": str(self.put_bytes / puts),
            "putMessageDistributeTime": "".join(
                f"{label}:{count} " for label, count in zip(PUT_TIME_LABELS, self.put_times, strict=True)
            ),
            "putLatency99": f"{self._put_latency(0.99):.2f}",
            "putLatency999": f"{self._put_latency(0.999):.2f}",
            "putTps": self._per_second(1),
            "getFoundTps": self._per_second(2),
            "getMissTps": self._per_second(3),
            "getTotalTps": self._per_second(2, 3),
            "getTransferedTps": self._per_second(4),
            "getTransferredTps": self._per_second(4),  # as the tools of 5.x spell it
            "msgPutTotalYesterdayMorning": str(self.put_yesterday_morning),
            "msgPutTotalTodayMorning": str(self.put_today_morning),
            "msgPutTotalTodayNow": str(self.put_messages),
            "msgGetTotalYesterdayMorning": str(self.get_yesterday_morning),
            "msgGetTotalTodayMorning": str(self.get_today_morning),
            "msgGetTotalTodayNow": str(self.get_messages),
        }

    def _put_latency(self, share: float) -> float:
        """Return a time in milliseconds within which a ``share`` of the messages was written (an upper bound)."""
        wanted = sum(self.put_times) * share
        below = 0
        for count, bound in zip(self.put_times, (0, *_PUT_TIME_BOUNDS_MS, self.put_ms_max), strict=True):
            below += count
            if below >= wanted:
                return float(bound)
        return 0.0
