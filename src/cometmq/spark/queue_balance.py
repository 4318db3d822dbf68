"""How evenly messages lie in the queues of a topic, and how many queues it should have.

The rule for the number of queues, whose reasons are:

1. A queue is consumed by one thread of one consumer at a time where order matters, and by one consumer always. So at
   the peak the busiest queue must not get more than that handles: ``peak × imbalance / handled``, rounded up.
2. A consumer without a queue does nothing: at least as many queues as consumers.
3. Queues are dealt evenly to consumers: a multiple of their number.

Where one key alone gives one queue more than it can handle, no number of queues helps, so the imbalance is left out
of the first step: it comes from the key.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

HANDLED_PER_S: Final = 1000.0
"""Messages a second that one consumer is taken to get through of one queue: 1 ms for each."""


def gini(loads: Sequence[int]) -> float:
    """Gini coefficient of the loads of queues: 0 all equal, (n - 1) / n one has all; 0 where there is no load."""
    total = sum(loads)
    if not total:
        return 0.0
    ranked = sum((2 * rank - len(loads) - 1) * load for rank, load in enumerate(sorted(loads), 1))
    return ranked / (len(loads) * total)


def max_to_mean(loads: Sequence[int]) -> float:
    """How many times the mean the busiest queue has: 1 all equal, n one of n has all; 1 where there is no load."""
    total = sum(loads)
    return max(loads) * len(loads) / total if total else 1.0


@dataclass(frozen=True, slots=True)
class Demand:
    """What decides on the number of queues of a topic."""

    peak_per_s: float
    """Messages a second in the busiest minute."""
    handled_per_s: float
    """Messages a second that one consumer gets through of one queue."""
    consumers: int
    imbalance: float
    """Messages of the busiest queue, in means of all."""
    hottest_share: float
    """Part of the messages that have the commonest key, where they all lie in one queue; else 0."""

    @property
    def key_is_too_hot(self) -> bool:
        """Whether one key alone keeps a queue busier than it can be, whatever the number of queues."""
        return self.peak_per_s * self.hottest_share > self.handled_per_s


def recommended_queues(demand: Demand) -> int:
    """Return how many queues a topic should have, in all brokers together; the rule is above."""
    imbalance = 1.0 if demand.key_is_too_hot else demand.imbalance
    needed = max(math.ceil(demand.peak_per_s * imbalance / demand.handled_per_s), demand.consumers)
    return math.ceil(needed / demand.consumers) * demand.consumers
