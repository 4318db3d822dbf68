"""Waiting with an end, on the clock of the service rather than on the event loop's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from cometmq.clock import Clock

T = TypeVar("T")

_EXPIRED: Final = "the time given has passed"


async def within(clock: Clock, seconds: float, work: Awaitable[T]) -> T:
    """The result of ``work``, which is cancelled when it takes longer than ``seconds``.

    :raises TimeoutError: it did.
    """
    future = asyncio.ensure_future(work)
    timer = clock.call_later(max(0.0, seconds), future.cancel, _EXPIRED)
    try:
        return await future
    except asyncio.CancelledError as cancelled:
        if cancelled.args == (_EXPIRED,):
            raise TimeoutError(f"took longer than {seconds:g} s") from None
        raise
    finally:
        timer.cancel()
