"""Work of this package gets on although the application fills the event loop's own threads."""

from __future__ import annotations

import ast
import asyncio
import os
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path

import pytest

import cometmq
from cometmq.client import Message, Producer
from cometmq.testing import Cluster
from cometmq.threads import in_thread

PACKAGE = Path(cometmq.__file__).parent
PROGRAMS = ("cli", "testing", "spark")
"""Rooms that are programs or tests of their own."""
_called: ContextVar[str] = ContextVar("_called", default="nobody")


@pytest.fixture
async def full() -> AsyncIterator[None]:
    """The event loop's own pool has one thread, which waits until the test ends."""
    over = threading.Event()
    pool = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(pool)
    pool.submit(over.wait)
    yield
    over.set()


@pytest.mark.usefixtures("full")
async def test_large_messages_are_sent_and_names_are_looked_up() -> None:
    async with asyncio.timeout(30), Cluster() as cluster:
        await cluster.create_topic("large")
        namesrv = cluster.namesrv_address.replace("127.0.0.1", "localhost")
        async with Producer("p", namesrv) as producer:
            await producer.send(Message("large", b"x" * 100_000))


async def test_a_call_has_the_context_of_its_caller_and_raises() -> None:
    token = _called.set("by the test")
    assert await in_thread(_called.get) == "by the test"
    _called.reset(token)
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 1, 0)


async def test_a_forked_child_has_threads_of_its_own() -> None:
    assert await in_thread(threading.get_ident) != threading.get_ident()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            loop = asyncio.new_event_loop()
            asyncio._set_running_loop(None)
            code = loop.run_until_complete(asyncio.wait_for(in_thread(int, "7"), 20)) - 7
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0


def _uses_shared_threads(call: ast.Call) -> bool:
    function = call.func
    if not isinstance(function, ast.Attribute):
        return False
    first = call.args[0] if call.args else None
    is_default = isinstance(first, ast.Constant) and first.value is None
    return (
        function.attr == "to_thread"
        or (function.attr == "run_in_executor" and is_default)
        or (function.attr == "getaddrinfo" and ast.unparse(function.value) != "socket")
    )


def test_no_room_uses_the_threads_of_the_application() -> None:
    rooms = (path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in PROGRAMS)
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in rooms
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and _uses_shared_threads(node)
    ]
    assert found == [], "use cometmq.threads"
