"""A timer log to open, and entries for it."""

from __future__ import annotations

from pathlib import Path

from tests.store.conftest import HOST

from cometmq.message.record import encode_record
from cometmq.store.disk import Disk
from cometmq.store.timer.day import DAY_MS
from cometmq.store.timer.log import FOREVER_MS, TimerLog
from cometmq.store.timer.position import LogEnd
from cometmq.store.timer.unit import TimerEntry, entry_of, recall_key

T0 = 20_000 * DAY_MS


def entry(serial: int, due_ms: int, *, topic: str = "Later", unique: str = "", recalls: str = "") -> TimerEntry:
    text = f"REAL_TOPIC\x01{topic}\x02REAL_QID\x010\x02TIMER_OUT_MS\x01{due_ms}"
    if unique:
        text += f"\x02UNIQ_KEY\x01{unique}"
    if recalls:
        text += f"\x02TIMER_DEL_UNIQKEY\x01{recall_key(topic, recalls)}"
    record = encode_record(
        topic="rmq_sys_wheel_timer",
        queue_id=0,
        queue_offset=serial,
        physical_offset=serial * 1000,
        body=b"body %d" % serial,
        properties_text=text,
        born_timestamp=1,
        born_host=HOST,
        store_timestamp=2,
        store_host=HOST,
    )
    return entry_of(record, serial, serial * 1000)


WHOLE = LogEnd(1 << 40, 1 << 40, 1 << 40)


def opened(root: Path, disk: Disk | None = None, end: LogEnd = WHOLE) -> TimerLog:
    log = TimerLog(root / "timer", disk or Disk())
    log.open(end)
    return log


def serials(log: TimerLog, low: int = 0, high: int = FOREVER_MS, before: int = 1 << 40) -> list[int]:
    return [int(serial) for serial in log.load(low, high, before, 1 << 20).units["serial"]]
