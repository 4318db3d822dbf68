"""Measures POP over remoting beside Apache RocketMQ 5.5.0, in turn, on this machine: pops of 32 and one batch ack each.

    python -m benchmarks.five.pop [--rounds 2] [--messages 100000] [--connections 8]

Each system runs alone, fresh, with a 1 GB heap for the JVM, and is warmed by a first series. The load is this process:
it reads the header of each answer and no message. Prints messages a second, and the broker's processor time a message.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import time
from typing import Final

from benchmarks.machine import cpu_seconds
from benchmarks.rounds import Figures, columns, in_turn, say
from benchmarks.servers import running
from tests.broker.wire import Wire, send_header
from tests.interop.systems import System

from cometmq.message.pop_info import read_offset_info
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.pop_headers import PopMessageRequestHeader

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
    with running(system) as deployment:
        broker = deployment.broker

        async def work() -> tuple[float, float]:
            await fill(broker.port, messages)
            await measure(broker.port, broker.pid, "warm", messages, connections)
            return await measure(broker.port, broker.pid, "measured", messages, connections)

        return asyncio.run(work())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=8)
    options = parser.parse_args()
    found: dict[str, list[Figures]] = {}
    for number, system in in_turn((System.APACHE55, System.COMETMQ), options.rounds):
        rate, cpu_us = one_round(system, options.messages, options.connections)
        found.setdefault(system.value, []).append({"messages/s": rate, "CPU per message, µs": cpu_us})
        say(round=number, system=system.value, **found[system.value][-1])
    print(f"\n{columns(found)}")


if __name__ == "__main__":
    main()
