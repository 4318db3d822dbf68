"""Units of Apache's with ``enableConsumeQueueExt``: their tags code is an address of a unit under ``consumequeue_ext``.

Such an address, at or below −2^31 − 1 (``ConsumeQueueExt.isExtAddr``), is no tags code and no due time. What belongs
in its place follows from the record, so that the files of the extension are not needed: each queue file that has
addresses is written anew, whole, and takes the place of the one before. Apache's brokers, with or without the
extension, read the codes as well. ``consumequeue_ext`` stays as it is.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.store.commit_log import CommitLog, store_error
from cometmq.store.disk import Disk
from cometmq.store.load import Findings
from cometmq.store.record_scan import LogRecord, read_log_record
from cometmq.store.topic_queue import UNIT_DTYPE, TopicQueue
from cometmq.store.topic_queues import TopicQueues

MAX_EXTENSION_ADDRESS: Final = -(2**31) - 1
"""``ConsumeQueueExt.MAX_ADDR``: Java's hash codes are larger, and so is every time."""

_UNKNOWN_LEVEL_DELAY_MS: Final = 1_000
"""Of a level that is not in the table, as Apache has it."""


def replace_addresses(queues: TopicQueues, log: CommitLog, disk: Disk, findings: Findings) -> None:
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


def _replace_in_file(queue: TopicQueue, start: int, log: CommitLog, disk: Disk) -> int:
    units = np.fromfile(queue.file_path(start), UNIT_DTYPE)
    found = np.flatnonzero(units["tags"] <= MAX_EXTENSION_ADDRESS)
    replaced = 0
    for at in found.tolist():
        record = _record(log, int(units["offset"][at]))
        if record is not None and record.size == units["size"][at]:
            units["tags"][at] = _code(record, queue)
            replaced += 1
    if replaced:
        try:
            queue.replace_file(disk, start, units.tobytes())
        except OSError as error:
            raise store_error(error, f"the queue files of {queue.topic}") from error
    return replaced


def _record(log: CommitLog, offset: int) -> LogRecord | None:
    segment = log.segment_at(offset)
    return read_log_record(segment.view, offset - segment.start, offset, check_crc=False) if segment else None


def _code(record: LogRecord, queue: TopicQueue) -> int:
    if queue.topic == SCHEDULE_TOPIC:
        return record.store_timestamp + (queue.delay_ms or _UNKNOWN_LEVEL_DELAY_MS)
    return record.tags_code
