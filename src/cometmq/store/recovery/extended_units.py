"""Units of Apache's with ``enableConsumeQueueExt``: their tags code is an address of a unit under ``consumequeue_ext``.

Such an address, at or below −2^31 − 1 (``ConsumeQueueExt.isExtAddr``), is no tags code and no due time. These
follow from the record, so that the files of the extension are not needed: each queue file that has
addresses is rewritten, whole, and takes the place of the one before. Apache's brokers, with or without the
extension, read the codes as well. ``consumequeue_ext`` stays as it is.
"""

from __future__ import annotations

from typing import Final

import numpy as np

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
    """Put tags codes and due times in the place of all addresses.

    :raises StoreError: a queue file cannot be written.
    """
    count = 0
    for by_id in queues.by_topic.values():
        for queue in by_id.values():
            for start in list(queue.files):
                count += _replace_in_file(queue, start, log, disk)
    if count:
        findings.add(f"consumequeue: {count} units had addresses of consumequeue_ext; they have their tags codes now")


def _replace_in_file(queue: ConsumeQueue, start: int, log: CommitLog, disk: Disk) -> int:
    units = np.fromfile(queue.directory / file_name(start), UNIT_DTYPE)
    found = np.flatnonzero(units["tags"] <= MAX_EXTENSION_ADDRESS)
    replaced = 0
    for at in found.tolist():
        record = record_at(log, int(units["offset"][at]))
        if record is not None and record.size == units["size"][at]:
            units["tags"][at] = queue.tags_code_of(record)
            replaced += 1
    if replaced:
        try:
            queue.replace_file(disk, start, units.tobytes())
        except OSError as error:
            raise store_error(error, f"the queue files of {queue.topic}") from error
    return replaced
