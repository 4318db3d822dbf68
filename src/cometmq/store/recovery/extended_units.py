"""Replaces Apache's extended units (``enableConsumeQueueExt``), whose tags code is an address in ``consumequeue_ext``.

An address, at or below −2^31 − 1 (``ConsumeQueueExt.isExtAddr``), is neither a tags code nor a due time. Both can be
computed from the record, so the files of the extension are not needed: each queue file with addresses is rewritten as a
whole and replaced. Apache's brokers read the result with and without the extension. ``consumequeue_ext`` is not
changed.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.disk import Disk
from cometmq.store.log.commit_log import CommitLog, store_error
from cometmq.store.log.mapped_file import file_name
from cometmq.store.log.record_scan import record_at
from cometmq.store.queue.consume_queue import UNIT_DTYPE, ConsumeQueue
from cometmq.store.queue.consume_queue_table import ConsumeQueueTable
from cometmq.store.recovery.load import Findings

MAX_EXTENSION_ADDRESS: Final = -(2**31) - 1
"""``ConsumeQueueExt.MAX_ADDR``: Java's hash codes and all times are larger."""


def replace_addresses(queues: ConsumeQueueTable, log: CommitLog, disk: Disk, findings: Findings) -> None:
    """Replace each ``consumequeue_ext`` address in the queue files with the tags code or due time of its message.

    :raises StoreError: a queue file cannot be written.
    """
    count = 0
    for by_id in queues.by_topic.values():
        for queue in by_id.values():
            for start in list(queue.files):
                count += _replace_in_file(queue, start, log, disk)
    if count:
        findings.add(
            f"consumequeue: {count} units that contained addresses in consumequeue_ext were rewritten with tags codes"
        )


def _replace_in_file(queue: ConsumeQueue, start: int, log: CommitLog, disk: Disk) -> int:
    used = min(queue.committed * CQ_UNIT_BYTES - start, queue.file_size) // CQ_UNIT_BYTES
    units = np.fromfile(queue.directory / file_name(start), UNIT_DTYPE, max(used, 0))
    found = np.flatnonzero(units["tags"] <= MAX_EXTENSION_ADDRESS)
    replaced = 0
    for at in found.tolist():
        record = record_at(log, int(units["offset"][at]))
        if record is not None and record.size == units["size"][at]:
            units["tags"][at] = queue.tags_code_of(record)
            replaced += 1
    if replaced:
        try:
            queue.replace_file(disk, start, units.tobytes().ljust(queue.file_size, b"\0"))
        except OSError as error:
            raise store_error(error, f"the queue files of {queue.topic}") from error
    return replaced
