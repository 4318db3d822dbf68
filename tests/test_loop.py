"""A task set holds its tasks until they end, and stops them."""

import asyncio
import gc

from cometmq.loop import TaskSet


async def test_a_task_that_nothing_else_holds_goes_on_and_leaves_when_it_ends() -> None:
    tasks = TaskSet()
    done: list[int] = []

    async def work() -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(waiting.set_result, None))
        await waiting
        done.append(1)

    tasks.start(work(), "work")
    gc.collect()
    assert len(tasks) == 1
    async with asyncio.timeout(10):
        while len(tasks):
            await asyncio.sleep(0)
    assert done == [1]


async def test_stop_cancels_all_and_waits_until_they_have_ended() -> None:
    tasks = TaskSet()
    ended: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            ended.append(number)

    for number in range(3):
        tasks.start(work(number))
    await asyncio.sleep(0)
    await tasks.stop()
    assert sorted(ended) == [0, 1, 2]
    assert len(tasks) == 0


async def test_a_task_that_stops_its_set_is_not_cancelled() -> None:
    tasks = TaskSet()
    ended: list[str] = []

    async def stops() -> None:
        await tasks.stop()
        ended.append("stops")

    async def waits() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("waits")

    tasks.start(waits())
    tasks.start(stops())
    async with asyncio.timeout(10):
        while len(tasks):
            await asyncio.sleep(0)
    assert ended == ["waits", "stops"]
