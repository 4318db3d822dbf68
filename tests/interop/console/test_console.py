"""The console with brokers of Apache RocketMQ: every page, and each kind of change."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.helpers.consoles import Surfer
from tests.helpers.waiting import wait_for
from tests.interop.systems import Deployment, System

from cometmq.console.options import ConsoleOptions
from cometmq.console.server import ConsoleServer

pytestmark = pytest.mark.interop


@contextmanager
def console_at(namesrv: str, data: Path) -> Iterator[Surfer]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    options = ConsoleOptions(namesrv=namesrv, data=data, port=0, allow_changes=True)

    async def start() -> ConsoleServer:
        server = ConsoleServer(options)
        await server.start()
        return server

    server = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield Surfer(server.url, data=data)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.parametrize("system", [System.APACHE, System.APACHE55], ids=lambda system: system.value)
def test_pages_and_changes_work_with_apaches_brokers(
    deploy: Callable[..., Deployment], system: System, tmp_path: Path
) -> None:
    deployment = deploy(system, system, enablePropertyFilter="true")
    with console_at(deployment.address, tmp_path / "console") as surfer:
        assert "is created" in surfer.change("/topics/create", topic="apaches", queues=2).words
        for number in range(3):
            fields = {"topic": "apaches", "body": f"body {number}", "tag": "t", "keys": f"k{number}"}
            assert "is sent" in surfer.change("/messages/send", **fields, properties=f"n={number}").words
        page = surfer.get("/messages?topic=apaches")
        place = re.search(r'href="(/messages/apaches/[^"]+/\d+/\d+)"', page.text)
        broker = re.search(r'href="(/brokers/[^"]+)"', surfer.get("/").text)
        assert place
        assert broker
        # An Apache broker takes its first sample a second after its start, and has no runtime information before.
        wait_for(lambda: surfer.get(broker[1]).status == 200, "the broker's first sample")
        assert "body 1" in surfer.get("/messages?topic=apaches&sql=n%20%3D%201").words
        assert surfer.get("/messages?topic=apaches&sql=n%20%3D%201").words.count("body") == 1
        for path in ("/", broker[1], "/topics", "/topics/apaches", "/producers", "/groups", place[1]):
            shown = surfer.get(path)
            assert shown.status == 200, f"{path}: {shown.words}"
        assert "is created" in surfer.change("/groups/create", group="readers").words
        surfer.change("/groups/readers/reset", topic="apaches", to="earliest")
        assert "Lag 3" in surfer.get("/groups/readers").words
        assert "starts at the offsets of readers" in surfer.change("/groups/readers/clone", copy="copies").words
        assert "is deleted" in surfer.change("/groups/copies/delete", typed="copies").words
        assert "is changed" in surfer.change("/topics/apaches/alter", read_queues=3, write_queues=3).words
        assert "is deleted" in surfer.change("/topics/apaches/delete", typed="apaches").words
