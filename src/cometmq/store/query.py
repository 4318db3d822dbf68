"""Messages by key: what the index says, read from the log (``DefaultMessageStore.queryMessage``)."""

from __future__ import annotations

from typing import NamedTuple

from cometmq.limits import MAX_QUERY_MESSAGES
from cometmq.store.commit_log import CommitLog
from cometmq.store.index_service import IndexService
from cometmq.store.record_scan import read_log_record


class QueryResult(NamedTuple):
    """Records found, in log order, and how far the index reaches (0 and 0 when it knows none, as RocketMQ says)."""

    last_update_timestamp: int
    last_update_physical_offset: int
    records: list[memoryview]


def query(
    log: CommitLog, index: IndexService | None, topic: str, key: str, max_num: int, begin: int, end: int
) -> QueryResult:
    """Find the newest ``max_num`` records of ``topic`` under ``key``, stored between ``begin`` and ``end`` (ms)."""
    if index is None:
        return QueryResult(0, 0, [])
    hits = index.find(topic, key, min(max_num, MAX_QUERY_MESSAGES), begin, end)
    if not hits.offsets:
        return QueryResult(0, 0, [])
    records: list[memoryview] = []
    for offset in hits.offsets:
        view = log.record(offset)
        if view is not None and read_log_record(view, 0, offset, check_crc=False) is not None:
            records.append(view)
    return QueryResult(hits.last_update_timestamp, hits.last_update_physical_offset, records)
