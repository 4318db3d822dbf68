"""The lag of streaming queries: by queue, as totals like those of Spark's Kafka connector, and for logs and Prometheus.

A source in Python cannot add metrics to a query's progress. It can only report offsets: the end of a micro-batch
(``endOffset``), and the queues' ends when the micro-batch was planned (``latestOffset``).
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from cometmq.durable import replace_file
from cometmq.metrics.exposition import exposition, in_slices
from cometmq.metrics.family import Family, Kind, Sample
from cometmq.paths import local_path
from cometmq.spark.errors import OptionError
from cometmq.spark.records.queues import Offsets, Queue, marks_from_json, offsets_from_json
from cometmq.spark.security_options import server_options
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.options import parse_options

_BEHIND: Final = Family(
    "cometmq_spark_offsets_behind",
    Kind.GAUGE,
    "Messages of the queue that the query had not read at its last micro-batch.",
    ("query", "topic", "broker", "queue"),
)
_SPEED: Final = Family(
    "cometmq_spark_processed_rows_per_second",
    Kind.GAUGE,
    "Rows that the query handled a second in its last micro-batch.",
    ("query",),
)

ASSIGNED: Final = "assigned"
"""Key in a query's offset if the query reads only the queues in its option ``assign``."""


@dataclass(frozen=True, slots=True)
class QueueLag:
    """The lag of one queue."""

    queue: Queue
    reached: int
    """The offset after the last message that was read."""
    latest: int
    """The offset after the last message in the queue."""

    @property
    def behind(self) -> int:
        """Return the number of messages that have not been read yet."""
        return max(self.latest - self.reached, 0)


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a source's queues."""

    queues: tuple[QueueLag, ...]

    @property
    def messages(self) -> int:
        """Return the number of messages in all queues that have not been read yet."""
        return sum(of.behind for of in self.queues)

    @property
    def metrics(self) -> dict[str, float]:
        """Return totals over all queues. The first three have the same names as in Spark's Kafka connector."""
        behind = [of.behind for of in self.queues] or [0]
        return {
            "minOffsetsBehindLatest": min(behind),
            "maxOffsetsBehindLatest": max(behind),
            "avgOffsetsBehindLatest": sum(behind) / len(behind),
            "offsetsBehindLatest": sum(behind),
        }


def lag_between(reached: Mapping[Queue, int], latest: Mapping[Queue, int]) -> Lag:
    """Compare the offsets that were read with the queues' ends. A queue that is not in ``reached`` has not been read
    yet.
    """
    return Lag(tuple(QueueLag(queue, reached.get(queue, 0), latest[queue]) for queue in sorted(latest)))


def lag_of(source: Mapping[str, Any]) -> Lag:
    """Return the lag at the time when the last micro-batch was planned.

    :param source: an element of ``query.lastProgress["sources"]``; offsets may be JSON or text.
    :raises OptionError: ``source`` is not a source of format ``rocketmq``.
    """
    return lag_between(_offsets(source, "endOffset"), _offsets(source, "latestOffset"))


def lag_now(source: Mapping[str, Any], namesrv: str, access: Mapping[str, str] | None = None) -> Lag:
    """Return the lag behind the brokers' current offsets, which includes messages that arrived during a long
    micro-batch.

    :param source: see :func:`lag_of`.
    :param namesrv: nameservers, ``host:port`` separated by ``;``.
    :param access: credentials and TLS, as options of the source; missing options are read from the environment.
    :raises OptionError: ``source`` is not a source of format ``rocketmq``, or an option in ``access`` is invalid.
    :raises UnreachableError: a nameserver or broker does not answer.
    """
    reached = _offsets(source, "endOffset")
    if not reached:
        return Lag(())
    topics = ",".join(sorted({queue.topic for queue in reached}))
    cluster = Cluster(parse_options({**server_options(namesrv, access), "topic": topics}))
    bounds = cluster.bounds(cluster.queues())
    if _offset(source, "endOffset").get(ASSIGNED):
        bounds = {queue: held for queue, held in bounds.items() if queue in reached}
    anew = cluster.changed_queues(marks_from_json(_offset(source, "endOffset").get("marks", {})))
    reached = {queue: offset for queue, offset in reached.items() if queue not in anew}
    unread = {queue: held.first for queue, held in bounds.items()}
    return lag_between(unread | reached, {queue: held.end for queue, held in bounds.items()})


def _offset(source: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = source.get(name)
    try:
        offset = (json.loads(value) if isinstance(value, str) else value) or {}
    except ValueError:
        offset = None
    if not isinstance(offset, dict):
        raise OptionError(f"{name} is not an offset of format rocketmq: {value!r}")
    return offset


def _offsets(source: Mapping[str, Any], name: str) -> Offsets:
    return offsets_from_json(_offset(source, name).get("queues", {}))


log = logging.getLogger("cometmq.spark")


@dataclass(frozen=True, slots=True)
class QueryLag:
    """A query's last progress."""

    name: str
    """The query's name, or its id if it has no name."""
    batch_id: int
    input_rows_per_second: float
    processed_rows_per_second: float
    lag: Lag
    """Total lag of all of the query's ``rocketmq`` sources."""


class LagListener(StreamingQueryListener):
    """Records and logs the lag of queries: ``spark.streams.addListener(LagListener())``.

    For each progress event, the listener logs one line to the logger ``cometmq.spark`` at level INFO. Queries that do
    not read RocketMQ are ignored.
    """

    def __init__(self, prometheus: str | Path | None = None) -> None:
        """Create a listener.

        :param prometheus: file for the result of :meth:`prometheus`, which is replaced at each progress event. The
            textfile collector in Prometheus' node exporter can read it; the name must end in ``.prom``.
        """
        self._file = None if prometheus is None else local_path(prometheus)
        self._queries: dict[str, QueryLag] = {}
        self._lock = threading.Lock()

    @property
    def queries(self) -> tuple[QueryLag, ...]:
        """Return the running queries, sorted by name."""
        with self._lock:
            return tuple(sorted(self._queries.values(), key=lambda of: of.name))

    def prometheus(self) -> str:
        """Return each query's lag by queue and its speed in Prometheus' text format."""
        return b"".join(exposition(in_slices(self._samples()), {})).decode()

    def _samples(self) -> Iterator[Sample]:
        for of in self.queries:
            for lag in of.lag.queues:
                queue = lag.queue
                yield _BEHIND, (of.name, queue.topic, queue.broker, str(queue.queue_id)), lag.behind
            yield _SPEED, (of.name,), of.processed_rows_per_second

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 (Spark's names here and below)
        """Do nothing. The listener interface requires this method."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Store, log and write the lag after a micro-batch."""
        progress = event.progress
        found = []
        for source in progress.sources:
            try:
                found.append(lag_of({"endOffset": source.endOffset, "latestOffset": source.latestOffset}))
            except OptionError:  # a source of another format
                continue
        queues = tuple(queue for lag in found for queue in lag.queues)
        if not queues:
            return
        of = QueryLag(
            progress.name or str(progress.id),
            progress.batchId,
            progress.inputRowsPerSecond,
            progress.processedRowsPerSecond,
            Lag(queues),
        )
        with self._lock:
            self._queries[str(progress.runId)] = of
        log.info(
            "query %s, micro-batch %d: %d messages behind in %d queues, at most %d; %.0f messages/s",
            *(of.name, of.batch_id, of.lag.messages, len(queues)),
            *(of.lag.metrics["maxOffsetsBehindLatest"], of.processed_rows_per_second),
        )
        self._write()

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Do nothing. The listener interface requires this method."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Forget a query that has ended."""
        with self._lock:
            known = self._queries.pop(str(event.runId), None)
        if known is not None:
            self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        try:
            replace_file(self._file, self.prometheus().encode())
        except OSError as error:
            log.warning("the lag cannot be written to %s: %s", self._file, error.strerror)
