"""A task set holds its tasks until they end, and stops them; work in steps lets others in."""

import asyncio
import gc
import socket
from collections.abc import Generator
from contextlib import suppress

import pytest

from cometmq.loop import TaskSet, close_server, in_rounds, over_rounds
from cometmq.testing import settle


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


async def test_each_step_of_work_over_turns_is_a_turn_of_its_own() -> None:
    order: list[str] = []

    def steps(name: str) -> Generator[None, None, str]:
        for number in range(3):
            order.append(f"{name}{number}")
            if number < 2:
                yield
        return name

    over_rounds(steps("a"))
    assert await in_rounds(steps("b")) == "b"
    await settle()
    assert order[:2] == ["a0", "b0"], "the first step is done at once"
    assert sorted(order) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert order != sorted(order)


@pytest.mark.parametrize("rounds", range(6))
async def test_a_closed_server_leaves_no_connection_that_nobody_knows(rounds: int) -> None:
    opened: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: opened.append(writer), "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname(), 10) as client:
        for _ in range(rounds):
            await asyncio.sleep(0)
        await close_server(server)
        for writer in opened:
            writer.close()
        with suppress(ConnectionResetError):  # it was not accepted
            assert await asyncio.to_thread(client.recv, 1) == b""
