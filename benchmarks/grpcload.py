"""Runs `grpcload.c`, the load generator of gRPC in C, against an endpoint, and measures what it costs its process.

    python -m benchmarks.grpcload send --port 8081 [--pid PID] [--connections 8] [--window 8] [--batch 1]
    python -m benchmarks.grpcload receive --port 8081 --window 1 [--acks 1]   what the topic holds, for --seconds
    python -m benchmarks.grpcload idle --port 8081 --connections 5000 --window 1

Topic and group must exist where the endpoint does not make them. Prints one line of JSON; with ``--pid`` of the
server, what it used meanwhile.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import Beside, CpuTimes, cpu_seconds
from benchmarks.mqload import SETTLE_S, Measured, compiled, generator_seconds
from benchmarks.rounds import say

from cometmq.proxy.converter import duration, timestamp
from cometmq.proxy.protocol import v2

NUMBER: Final = "@" * 16
"""The generator puts a new number in its place."""
_REQUEST_S: Final = 10
"""As `Load.java` has it: a JVM that is not warm needs more than the usual three seconds for a call."""


@dataclass(frozen=True)
class Requests:
    """The requests that the generator repeats, and the clients that send them."""

    topic: str = "Load"
    group: str = "Receivers"
    """``#####`` in it stands for a number of the connection; see ``-g`` of the generator."""
    batch: int = 1
    """Messages in a SendMessage."""
    body_bytes: int = 128
    receive: int = 32
    """Messages in a ReceiveMessage at most."""
    poll_s: int = 20
    """Seconds that a ReceiveMessage waits for messages."""
    broker: str = "broker-a"

    def write(self, folder: Path, mode: str) -> None:
        """Write each request into a file, for producers (``send``) or for consumers."""
        topic, group = v2.Resource(name=self.topic), v2.Resource(name=self.group)
        tags = v2.FilterExpression(type=v2.FilterType.TAG, expression="*")
        producing = mode == "send"
        settings = v2.Settings(
            client_type=v2.ClientType.PRODUCER if producing else v2.ClientType.SIMPLE_CONSUMER,
            access_point=v2.Endpoints(
                scheme=v2.AddressScheme.IPv4, addresses=[v2.Address(host="127.0.0.1", port=8081)]
            ),
            request_timeout=duration(_REQUEST_S * 1000),
            user_agent=v2.UA(language=v2.Language.JAVA, version="5.0.7", platform="Linux", hostname="host"),
        )
        if producing:
            settings.publishing.topics.append(topic)
        else:
            settings.subscription.group.CopyFrom(group)
            settings.subscription.subscriptions.append(v2.SubscriptionEntry(topic=topic, expression=tags))
        requests = {
            "settings": v2.TelemetryCommand(settings=settings),
            "heartbeat": v2.HeartbeatRequest(group=None if producing else group, client_type=settings.client_type),
            "send": v2.SendMessageRequest(messages=[self._message()] * self.batch),
            "receive": v2.ReceiveMessageRequest(
                group=group,
                message_queue=v2.MessageQueue(topic=topic, broker=v2.Broker(name=self.broker)),
                filter_expression=tags,
                batch_size=self.receive,
                invisible_duration=duration(60_000),
                long_polling_timeout=duration(self.poll_s * 1000),
            ),
            "ack": v2.AckMessageRequest(group=group, topic=topic),
        }
        for name, request in requests.items():
            (folder / name).write_bytes(request.SerializeToString())

    def _message(self) -> v2.Message:
        """As Java's client makes it; id, key and body have a number of their own."""
        system = v2.SystemProperties(
            tag="Tag",
            keys=[f"k{NUMBER}"],
            message_id=f"01A1B2C3D4E5F60001{NUMBER}",
            born_timestamp=timestamp(time.time_ns() // 1_000_000),
            born_host="127.0.0.1",
            body_encoding=v2.Encoding.IDENTITY,
            message_type=v2.MessageType.NORMAL,
        )
        body = NUMBER.encode().ljust(self.body_bytes, b"x")[: self.body_bytes]
        return v2.Message(topic=v2.Resource(name=self.topic), system_properties=system, body=body)


def figures(output: str, errors: str, code: int) -> dict[str, Any]:
    """The last line of the generator's output.

    :param code: its exit status.
    :raises RuntimeError: it broke off, or an answer was wrong.
    """
    lines = [line for line in output.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    if code or "failures" not in found or found["failures"]:
        raise RuntimeError(f"grpcload: exit status {code}: {output}{errors}")
    return found


@contextmanager
def loading(mode: str, port: int, requests: Requests, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The generator, once all its clients are connected and known to the endpoint, and its load begins."""
    with tempfile.TemporaryDirectory(prefix="cometmq-grpcload-") as folder:
        requests.write(Path(folder), mode)
        limit_ms = ((requests.poll_s if mode != "send" else 0) + _REQUEST_S) * 1000
        command = [str(compiled("grpcload")), mode, "-p", str(port), "-d", folder, "-t", str(limit_ms), *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as load:
            try:
                assert load.stdout is not None
                if not load.stdout.readline():
                    figures(*load.communicate(), load.wait())
                yield load
            finally:
                load.kill()


def grpcload(mode: str, port: int, requests: Requests, *options: str) -> dict[str, Any]:
    """Run the generator once.

    :param mode: ``send``, ``receive`` or ``idle``.
    :raises RuntimeError: it broke off, or an answer was wrong.
    """
    with loading(mode, port, requests, *options) as load:
        output, errors = load.communicate()
        return figures(output, errors, load.returncode)


def measured(mode: str, pid: int, port: int, requests: Requests, *options: str) -> tuple[Measured, dict[str, Any]]:
    """Run one load and read what it cost a server, without the start of the clients.

    :returns: what was measured for each message, and what the generator told.
    """
    generated = generator_seconds()
    with loading(mode, port, requests, *options) as load:
        clocks, before = CpuTimes.now(), cpu_seconds(pid)
        output, errors = load.communicate()
        result = figures(output, errors, load.returncode)
    time.sleep(SETTLE_S)
    user, system = (after - begin for after, begin in zip(cpu_seconds(pid), before, strict=True))
    generated = generator_seconds() - generated
    beside = Beside.between(clocks, CpuTimes.now(), user + system + generated)
    count, rate, p50, p99 = (result[name] for name in ("messages", "per_s", "p50_us", "p99_us"))
    each = 1e6 / max(count, 1)
    return Measured(rate, p50, p99, user * each, system * each, generated / result["seconds"], beside), result


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["send", "receive", "idle"])
    parser.add_argument("--port", type=int, default=8081)
    parser.add_argument("--pid", type=int, help="of the server")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--window", type=int, default=8, help="calls in flight, or consumers, of a connection")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--batch", type=int, default=1, help="messages in a SendMessage")
    parser.add_argument("--body", type=int, default=128, help="bytes of a message")
    parser.add_argument("--acks", type=int, default=0, help="entries of an AckMessage (0: all that were received)")
    parser.add_argument("--messages", type=int, default=0, help="end after so many were acknowledged")
    parser.add_argument("--rate", type=float, default=0.0, help="calls a second, begun on time (0: closed loop)")
    parser.add_argument("--topic", default="Load")
    parser.add_argument("--group", default="Receivers")
    given = parser.parse_args()
    requests = Requests(given.topic, given.group, given.batch, given.body)
    flags = {"c": given.connections, "w": given.window, "s": given.seconds, "k": given.acks}
    flags |= {"m": given.messages, "r": given.rate}
    options = [part for flag, value in flags.items() for part in (f"-{flag}", str(value))]
    if given.pid is None:
        say(**grpcload(given.mode, given.port, requests, *options))
        return
    cost, told = measured(given.mode, given.pid, given.port, requests, *options)
    shown = asdict(cost)
    say(**told | shown | shown.pop("beside") | {"cpu_us": cost.cpu_us})


if __name__ == "__main__":
    main()
