"""Request latency by request and response code (``rocketmq_rpc_latency``), counted once per event loop round.

Answers are sent at the end of a round, so a request that is answered in the round in which it arrived took as long as
the round. The clock is read only for answers that waited for a message, a flush or a slave.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from cometmq.clock import Clock
from cometmq.limits import MAX_RPC_SERIES
from cometmq.metrics.family import Family, Histogram, Kind, Sample
from cometmq.remoting.codes import RequestCode, ResponseCode

RPC_LATENCY: Final = Family(
    "rocketmq_rpc_latency_milliseconds",
    Kind.HISTOGRAM,
    "Time from the arrival of a request to its response.",
    ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
    (1, 3, 5, 7, 10, 100, 1000, 2000, 3000),
)
TURNS: Final = Family(
    "cometmq_turn_seconds",
    Kind.HISTOGRAM,
    "Duration of event loop rounds that handled requests.",
    (),
    (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1),
)
_BOUNDS_S: Final = tuple(sorted({*TURNS.bounds, *(bound / 1000 for bound in RPC_LATENCY.bounds)}))
"""The bounds of both histograms; the duration of a round and its responses' latency fall in the same bucket."""
_OTHER: Final = -1
"""The label for all unknown codes, because clients could otherwise create any number of labels."""
_SUCCESSES: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.QUERY_NOT_FOUND,
    }
)


class RpcLatency:
    """The request latencies of one server."""

    def __init__(self, clock: Clock) -> None:
        self._now: Final = clock.monotonic
        self._round: dict[tuple[int, int, bool], int] = {}
        self._seen: dict[tuple[int, int, bool], Histogram] = {}
        self._rounds: Final = Histogram(_BOUNDS_S)
        self.began = clock.monotonic()
        """The start of the current or last round, in monotonic seconds."""

    def begin_round(self) -> None:
        """Record the start of a round."""
        self.began = self._now()

    def answered(
        self, request_code: int, response_code: int, arrived: float, times: int = 1, *, polling: bool = False
    ) -> None:
        """Count responses.

        :param arrived: the value of ``began`` in the round in which the requests arrived.
        """
        if arrived == self.began and not polling:
            key = (request_code, response_code, False)
            self._round[key] = self._round.get(key, 0) + times
        else:
            waited_s = self._now() - arrived
            self._histogram((request_code, response_code, polling)).observe(waited_s, times)

    def end_round(self) -> None:
        """Record the duration of the round as the latency of its responses."""
        seconds = self._now() - self.began
        place = bisect_left(_BOUNDS_S, seconds)
        rounds = self._rounds
        rounds.counts[place] += 1
        rounds.sum += seconds
        current = self._round
        if current:
            for key, times in current.items():
                found = self._seen.get(key) or self._histogram(key)
                found.counts[place] += times
                found.sum += seconds * times
            current.clear()

    def _histogram(self, key: tuple[int, int, bool]) -> Histogram:
        found = self._seen.get(key)
        if found is None:
            if len(self._seen) >= MAX_RPC_SERIES:
                key = (_OTHER, _OTHER, key[2])
            found = self._seen.setdefault(key, Histogram(_BOUNDS_S))
        return found

    def samples(self) -> Iterator[Sample]:
        """Return all histograms."""
        yield TURNS, (), _folded(self._rounds, TURNS.bounds, 1)
        for (request_code, response_code, polling), found in self._seen.items():
            result = "success" if response_code in _SUCCESSES else "process_request_failed"
            names = (_name(RequestCode, request_code), _name(ResponseCode, response_code))
            labels = ("remoting", *names, str(polling).lower(), result)
            yield RPC_LATENCY, labels, _folded(found, RPC_LATENCY.bounds, 1000)


def _folded(counted: Histogram, bounds: Sequence[float], factor: int) -> Histogram:
    """Convert a histogram in seconds into one that has fewer bounds and whose unit is ``1 / factor`` seconds."""
    found = Histogram(bounds)
    for bound, count in zip((*_BOUNDS_S, math.inf), counted.counts, strict=True):
        found.counts[bisect_left(bounds, round(bound * factor, 6))] += count
    found.sum = counted.sum * factor
    return found


def _name(codes: type[RequestCode] | type[ResponseCode], code: int) -> str:
    """Return a code's name in lower case, as Apache writes it."""
    try:
        return codes(code).name.lower()
    except ValueError:
        return "unknown"
