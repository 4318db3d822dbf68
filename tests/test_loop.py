"""Futures that callbacks resolve: a waiter that is gone is no error."""

from __future__ import annotations

import asyncio

from cometmq.loop import resolver


async def test_a_result_that_comes_after_its_waiter_was_cancelled_is_no_error() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    resolve = resolver(future)
    future.cancel()
    resolve(1)
    assert future.cancelled()


async def test_a_result_is_passed_on_once() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    resolve = resolver(future)
    resolve(1)
    resolve(2)
    assert await future == 1
