"""Messages with any delay that only CometMQ's timer log has any more, as rows of the source.

A message that waits longer than the log is kept stands in ``comet/timer`` alone (:mod:`cometmq.store.timer_log`).
Each day's files are read by one Spark task, hour by hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.checksum import crc32
from cometmq.message.hosts import encode_host
from cometmq.message.names import TIMER_TOPIC
from cometmq.message.properties import TIMER_OUT_MS
from cometmq.message.record import encode_record
from cometmq.spark.columns import BY_NAME, arrow_schema
from cometmq.spark.decode import Records, decode
from cometmq.spark.environment import tasks_at_a_time
from cometmq.store.disk import Disk
from cometmq.store.open_files import OpenFiles
from cometmq.store.timer_day import DAY_MS, TimerDay, day_number_of
from cometmq.store.timer_log import FOREVER_MS
from cometmq.store.timer_position import Delivered, TimerPosition
from cometmq.store.timer_unit import Units

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_WINDOW_MS: Final = 3_600_000
"""Messages due within so long are looked at together, 56 bytes each …"""
_BLOCK_BYTES: Final = 8 * 1024 * 1024
"""… and so many bytes of their records are decoded together; one may be larger."""
_NOBODY: Final = encode_host("0.0.0.0", 0)


def has_timer_files(store: Path) -> bool:
    """Whether any message ever waited in this store for a time of its own."""
    return (store / "comet" / "timer").is_dir()


def read_timer_files(
    spark: SparkSession, store: Path, broker: str, position: TimerPosition, columns: Sequence[str]
) -> DataFrame:
    """The messages that the timer log holds and that were not delivered when ``position`` was saved.

    Their queue offset is the one they have in ``rmq_sys_wheel_timer``. One whose record is damaged has no other
    properties than when it is due.
    """
    days = sorted(
        {number for path in (store / "comet" / "timer").iterdir() if (number := day_number_of(path)) is not None}
    )
    directory = str(store.absolute() / "comet" / "timer")

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("day").to_pylist():
                yield from _read_day(Path(directory), number, broker, position, columns)

    ddl = ", ".join(f"{name} {BY_NAME[name].type}" for name in columns)
    frame = spark.createDataFrame([(number,) for number in days], "day int")
    return frame.repartition(max(1, min(len(days), tasks_at_a_time(spark)))).mapInArrow(read, ddl)


def _read_day(
    directory: Path, number: int, broker: str, position: TimerPosition, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    day = TimerDay(directory, number, Disk(), OpenFiles(1))
    day.recover(position.days.get(number))
    day.lost = [(of.days[number], of.serial, of.added) for of in position.lost if number in of.days]
    if not day.count:
        return
    delivered = Delivered(position, {})
    schema = arrow_schema(columns)
    with day.data_path.open("rb") as data:
        for low_ms in range(day.start_ms, day.start_ms + DAY_MS, _WINDOW_MS):
            units = day.units(low_ms, low_ms + _WINDOW_MS, FOREVER_MS)
            for records in _records(data, delivered.left(units)):
                yield from decode(records, schema, broker_name=broker)


def _records(data: Any, units: Units) -> Iterator[Records]:
    gathered: list[bytes] = []
    size = 0
    for unit in units:
        data.seek(int(unit["at"]))
        record = data.read(int(unit["size"]))
        if crc32(record) != unit["crc"]:
            record = _damaged(int(unit["serial"]), int(unit["due"]))
        gathered.append(record)
        size += len(record)
        if size >= _BLOCK_BYTES:
            yield Records(b"".join(gathered))
            gathered, size = [], 0
    if gathered:
        yield Records(b"".join(gathered))


def _damaged(serial: int, due_ms: int) -> bytes:
    return encode_record(
        topic=TIMER_TOPIC,
        queue_id=0,
        queue_offset=serial,
        physical_offset=0,
        body=b"",
        properties_text=f"{TIMER_OUT_MS}\x01{due_ms}",
        born_timestamp=0,
        born_host=_NOBODY,
        store_timestamp=0,
        store_host=_NOBODY,
    )
