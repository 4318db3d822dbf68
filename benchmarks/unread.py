"""Measures the wait of one client while thousands of others ask for large answers and read none, and when they go.

    python -m benchmarks.unread [--clients 2000] [--asks 6] [--systems cometmq,apache]

Each of the others sends all its pulls at once, for 0.9 MB each, with the smallest buffer for what it receives. One
client in a process of its own sends a heartbeat every half millisecond; its longest waits are printed, while the others
ask (4 s), and after all their connections have been closed with a reset (2 s). Prints one JSON line a system.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import struct
import time
from multiprocessing.connection import Connection
from typing import Final

from benchmarks.rounds import say
from benchmarks.scale.crowd import more_descriptors
from benchmarks.scale.wire import Wire, heartbeat, make_topic, pull, send
from benchmarks.servers import running
from tests.interop.systems import System

TOPIC: Final = "Unread"
MESSAGES: Final = 1_000
BODY_BYTES: Final = 768
ASKING_S: Final = 4.0
GONE_S: Final = 2.0
PATIENCE_S: Final = 20.0
_PAUSE_S: Final = 0.0005
_RESET: Final = struct.pack("ii", 1, 0)
_WIDE: Final = {"maxTransferBytesOnMessageInMemory": "1048576", "maxTransferCountOnMessageInMemory": "1024"}
"""CometMQ's defaults; Apache's are a quarter of a megabyte and 32 messages."""


def ask_and_wait(port: int, results: Connection) -> None:
    """Send heartbeats until told to stop; send back the times at which they were sent, with the waits, in seconds."""
    found: list[tuple[float, float]] = []
    with Wire(port) as wire:
        beat = heartbeat("10.0.0.1@1", "unread-other", TOPIC)
        while not results.poll():
            began = time.monotonic()
            wire.ask(beat)
            found.append((began, time.monotonic() - began))
            time.sleep(_PAUSE_S)
    results.send(found)


def _fill(wire: Wire) -> None:
    wire.ask(make_topic(TOPIC, 1))
    wire.ask(heartbeat("10.0.0.2@2", "scale", TOPIC))
    message = send(TOPIC, body=bytes(BODY_BYTES))
    for _ in range(MESSAGES):
        wire.ask(message)


def _connected(port: int) -> socket.socket:
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    one.connect(("127.0.0.1", port))
    return one


def measure(system: System, clients: int, asks: int) -> None:
    """Measure one system on a fresh broker, and print its line."""
    with running(system, _WIDE) as deployment, Wire(deployment.broker.port) as wire:
        port = deployment.broker.port
        _fill(wire)
        results, told = multiprocessing.Pipe()
        other = multiprocessing.Process(target=ask_and_wait, args=(port, told))
        sockets = [_connected(port) for _ in range(clients)]
        other.start()
        time.sleep(1.0)
        began = time.monotonic()
        pulls = pull(TOPIC, 0, MESSAGES) * asks
        for one in sockets:
            one.sendall(pulls)
        time.sleep(ASKING_S)
        gone = time.monotonic()
        for one in sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            one.close()
        time.sleep(GONE_S)
        results.send(None)
        waits = results.recv() if results.poll(PATIENCE_S) else None
        other.kill()
    if waits is None:
        say(system=system.value, error=f"a heartbeat had no answer {GONE_S + PATIENCE_S:g} s after the others had gone")
        return
    asking = sorted((wait for at, wait in waits if began <= at < gone), reverse=True)
    after = sorted((wait for at, wait in waits if gone <= at), reverse=True)
    say(
        system=system.value,
        asking_heartbeats=len(asking),
        asking_longest_ms=[round(1_000 * wait, 1) for wait in asking[:3]],
        gone_longest_ms=[round(1_000 * wait, 1) for wait in after[:3]],
    )


def main() -> None:
    """Measure the systems that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=2_000)
    parser.add_argument("--asks", type=int, default=6, help="pulls of each client")
    parser.add_argument("--systems", default="cometmq,apache", help="with commas between")
    options = parser.parse_args()
    more_descriptors()
    for name in options.systems.split(","):
        measure(System(name), options.clients, options.asks)


if __name__ == "__main__":
    main()
