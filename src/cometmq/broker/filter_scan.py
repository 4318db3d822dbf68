"""Looking for the messages that a selector wants, in a whole block of a queue at once, and remembering them.

A queue is divided into blocks of units. What a selector found in a block is kept for the next pull, be it of
the same consumer or of another one with the same expression: records never change. That a block is still of
the same messages is seen by the place of its last record in the log, which no other record ever has; so a
deleted topic that is made again begins anew. (Apache's broker saves work by the bits of its
``enableCalcFilterBitMap``.)
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from cometmq.filter import Selector
from cometmq.limits import CACHED_FILTER_BLOCKS, MAX_FILTER_SCAN_UNITS, MAX_FILTER_WORK
from cometmq.store.message_store import MessageStore, TopicQueue

BLOCK_UNITS: Final = 2_048
"""Enough for array operations, and no longer than about a millisecond to look at."""

_KEPT_MEMORY_BYTES: Final = 2 * 1024 * 1024
"""As much as all arrays of one look at a block of common messages take."""

Ints = npt.NDArray[np.int64]


class _Block(msgspec.Struct):
    """What was found in the units ``begin`` to ``end`` of a queue."""

    begin: int
    end: int
    last_place: int
    """Log offset of the record before ``end``."""
    hits: array[int]
    """What is wanted, ascending, counted from the first unit that ever was in the block: two bytes each."""


class FilterScan:
    """Scans the queues of one store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        # After memory of this size has been freed, glibc takes smaller arrays from memory that it keeps, and keeps
        # twice as much. Else every look would get its pages from the system anew, which clears each of them.
        np.empty(_KEPT_MEMORY_BYTES, np.uint8)
        self._blocks: OrderedDict[tuple[str | bytes, str, int, int], _Block] = OrderedDict()

    def choose(self, selector: Selector, queue: TopicQueue, offset: int, end: int, most: int) -> tuple[list[int], int]:
        """The first ``most`` messages that a selector wants from ``offset`` up to ``end``, and where to look on.

        Ends sooner when it has looked at so many messages for the first time, or at so much of them, that others
        would have to wait.
        """
        found: list[int] = []
        units = MAX_FILTER_SCAN_UNITS
        work = MAX_FILTER_WORK
        at = offset
        while at < end and units > 0 and work > 0:
            block, looked, cost = self._block(selector, queue, at, work)
            units -= looked
            work -= cost
            until = min(block.end, end)
            if until <= at:
                break
            first = at - at % BLOCK_UNITS
            low = bisect_left(block.hits, at - first)
            high = bisect_left(block.hits, until - first, low)
            room = most - len(found)
            found += [first + hit for hit in block.hits[low : min(high, low + room)]]
            if high - low > room:
                return found, first + block.hits[low + room]
            at = until
        return found, at

    def _block(self, selector: Selector, queue: TopicQueue, at: int, most: int) -> tuple[_Block, int, int]:
        """The block that holds ``at``, looked at up to its end or that of the queue, as far as ``most`` work goes.

        Beside it how many messages were looked at now, and the work that it was.
        """
        number = at // BLOCK_UNITS
        key = (selector.key, queue.topic, queue.queue_id, number)
        stop = min((number + 1) * BLOCK_UNITS, queue.max_offset())
        block = self._blocks.get(key)
        if block is None or not block.begin <= at <= block.end or not _is_current(block, queue):
            begin = max(number * BLOCK_UNITS, queue.min_offset())
            block = _Block(begin, begin, 0, array("H"))
            self._blocks[key] = block
            if len(self._blocks) > CACHED_FILTER_BLOCKS:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(key)
        looked = work = 0
        while block.end < stop and work < most:
            hits, places, cost = self._look(selector, queue, block.end, stop - block.end, most - work)
            work += cost
            if not len(places):
                break
            block.hits.frombytes((hits + (block.end - number * BLOCK_UNITS)).astype(np.uint16).tobytes())
            block.end += len(places)
            block.last_place = int(places[-1])
            looked += len(places)
        return block, looked, work

    def _look(
        self, selector: Selector, queue: TopicQueue, offset: int, count: int, most: int
    ) -> tuple[Ints, Ints, int]:
        """What is wanted among some units, counted from the first; the places of all that were looked at; the work.

        Units whose records cannot be read count as wanted: the read that follows says what is wrong with them.
        """
        runs, places = self._store.unit_runs(queue, offset, count)
        wanted = np.ones(len(places), np.bool_)
        work = 0
        for run in runs:
            found, cost = selector.matches_block(
                run.view, run.base, run.at, run.sizes, len(queue.topic_bytes), max(most - work, 0)
            )
            work += cost
            wanted[run.numbers[: len(found)]] = found
            if len(found) < len(run.numbers):  # the rest is too much work for now
                end = int(run.numbers[len(found)])
                return wanted[:end].nonzero()[0], places[:end], max(work, most)
        return wanted.nonzero()[0], places, work


def _is_current(block: _Block, queue: TopicQueue) -> bool:
    unit = queue.unit(block.end - 1)
    return unit is not None and unit[0] == block.last_place
