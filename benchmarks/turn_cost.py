"""Measures what a send costs the broker in turns of one process: bytes in, bytes out, no sockets and no other process.

    python -m benchmarks.turn_cost [--messages 200000] [--only 16]

Brokers without anything, with ACL 1.0 and 200 accounts, and with metrics take the same turns. Two more take messages
of lite topics: of 1,000 lite topics, and each of a new one. One JSON
line a case: the processor time of a message in a quick turn (the tenth percentile), so other processes matter
little. ``COMETMQ_CORE=python`` measures the broker without the compiled core, ``PYTHONPATH`` another version.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tests.broker.turn.side_by_side import Transport

from cometmq.broker.config import BrokerConfig
from cometmq.broker.controller import Broker
from cometmq.core import PATH
from cometmq.message.names import MESSAGE_TYPE
from cometmq.remoting.bodies import TopicConfig
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.server_connection import ServerConnection
from cometmq.remoting.signing import Credentials

TURNS: Final = {"1 x 1": (1, 1), "64 x 1": (64, 1), "16 x 32": (16, 32)}
"""Connections, and sends in flight on each."""
LITE, NEW_LITE = "lite", "new lite"
KINDS: Final = ("plain", "ACL 1.0", "metrics", LITE, NEW_LITE)
LITES: Final = 1_000
ACCOUNTS: Final = 200
ACCOUNT: Final = Credentials("account-100", "secret-of-account-100")
BODY: Final = b"b" * 128
FRAMES_KEPT: Final = 2_048
"""Frames of a case that differ."""
BLOCKS: Final = 10
"""The turns of a broker are taken in so many blocks: those of others between them would cool the caches."""
WARM: Final = 0.1
"""Share of the turns that does not count."""


def send(number: int, *, signs: bool, lite: str = "") -> bytes:
    """A send as `mqload` writes it, to a lite topic if one is named."""
    properties = (
        f"KEYS\x01k{number:010x}\x02UNIQ_KEY\x017F000001{number:024X}\x02WAIT\x01true\x02TAGS\x01Tag{number % 5}"
    )
    if lite:
        properties += f"\x02__LITE_TOPIC\x01{lite}"
    values = ("producer", "Load", "TBW102", "4", str(number % 4), "0", "1700000000000", "0", properties, "0", "false")
    fields = {**dict(zip("abcdefghijk", values, strict=True)), "m": "false"}
    command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, number, 0, "JAVA", ext_fields=fields, body=BODY)
    if signs:
        ACCOUNT.sign(command)
    return command.encode()


def options(kind: str, directory: Path) -> dict[str, Any]:
    """The configuration of a kind of broker."""
    if kind == "ACL 1.0":
        rows = [
            f"- {{accessKey: account-{at}, secretKey: secret-of-account-{at}, defaultTopicPerm: PUB|SUB}}\n"
            for at in range(ACCOUNTS)
        ]
        accounts = directory / "plain_acl.yml"
        accounts.write_text("accounts:\n" + "".join(rows))
        accounts.chmod(0o600)
        return {"acl_enable": True, "acl_path": str(directory)}
    if kind == "metrics":
        return {"metrics_exporter_type": "PROM", "metrics_prom_exporter_port": 0}
    return {}


class Turns:
    """A broker that runs, and the frames of one case."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self._signs = kind == "ACL 1.0"
        directory.mkdir()
        config: dict[str, Any] = {"store_path_root_dir": str(directory / "store"), "broker_ip1": "127.0.0.1"}
        config |= {"bind_address": "127.0.0.1", "listen_port": 0, "ha_listen_port": 0}
        self.broker = Broker(BrokerConfig(**config, **options(kind, directory)))
        self._connections: list[ServerConnection] = []
        self._transports: list[Transport] = []
        self._bytes: list[bytes] = []
        self._at = 0
        self._window = 0

    async def start(self) -> None:
        """Start the broker; this process ends its turns."""
        await self.broker.start()
        lites = {MESSAGE_TYPE: "LITE"} if self.kind in (LITE, NEW_LITE) else None
        topic = TopicConfig(topic_name="Load", read_queue_nums=4, write_queue_nums=4, perm=6, attributes=lites)
        self.broker.topics.put(topic)
        written = asyncio.Event()
        writer = self.broker._tables._writer
        assert writer is not None
        writer.when_written(lambda _: written.set())
        await written.wait()
        self.broker.server.schedule_round = lambda: None  # type: ignore[method-assign]

    def prepare(self, connections: int, window: int) -> None:
        """Open the connections of a case and make its frames."""
        for _ in range(len(self._connections), connections):
            self._transports.append(Transport(30_000 + len(self._transports), "127.0.0.1"))
            connection = ServerConnection(self.broker.server)
            connection.connection_made(self._transports[-1])  # type: ignore[arg-type]
            self._connections.append(connection)
        self._window = window
        lites = [f"session-{number % LITES:08d}" if self.kind == LITE else "" for number in range(FRAMES_KEPT)]
        frames = [send(number, signs=self._signs, lite=lites[number]) for number in range(FRAMES_KEPT)]
        self._bytes = [b"".join(frames[at : at + window]) for at in range(0, FRAMES_KEPT, window)]

    def _sends(self, at: int) -> bytes:
        """The frames of one connection and turn."""
        if self.kind != NEW_LITE:
            return self._bytes[at % len(self._bytes)]
        numbers = range(at * self._window, (at + 1) * self._window)
        return b"".join(send(number, signs=False, lite=f"w{self._window}-{number:08d}") for number in numbers)

    async def turn(self, connections: int) -> float:
        """Send once on each connection; return the processor seconds of the turn."""
        given = [self._sends(self._at + number) for number in range(connections)]
        self._at += connections
        server = self.broker.server
        began = time.thread_time()
        for connection, data in zip(self._connections, given, strict=False):
            connection.data_received(data)
        server._end_round()
        while any(connection._waits_for_round for connection in self._connections):
            await asyncio.sleep(0)
            server._end_round()
        seconds = time.thread_time() - began
        for transport in self._transports[:connections]:
            if b'"code":0' not in transport.written[:40]:
                raise RuntimeError(f"a send was refused: {transport.written[:400].decode(errors='replace')}")
            transport.written.clear()
        return seconds


async def measure(brokers: list[Turns], case: str, messages: int) -> None:
    """Take the turns of one case with each broker, some at a time, and print what a message costs."""
    connections, window = TURNS[case]
    for broker in brokers:
        broker.prepare(connections, window)
    seconds: dict[str, list[float]] = {broker.kind: [] for broker in brokers}
    gc.collect()
    gc.freeze()
    turns = max(messages // (connections * window) // BLOCKS, 10)
    for _ in range(BLOCKS):
        for broker in brokers:
            seconds[broker.kind] += [await broker.turn(connections) for _ in range(turns)]
            await asyncio.sleep(0)
    for kind, found in seconds.items():
        quick = sorted(found[int(len(found) * WARM) :])[len(found) // 10]
        cost = round(quick / (connections * window) * 1e6, 2)
        print(json.dumps({"path": PATH, "turn": case, "broker": kind, "processor_us_per_message": cost}), flush=True)


async def main() -> None:
    """Measure every case with every kind of broker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000, help="of each case and broker")
    parser.add_argument("--only", default="", help="turns whose name contains this")
    parser.add_argument("--broker", default="", help=f"brokers whose name contains this: {', '.join(KINDS)}")
    chosen = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="cometmq-bench-") as directory:
        brokers = [Turns(kind, Path(directory) / kind) for kind in KINDS if chosen.broker in kind]
        for broker in brokers:
            await broker.start()
        for case in TURNS:
            if chosen.only in case:
                await measure(brokers, case, chosen.messages)
        for broker in brokers:
            await broker.broker.stop()


if __name__ == "__main__":
    asyncio.run(main())
