"""SIGKILL while clients of RocketMQ 5 send and receive: none is lost, none comes after its acknowledgement.

The channel of the clients lives through all kills, as that of an application does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from tests.helpers.waiting import real_time, until, wait_for
from tests.proxy.client import Client, receive

from cometmq.client.admin import Admin
from cometmq.proxy.converter import duration
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.testing import free_port

pytestmark = pytest.mark.crash

G, T = v2.Resource(name="G"), v2.Resource(name="T")
KILLS = 2
EACH = 150
"""Messages between two kills."""
INVISIBLE_S = 10
"""The shortest time that a consumer may ask for."""
KEYS = ("mappedFileSizeCommitLog=16777216", "cleanFileForciblyEnable=false", "diskMaxUsedSpaceRatio=95")
QUICK = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200))


class Serve:
    """``cometmq serve`` in a process that can be killed."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port("127.0.0.1")
        self._ports = [str(free_port("127.0.0.1")) for _ in range(2)]
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def namesrv_address(self) -> str:
        """``host:port`` of the nameserver."""
        return f"127.0.0.1:{self._ports[1]}"

    def start(self) -> None:
        """Start it, and wait until its port is open."""
        command = [sys.executable, "-m", "cometmq", "serve", "--data", str(self._directory / "data")]
        command += ["--no-console", "--no-metrics", "--port", self._ports[0], "--namesrv-port", self._ports[1]]
        command += ["--grpc-port", str(self.port), *(text for key in KEYS for text in ("-o", key))]
        with (self._directory / "serve.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._directory)
        try:
            wait_for(self._is_open, "its port is open")
        except TimeoutError:
            pytest.fail((self._directory / "serve.log").read_text())

    def _is_open(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    server = Serve(tmp_path)
    server.start()
    yield server
    server.kill()


class Ledger:
    """What the clients were answered."""

    def __init__(self) -> None:
        self.sent: set[bytes] = set()
        self.acknowledged: set[bytes] = set()
        self.in_doubt: set[bytes] = set()
        """Acknowledged, but the kill came before the answer."""
        self.deliveries: Counter[bytes] = Counter()
        self.wrong: list[bytes] = []
        """Came after their acknowledgement."""

    async def acknowledges(self, more: int) -> None:
        """Wait until so many more are acknowledged."""
        enough = len(self.acknowledged) + more
        await until(lambda: len(self.acknowledged) >= enough)


async def send(client: Client, ledger: Ledger, number: int) -> None:
    """Send until cancelled; a message whose answer is lost is sent no more."""
    for count in range(1_000_000):
        body = b"%d/%d" % (number, count)
        try:
            answer = await client.send("T", body)
        except grpc.aio.AioRpcError:
            await real_time(0.05)
            continue
        if answer.status.code == Code.OK:
            ledger.sent.add(body)
        await asyncio.sleep(0)


async def consume(client: Client, ledger: Ledger) -> None:
    """Receive and acknowledge until cancelled."""
    request = receive("T", "G", "", invisible_duration=duration(INVISIBLE_S * 1_000))
    while True:
        try:
            answers = await client.receive(request)
        except grpc.aio.AioRpcError:
            await real_time(0.05)
            continue
        for found in [answer.message for answer in answers if answer.HasField("message")]:
            ledger.deliveries[found.body] += 1
            if found.body in ledger.acknowledged:
                ledger.wrong.append(found.body)
            await acknowledge(client, ledger, found)


async def acknowledge(client: Client, ledger: Ledger, found: v2.Message) -> None:
    system = found.system_properties
    entry = v2.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)
    try:
        answer = await client.ask("AckMessage", v2.AckMessageRequest(group=G, topic=T, entries=[entry]))
    except grpc.aio.AioRpcError:
        ledger.in_doubt.add(found.body)
        return
    if answer.status.code == Code.OK:
        ledger.acknowledged.add(found.body)
    else:
        ledger.in_doubt.add(found.body)


async def test_nothing_acknowledged_is_lost_or_comes_again(serve: Serve) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{serve.port}", options=QUICK) as channel:
        ledger = Ledger()
        producers, consumer = [Client(channel) for _ in range(3)], Client(channel)
        async with Admin(serve.namesrv_address) as admin:
            await admin.create_topic("T")
        senders = [asyncio.ensure_future(send(one, ledger, number)) for number, one in enumerate(producers)]
        receivers = [asyncio.ensure_future(consume(consumer, ledger)) for _ in range(3)]
        for _ in range(KILLS):
            await ledger.acknowledges(EACH)
            await asyncio.to_thread(serve.kill)
            await asyncio.to_thread(serve.start)
        await ledger.acknowledges(EACH)
        for task in senders:
            task.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        await until(lambda: ledger.sent <= ledger.acknowledged | ledger.in_doubt)
        for task in receivers:
            task.cancel()
        await asyncio.gather(*receivers, return_exceptions=True)
    assert len(ledger.sent) > 3 * EACH
    assert not ledger.wrong
    again = {body for body, times in ledger.deliveries.items() if times > 1}
    assert again <= ledger.in_doubt
