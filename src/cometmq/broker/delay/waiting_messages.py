"""Queries for delayed messages, in the timer log and in memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from cometmq.broker.delay.timer_message import TimerMessageService
from cometmq.store.timer import waiting
from cometmq.store.timer.log import FOREVER_MS
from cometmq.store.timer.unit import Units, text_hash
from cometmq.store.timer.waiting import DUE_WITHIN_SECONDS, Listed, Place, WaitingOfTopic, Wanted


async def count_waiting(
    timer: TimerMessageService, within: Sequence[int] = DUE_WITHIN_SECONDS
) -> dict[str, WaitingOfTopic]:
    """Count the delayed messages in the timer log by topic.

    :param within: seconds; messages due within that time are counted separately.
    :raises OSError: the timer log cannot be read.
    """
    near = timer.due.due_until(FOREVER_MS)
    now_ms = timer.clock.now_ms()
    return await timer.in_thread(partial(waiting.count_waiting, timer.log, timer.horizon_ms, near, now_ms, within))


async def list_waiting(
    timer: TimerMessageService, wanted: Wanted, topic: str | None
) -> tuple[list[Listed], Place | None]:
    """Return the first ``wanted`` delayed messages, and the position from which to continue.

    :param topic: return only messages for this topic.
    :raises OSError: the timer log cannot be read.
    """
    horizon_ms, near = timer.horizon_ms, timer.due.due_until(wanted.end_ms)
    of_topic = text_hash(topic) if topic is not None else None

    def chosen(units: Units) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = (units["due"] >= horizon_ms) | np.isin(units["serial"], near)
        return found if of_topic is None else found & (units["topic"] == of_topic)

    return await timer.in_thread(partial(waiting.list_waiting, timer.log, wanted, chosen))
