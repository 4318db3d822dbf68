"""Pieces of work of calls begin in the order in which they came, a few in each round."""

from __future__ import annotations

import asyncio
import time

import pytest

from cometmq.proxy.rpc.pace import Pace


@pytest.mark.parametrize("cancelled", [(), (0,), (1, 2), (3, 4, 39), range(2, 30)])
async def test_pieces_begin_in_their_order_whoever_is_cancelled_meanwhile(cancelled: tuple[int, ...]) -> None:
    pace, begun = Pace(asyncio.get_running_loop()), []

    async def piece(number: int) -> None:
        await pace.wait_for_time()
        begun.append(number)
        until_s = time.thread_time() + 0.002
        while time.thread_time() < until_s:
            pass

    pieces = [asyncio.create_task(piece(number)) for number in range(40)]
    await asyncio.sleep(0)
    at_once = len(begun)
    for number in cancelled:
        pieces[number].cancel()
    await asyncio.gather(*pieces, return_exceptions=True)
    assert at_once < 5, "a round has little time"
    assert begun == [number for number in range(40) if number < at_once or number not in cancelled]
    assert not pace.is_behind
