"""Deliveries of delayed messages: how late they are, what they cost, and whether one is lost or delivered twice."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Final

import numpy as np
from benchmarks.rounds import Figures
from benchmarks.scale.bench import Bench
from benchmarks.scale.wire import RefusedError, Wire, pull, request

from cometmq.message.properties import TIMER_OUT_MS
from cometmq.message.record import iter_records
from cometmq.remoting.codes import RequestCode

READ_MESSAGES: Final = 1_024
LOOK_S: Final = 0.5
CHECK_S: Final = 60.0


def deliveries(bench: Bench, topic: str, first_ms: int) -> Figures:
    """Measure how late messages are delivered while nothing else happens, and their processor time.

    Return nothing if none is due.

    :param first_ms: when the first message is due. Deliveries count from a second later on, once none is late.
    """
    time.sleep(max(first_ms / 1000 + 1 - time.time(), 0))
    with bench.wire() as wire:
        if not _within(CHECK_S, lambda: _info(wire)["timerReadBehind"] == "0"):
            return {}
        begin, before = _end(wire, topic), bench.processor_time()
        time.sleep(bench.times.steady)
        end, used_s = _end(wire, topic), bench.processor_time() - before
        if end == begin:
            return {}
        late = sorted(_late(wire, topic, begin, end))
    return {
        "deliveries/s": (end - begin) / bench.times.steady,
        "deliveries are late, median, ms": float(np.median(late)),
        "deliveries are late, 99 %, ms": float(np.quantile(late, 0.99)),
        "processor time per delivery, µs": used_s / (end - begin) * 1e6,
    }


def check_none_is_lost(bench: Bench, topic: str, count: int) -> None:
    """Check that each of ``count`` messages is either waiting or delivered.

    :raises AssertionError: a message is lost or delivered twice.
    """
    seen: list[tuple[int, int]] = []

    def is_whole() -> bool:
        with bench.wire() as wire:
            seen.append((int(_info(wire)["timerCongestNum"]), _end(wire, topic)))
        return sum(seen[-1]) == count

    if not _within(CHECK_S, is_whole):
        raise AssertionError(f"{count} messages, but {seen[-1][0]} wait and {seen[-1][1]} are delivered")


def _within(seconds: float, is_so: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not (found := is_so()) and time.monotonic() < end:
        time.sleep(LOOK_S)
    return found


def _info(wire: Wire) -> dict[str, str]:
    _, body = wire.fetch(request(RequestCode.GET_BROKER_RUNTIME_INFO))
    table: dict[str, str] = json.loads(body)["table"]
    return table


def _end(wire: Wire, topic: str) -> int:
    fields, _ = wire.fetch(request(RequestCode.GET_MAX_OFFSET, topic=topic, queueId="0"))
    return int(fields["offset"])


def _late(wire: Wire, topic: str, begin: int, end: int) -> list[int]:
    """Milliseconds from the due time of each message to its delivery."""
    late: list[int] = []
    while begin < end:
        try:
            fields, body = wire.fetch(pull(topic, begin, READ_MESSAGES))
        except RefusedError as refused:
            raise RuntimeError(f"messages {begin} to {end} cannot be read") from refused
        late += [one.store_timestamp - int(one.properties[TIMER_OUT_MS]) for one in iter_records(body)]
        begin = int(fields["nextBeginOffset"])
    return late
