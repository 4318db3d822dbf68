"""Brokers' progress in delivering delayed messages, read from the brokers or from a store's files.

A broker keeps, for each delay level, the offset of the next message in its queue of ``SCHEDULE_TOPIC_XXXX``
(``delayOffset.json``), and for messages with arbitrary delays, the time up to which all of them are delivered. CometMQ
stores that time in ``comet/timer/position.json``, RocketMQ 5 in ``config/timercheck``; RocketMQ 4 has no timer.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from cometmq.client.admin import Admin
from cometmq.client.errors import BrokerError
from cometmq.config_file import ConfigFile
from cometmq.fastjson import FastjsonError
from cometmq.remoting.admin_bodies import TopicTimerMetrics
from cometmq.remoting.codes import ResponseCode
from cometmq.spark.errors import OptionError
from cometmq.spark.jobs.message_source import MessageSource
from cometmq.spark.store.place import StorePlace
from cometmq.store.config import StoreConfig
from cometmq.store.timer.position import TimerPosition, read_position

_OFFSET_KEY: Final = re.compile(r"scheduleMessageOffset_([0-9]{1,4})")
_DELAY_OFFSETS: Final = "config/delayOffset.json"
_POSITION: Final = "comet/timer/position.json"
_CHECK: Final = "config/timercheck"
_TIMER_CHECK: Final = struct.Struct(">q")
"""Layout of the field that stores the time up to which RocketMQ 5 has read its timer wheel. More fields follow it."""


@dataclass(frozen=True, slots=True)
class BrokerProgress:
    """The progress of one broker. Unknown values are ``None`` or missing."""

    broker: str
    delays_ms: tuple[int, ...]
    """Delay of each level in ms, starting with level 1."""
    reached: dict[int, int] = field(default_factory=dict)
    """Offset of the next message to be delivered, by level."""
    has_timer: bool | None = None
    """False if the broker does not support arbitrary delays."""
    timer_until_ms: int | None = None
    """Time up to which all due messages with arbitrary delays are delivered."""
    timer_behind_s: int = 0
    """Number of seconds by which the timer is behind, according to the broker."""
    timer_counts: dict[str, TopicTimerMetrics] = field(default_factory=dict)
    """The broker's own count of waiting messages with arbitrary delays, by topic."""

    def counting(self, is_chosen: Callable[[str], bool]) -> BrokerProgress:
        """Return the same progress, limited to the counts of the given topics."""
        counts = {topic: count for topic, count in self.timer_counts.items() if is_chosen(topic)}
        return replace(self, timer_counts=counts)


def delays_of(text: str) -> tuple[int, ...]:
    """Parse a ``messageDelayLevel`` into delays in ms.

    :raises OptionError: the text is malformed.
    """
    try:
        return StoreConfig(message_delay_level=text).delays_ms
    except (ValueError, KeyError, IndexError) as error:
        raise OptionError(
            f"invalid delay levels {text!r}", next_step="write them as in broker.conf: 1s 5s 10s 30s 1m …"
        ) from error


def progress_of(source: MessageSource, delay_levels: str | None) -> list[BrokerProgress]:
    """Return the progress of each broker in a source.

    :param delay_levels: the brokers' ``messageDelayLevel``; by default the value that the brokers report, otherwise
        RocketMQ's default.
    :raises OptionError: ``delay_levels`` is malformed.
    :raises CometMQError: nameserver or brokers do not answer.
    """
    delays = None if delay_levels is None else delays_of(delay_levels)
    if source.namesrv is not None:
        return asyncio.run(_ask(source, source.namesrv, delays))
    delays = delays or StoreConfig().delays_ms
    if source.archive is not None:
        return [BrokerProgress(name, delays) for name in sorted({of.broker for of in source.open_archive().queues()})]
    store = source.open_store()
    position = timer_position(store)
    return [
        BrokerProgress(
            source.broker_name,
            delays,
            _saved_offsets(store, delays),
            timer_until_ms=None if position is None else position.until_ms,
        )
    ]


# Brokers --------------------------------------------------------------------------------------------


async def _ask(source: MessageSource, namesrv: str, delays_ms: tuple[int, ...] | None) -> list[BrokerProgress]:
    async with Admin(namesrv, security=source.security()) as admin:
        masters = await admin.masters()
        return list(await asyncio.gather(*(_ask_one(admin, name, at, delays_ms) for name, at in masters.items())))


async def _ask_one(admin: Admin, broker: str, address: str, delays_ms: tuple[int, ...] | None) -> BrokerProgress:
    if delays_ms is None:
        delays_ms = delays_of((await admin.broker_config(address))["messageDelayLevel"])
    reached = _from_the_start(delays_ms)
    runtime = await admin.runtime_info(address)
    for key, value in runtime.items():
        if (match := _OFFSET_KEY.fullmatch(key)) is not None:
            reached[int(match[1])] = int(value.partition(",")[0])
    try:
        until_ms, counts = await admin.timer_check_point(address), await admin.waiting(address)
    except BrokerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        return BrokerProgress(broker, delays_ms, reached, has_timer=False)
    return BrokerProgress(
        broker,
        delays_ms,
        reached,
        has_timer=True,
        timer_until_ms=until_ms,
        timer_behind_s=int(runtime.get("timerReadBehind", "0")),
        timer_counts=counts,
    )


def _from_the_start(delays_ms: tuple[int, ...]) -> dict[int, int]:
    """Return offset 0 for all levels, since brokers do not list levels that have had no deliveries."""
    return dict.fromkeys(range(1, len(delays_ms) + 1), 0)


# A store's files ------------------------------------------------------------------------------------


def _saved_offsets(store: StorePlace, delays_ms: tuple[int, ...]) -> dict[int, int]:
    try:
        with store.at_hand(_DELAY_OFFSETS, f"{_DELAY_OFFSETS}.bak") as root:
            table = ConfigFile(root / _DELAY_OFFSETS).load()
        saved = {int(level): int(offset) for level, offset in (table or {})["offsetTable"].items()}
        return _from_the_start(delays_ms) | saved
    except (FastjsonError, AttributeError, KeyError, TypeError, ValueError):
        return {}


def timer_position(store: StorePlace) -> TimerPosition | None:
    """Return how far the delivery of a store's messages with arbitrary delays has progressed, or None if no file
    records it.
    """
    with store.at_hand(_POSITION, _CHECK) as root:
        position = read_position(root / _POSITION)
        if position is None:
            try:
                content = (root / _CHECK).read_bytes()
            except OSError:
                return None
            if len(content) >= _TIMER_CHECK.size and (read_ms := _TIMER_CHECK.unpack_from(content)[0]) > 0:
                return TimerPosition(until_ms=read_ms - 1)
        return position
