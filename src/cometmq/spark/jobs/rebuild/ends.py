"""Preserves the ends of queues whose last messages are no longer in the log, so that their offsets are not reused.

The messages may be missing because retention removed them, a record was damaged, or the log was lost. The old files
still contain the units of these messages. The rebuilt queue keeps these units after the units from the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cometmq.spark.jobs.rebuild.tasks import Layout, QueueKey, Units
from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.disk import Disk
from cometmq.store.queue.consume_queue import BLANK_SIZE, BLANK_UNIT, UNIT_DTYPE, ConsumeQueue, unit_before
from cometmq.store.queue.consume_queue_table import ConsumeQueueTable
from cometmq.store.recovery.file_sizes import numbered_files, queue_directories_of
from cometmq.store.recovery.known_topics import KnownTopics
from cometmq.store.recovery.queue_units import last_plausible_unit, read_units


def old_queues(root: Path, layout: Layout, known: KnownTopics, log_end: int) -> Iterator[tuple[QueueKey, ConsumeQueue]]:
    """Yield the queues of known topics that contain messages. Each queue ends after its last valid unit."""
    table = ConsumeQueueTable(root / "consumequeue", layout.queue_file_bytes, layout.delays_ms)
    for topic, queue_id, directory in queue_directories_of(root):
        if topic not in known:
            continue
        files = [file.start for file in numbered_files(directory) if file.fits(layout.queue_file_bytes)]
        queue = table.make(topic, queue_id)
        queue.open_at(files, 0)
        end, _ = last_plausible_unit(queue, log_end)
        queue.open_at(files, end)
        end = known.end_of(queue, end)
        if end > queue.first_stored:
            yield queue.key, queue


def keep_end(old: ConsumeQueue, made: Path, made_end: int, log_begin: int) -> None:
    """Copy the units in ``old`` starting at ``made_end`` to the queue below ``made``, and flush them.

    If a queue has no messages in the log, copy the units in its last file. Units without a record become blank.
    """
    end = old.max_offset()
    if end <= made_end:
        return
    units = _units_of(old, made_end or end - 1 - (end - 1) % old.file_units)
    units[units["size"] <= 0] = np.frombuffer(BLANK_UNIT, UNIT_DTYPE)
    content = units.tobytes()
    if units["size"][-1] == BLANK_SIZE:
        content = content[:-CQ_UNIT_BYTES] + unit_before(log_begin)
    new = ConsumeQueueTable(made, old.file_size, ()).make(*old.key)
    new.open_at([file.start for file in numbered_files(new.directory)], made_end)
    disk = Disk()
    new.write_units(disk, end - len(units), content)
    new.sync(disk, new.unsynced)


def _units_of(queue: ConsumeQueue, begin: int) -> Units:
    """Return the units from ``begin`` to the end of a queue. Missing files are read as zeros."""
    end = queue.max_offset()
    found = np.zeros(end - begin, UNIT_DTYPE)
    for start in queue.files:
        first = start // CQ_UNIT_BYTES
        if first + queue.file_units > begin and first < end:
            units = read_units(queue, start)
            low, high = max(first, begin), min(first + len(units), end)
            found[low - begin : high - begin] = units[low - first : high - first]
    return found
