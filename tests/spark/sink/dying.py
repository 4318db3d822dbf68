"""Processes of Spark that die in a micro-batch, once; and a driver program for those that die as a whole.

python -m tests.spark.sink.dying NAMESRV TOPIC GUARANTEE PLACE AFTER   runs the stream of files in PLACE/in into the
topic, and dies when AFTER rows of a batch were handed on.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


class DieOnce:
    """For ``mapInArrow``: passes rows on; after ``after`` rows of one batch something dies, the first time.

    ``how``: ``error`` raises, ``worker`` kills this Python worker, ``workers`` kills all of them, the sink's too,
    ``driver`` kills the driver: ``processes``, its Python and its JVM.
    """

    def __init__(self, marker: Path, how: str, after: int = 600, processes: tuple[int, ...] = ()) -> None:
        self.marker = str(marker)
        self.how = how
        self.after = after
        self.processes = processes

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch.slice(0, self.after)
            if batch.num_rows >= self.after and not os.path.exists(self.marker):
                Path(self.marker).touch()
                self._die()
            yield batch.slice(self.after)

    def _die(self) -> None:
        daemon = os.getppid()
        if self.how == "error":
            raise RuntimeError("a task that fails on purpose")
        if self.how == "driver":
            for pid in self.processes:
                os.kill(pid, signal.SIGKILL)
        if self.how == "workers":
            for pid in [int(name) for name in os.listdir("/proc") if name.isdecimal()]:
                if pid != os.getpid() and _parent(pid) == daemon:
                    os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


def file_stream(spark: Any, place: Path, die: DieOnce | None) -> Any:
    """Lines of files as column ``body``, one file a micro-batch, in one partition."""
    frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(place / "in"))
    frame = frame.withColumnRenamed("value", "body")
    return frame if die is None else frame.mapInArrow(die, "body string")


def run_stream(spark: Any, namesrv: str, topic: str, place: Path, die: DieOnce | None, **options: Any) -> Any:
    """Run until all files are sent."""
    query = (
        file_stream(spark, place, die)
        .writeStream.format("rocketmq")
        .option("namesrvAddr", namesrv)
        .option("topic", topic)
        .options(**options)
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return query


def main(namesrv: str, topic: str, guarantee: str, directory: str, after: str) -> None:
    """One driver's life."""
    from cometmq.spark.session.environment import local_session

    place = Path(directory)
    spark = local_session("local[2]", "dying")
    jvm = getattr(spark.sparkContext._gateway, "proc", None)  # an attached driver has none of its own
    processes = (os.getpid(),) if jvm is None else (os.getpid(), jvm.pid)
    die = DieOnce(place / "died", "driver", int(after), processes)
    run_stream(spark, namesrv, topic, place, die, deliveryGuarantee=guarantee)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
