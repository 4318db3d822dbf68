"""Looking for the messages that a selector wants, in a whole block of a queue at once, and remembering them.

A queue is divided into blocks of units. What a selector found in a block is kept for the next pull, be it of
the same consumer or of another one with the same expression: records never change. That a block is still of
the same messages is seen by the place of its last record in the log, which no other record ever has; so a
deleted topic that is made again begins anew. (Apache's broker saves work by the bits of its
``enableCalcFilterBitMap``.)
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from cometmq.filter import Selector
from cometmq.limits import CACHED_FILTER_BLOCKS, MAX_FILTER_SCAN_UNITS
from cometmq.store.message_store import MessageStore, TopicQueue

BLOCK_UNITS: Final = 1_024
"""Enough for array operations, and no longer than about half a millisecond to look at."""

Ints = npt.NDArray[np.int64]
_NONE: Final[Ints] = np.empty(0, np.int64)


class _Block(msgspec.Struct):
    """What was found in the units ``begin`` to ``end`` of a queue."""

    begin: int
    end: int
    last_place: int
    """Log offset of the record before ``end``."""
    hits: Ints
    """Queue offsets, ascending."""


class FilterScan:
    """Scans the queues of one store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._blocks: OrderedDict[tuple[str | bytes, str, int, int], _Block] = OrderedDict()

    def choose(self, selector: Selector, queue: TopicQueue, offset: int, end: int, most: int) -> tuple[Ints, int]:
        """The first ``most`` messages that a selector wants from ``offset`` up to ``end``, and where to look on.

        Ends sooner when it has looked at so many messages for the first time that others would have to wait.
        """
        found = []
        count = looked_at = 0
        at = offset
        while at < end and count <= most and looked_at < MAX_FILTER_SCAN_UNITS:
            block, looked = self._block(selector, queue, at)
            looked_at += looked
            until = min(block.end, end)
            if until <= at:
                break
            low, high = block.hits.searchsorted((at, until))
            if high > low:
                found.append(block.hits[low:high])
                count += int(high - low)
            at = until
        hits = _NONE if not found else found[0] if len(found) == 1 else np.concatenate(found)
        if count > most:
            return hits[:most], int(hits[most])
        return hits, at

    def _block(self, selector: Selector, queue: TopicQueue, at: int) -> tuple[_Block, int]:
        """The block that holds ``at``, looked at up to its end or the end of the queue; how much was looked at now."""
        number = at // BLOCK_UNITS
        key = (selector.key, queue.topic, queue.queue_id, number)
        stop = min((number + 1) * BLOCK_UNITS, queue.max_offset())
        block = self._blocks.get(key)
        if block is None or not block.begin <= at <= block.end or not _is_current(block, queue):
            block = _Block(at - at % BLOCK_UNITS, 0, 0, _NONE)
            block.begin = block.end = max(block.begin, queue.min_offset())
            self._blocks[key] = block
            if len(self._blocks) > CACHED_FILTER_BLOCKS:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(key)
        looked = 0
        while block.end < stop and looked < MAX_FILTER_SCAN_UNITS:
            hits, places, is_whole = self._look(selector, queue, block.end, stop - block.end)
            if not len(places):
                break
            block.hits = np.concatenate((block.hits, hits))
            block.end += len(places)
            block.last_place = int(places[-1])
            looked += len(places) if is_whole else MAX_FILTER_SCAN_UNITS
        return block, looked

    def _look(self, selector: Selector, queue: TopicQueue, offset: int, count: int) -> tuple[Ints, Ints, bool]:
        """Queue offsets of what is wanted among some units, the places of all of them, whether those are all asked for.

        Units whose records cannot be read count as wanted: the read that follows says what is wrong with them.
        """
        runs, places = self._store.unit_runs(queue, offset, count)
        wanted = np.ones(len(places), np.bool_)
        for run in runs:
            found = selector.matches_block(run.view, run.base, run.at, run.sizes, len(queue.topic_bytes))
            wanted[run.numbers[: len(found)]] = found
            if len(found) < len(run.numbers):  # the rest is too much work for now
                end = int(run.numbers[len(found)])
                return wanted[:end].nonzero()[0] + offset, places[:end], False
        return wanted.nonzero()[0] + offset, places, True


def _is_current(block: _Block, queue: TopicQueue) -> bool:
    unit = queue.unit(block.end - 1)
    return unit is not None and unit[0] == block.last_place
