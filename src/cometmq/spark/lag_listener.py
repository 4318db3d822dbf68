"""A listener that keeps the lag of all streaming queries of a session that read RocketMQ: for logs and Prometheus."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from cometmq.durable import replace_file
from cometmq.spark.errors import OptionError
from cometmq.spark.lag import Lag, lag_of

log = logging.getLogger("cometmq.spark")


@dataclass(frozen=True, slots=True)
class QueryLag:
    """The last progress of a query."""

    name: str
    """The query's name, else its id."""
    batch_id: int
    input_rows_per_second: float
    processed_rows_per_second: float
    lag: Lag
    """Of all its sources of format ``rocketmq``."""


class LagListener(StreamingQueryListener):
    """Keeps, logs and writes the lag of queries: ``spark.streams.addListener(LagListener())``.

    Each progress is one line of the logger ``cometmq.spark``, level INFO. Queries that read no RocketMQ do not count.
    """

    def __init__(self, prometheus: str | Path | None = None) -> None:
        """Make it.

        :param prometheus: a file for :meth:`prometheus`, written with each progress and replaced as a whole: what the
            textfile collector of Prometheus' node exporter reads (its name must end in ``.prom`` for that).
        """
        self._file = None if prometheus is None else Path(prometheus)
        self._queries: dict[str, QueryLag] = {}
        self._lock = threading.Lock()

    @property
    def queries(self) -> tuple[QueryLag, ...]:
        """The queries that run, in the order of their names."""
        with self._lock:
            return tuple(sorted(self._queries.values(), key=lambda of: of.name))

    def prometheus(self) -> str:
        """The lag by queue and the speed of each query, in the text format of Prometheus."""
        lines = _HEAD_LAG.copy()
        speeds = _HEAD_SPEED.copy()
        for of in self.queries:
            query = f'query="{_escaped(of.name)}"'
            for queue in of.lag.queues:
                topic, broker = _escaped(queue.queue.topic), _escaped(queue.queue.broker)
                place = f'topic="{topic}",broker="{broker}",queue="{queue.queue.queue_id}"'
                lines.append(f"cometmq_spark_offsets_behind{{{query},{place}}} {queue.behind}")
            speeds.append(f"cometmq_spark_processed_rows_per_second{{{query}}} {of.processed_rows_per_second:.3f}")
        return "\n".join((*lines, *speeds, ""))

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 (Spark's names here and below)
        """Nothing to tell yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Take note of a micro-batch."""
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
        """Nothing has changed."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Forget the query."""
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


_HEAD_LAG = [
    "# HELP cometmq_spark_offsets_behind Messages of the queue that the query had not read at its last micro-batch.",
    "# TYPE cometmq_spark_offsets_behind gauge",
]
_HEAD_SPEED = [
    "# HELP cometmq_spark_processed_rows_per_second Rows that the query handled a second in its last micro-batch.",
    "# TYPE cometmq_spark_processed_rows_per_second gauge",
]


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
