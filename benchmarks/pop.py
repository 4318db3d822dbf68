"""Measures POP over remoting beside Apache RocketMQ 5.5.0, in turn, on this machine: pops of 32 and one batch ack each.

    python benchmarks/pop.py [--rounds 2] [--messages 100000] [--connections 8]

Each system runs alone, fresh, with a 1 GB heap for the JVM, and is warmed by a first series. The load is this process:
it reads the header of each answer and no message. Prints messages a second, and the broker's processor time a message.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.process_cost import cpu_seconds  # noqa: E402
from tests.broker.wire import Wire, send_header  # noqa: E402
from tests.interop import systems  # noqa: E402
from tests.interop.systems import System  # noqa: E402

from cometmq.message.pop_info import read_offset_info  # noqa: E402
from cometmq.remoting.codes import RequestCode  # noqa: E402
from cometmq.remoting.pop_headers import PopMessageRequestHeader  # noqa: E402

TOPIC: Final = "BenchPop"
BODY: Final = b"x" * 128
QUEUES: Final = 8
AT_ONCE: Final = 500


async def connect(port: int) -> Wire:
    """Open a connection to a broker."""
    return Wire(*await asyncio.open_connection("127.0.0.1", port))


async def fill(port: int, count: int) -> None:
    """Send so many messages over the queues."""
    wire = await connect(port)
    for start in range(0, count, AT_ONCE):
        commands = [
            wire.command(
                RequestCode.SEND_MESSAGE_V2,
                send_header(TOPIC, queue_id=n % QUEUES, default_topic_queue_nums=QUEUES, properties=""),
                BODY,
            )
            for n in range(start, min(start + AT_ONCE, count))
        ]
        for command in commands:
            wire.post(command)
        for command in commands:
            assert (await wire.answer(command.opaque)).code == 0
    await wire.close()


async def consume(port: int, group: str, left: list[int]) -> None:
    """Pop and acknowledge until nothing is left."""
    wire = await connect(port)
    while left[0] > 0:
        header = PopMessageRequestHeader(
            consumer_group=group,
            topic=TOPIC,
            queue_id=-1,
            max_msg_nums=32,
            invisible_time=60_000,
            poll_time=1_000,
            born_time=time.time_ns() // 1_000_000,
            init_mode=0,
            exp_type="TAG",
            exp="*",
        )
        answer = await wire.call(RequestCode.POP_MESSAGE, header)
        if answer.code:
            continue
        fields = answer.ext_fields
        acks = []
        for (kind, queue_id), offsets in read_offset_info(fields["msgOffsetInfo"]).items():
            bits = sum(1 << (offset - offsets[0]) for offset in offsets)
            acks.append(
                {
                    "c": group,
                    "t": TOPIC,
                    "r": kind,
                    "so": offsets[0],
                    "q": queue_id,
                    "rq": int(fields["reviveQid"]),
                    "pt": int(fields["popTime"]),
                    "it": 60_000,
                    "b": base64.b64encode(bits.to_bytes(bits.bit_length() + 7 >> 3, "little")).decode(),
                }
            )
            left[0] -= len(offsets)
        body = json.dumps({"brokerName": "broker-a", "acks": acks}).encode()
        assert (await wire.call(RequestCode.BATCH_ACK_MESSAGE, body=body)).code == 0
    await wire.close()


async def measure(port: int, pid: int, group: str, messages: int, connections: int) -> tuple[float, float]:
    """Messages a second, and processor time of the broker for each (µs)."""
    left = [messages]
    began, before = time.monotonic(), sum(cpu_seconds(pid))
    await asyncio.gather(*(consume(port, group, left) for _ in range(connections)))
    took, cpu = time.monotonic() - began, sum(cpu_seconds(pid)) - before
    return messages / took, cpu / messages * 1e6


def one_round(system: System, messages: int, connections: int) -> tuple[float, float]:
    """A fresh system, warmed with a group of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-pop-") as directory:
        deployment = systems.deploy(system, Path(directory))
        try:
            broker = deployment.broker

            async def work() -> tuple[float, float]:
                await fill(broker.port, messages)
                await measure(broker.port, broker.pid, "warm", messages, connections)
                return await measure(broker.port, broker.pid, "measured", messages, connections)

            return asyncio.run(work())
        finally:
            deployment.close()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=8)
    options = parser.parse_args()
    rates: dict[System, list[float]] = {System.APACHE55: [], System.COMETMQ: []}
    for number in range(options.rounds):
        for system, found in rates.items():
            rate, cpu_us = one_round(system, options.messages, options.connections)
            found.append(rate)
            print(json.dumps({"round": number + 1, "system": system.value, "rate": rate, "cpu_us": cpu_us}), flush=True)
    apache, ours = (statistics.median(found) for found in rates.values())
    print(f"Apache 5.5.0 {apache:,.0f}/s, CometMQ {ours:,.0f}/s: {ours / apache:.2f} ×")


if __name__ == "__main__":
    main()
