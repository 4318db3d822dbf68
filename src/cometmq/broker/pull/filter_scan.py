"""Evaluates SQL92 filters on blocks of a queue, and caches the results for later pulls.

Theory of operation. A queue is divided into blocks of ``BLOCK_UNITS`` units. A selector's matches in a block are cached
for later pulls with the same expression, since records never change. The log offset of the last record, which is
unique, shows that a block still has the same messages. After a topic has been deleted and created again, its blocks are
invalid. A scan that is too much work for one round of the loop ends early. The block then ends there, and the next scan
continues at this unit. (Apache's broker saves work by the bits of its ``enableCalcFilterBitMap``.)
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from cometmq.broker.limits import CACHED_FILTER_BLOCKS, MAX_FILTER_SCAN_UNITS, MAX_FILTER_WORK
from cometmq.filter import Selector
from cometmq.store.message_store import ConsumeQueue, MessageStore

BLOCK_UNITS: Final = 2_048
"""Number of units in a block, which is enough for efficient array operations and takes about a millisecond."""

Ints = npt.NDArray[np.int64]


class _Block(msgspec.Struct):
    """The matches among the units from ``begin`` to ``end`` of a queue."""

    begin: int
    end: int
    last_place: int
    """Log offset of the record before ``end``."""
    hits: array[int]
    """Positions of the matching units in the block, ascending, two bytes each."""


class FilterScan:
    """Scans a store's queues for messages that match an SQL92 filter."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._blocks: OrderedDict[tuple[str | bytes, str, int, int], _Block] = OrderedDict()

    def choose(
        self, selector: Selector, queue: ConsumeQueue, offset: int, end: int, most: int
    ) -> tuple[list[int], int]:
        """Return the first ``most`` matching messages between ``offset`` and ``end``, and the offset from which to
        continue.

        The scan ends early after ``MAX_FILTER_SCAN_UNITS`` new messages or ``MAX_FILTER_WORK``, so that other requests
        do not wait.
        """
        found: list[int] = []
        units = MAX_FILTER_SCAN_UNITS
        work = MAX_FILTER_WORK
        at = offset
        while at < end and units > 0 and work > 0:
            block, looked, cost = self._fill_block(selector, queue, at, work)
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

    def _fill_block(self, selector: Selector, queue: ConsumeQueue, at: int, most: int) -> tuple[_Block, int, int]:
        """Return the block that contains unit ``at``, after evaluating more of its units with at most ``most`` work.

        Also return the number of messages read and the work done by this call.
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
            hits, places, cost = self._select(selector, queue, block.end, stop - block.end, most - work)
            work += cost
            if not len(places):
                break
            block.hits.frombytes((hits + (block.end - number * BLOCK_UNITS)).astype(np.uint16).tobytes())
            block.end += len(places)
            block.last_place = int(places[-1])
            looked += len(places)
        return block, looked, work

    def _select(
        self, selector: Selector, queue: ConsumeQueue, offset: int, count: int, most: int
    ) -> tuple[Ints, Ints, int]:
        """Return the positions of the matching units, the log offsets of all units read, and the work done.

        Units whose records cannot be read count as matches, so that the following read reports the error.
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


def _is_current(block: _Block, queue: ConsumeQueue) -> bool:
    unit = queue.unit(block.end - 1)
    return unit is not None and unit[0] == block.last_place
