"""The real clients of RocketMQ behind one face: produce, consume and, for Java, administration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.helpers.pace import Patience
from tests.helpers.waiting import block_for, wait_for
from tests.interop import builds, probe
from tests.interop.commands import CommandFailedError, Event, JavaRunner, ProcessRunner, Runner, Running

PATIENCE_S = 90.0
# How often the Java clients look at their group without a notice. Left to themselves they wait
# 20 s, and 5.3.3 now and then misses the moment of its start.
REBALANCE_MS = 2000
READ_AGAIN_S = 0.2

# What the Java client says when a query finds nothing: MQClientException with ResponseCode.NO_MESSAGE.
NO_MESSAGE_CODE = 208
QUERY_NOT_FOUND = 22
CONSUMER_NOT_ONLINE = 206


class MqAdminFailedError(AssertionError):
    """A command of mqadmin printed an exception."""


@dataclass(frozen=True)
class Kind:
    """One client: what it is called, how it is started, and what it can do."""

    name: str
    open: Callable[[Path], Runner]
    send_modes: tuple[str, ...] = ("sync",)
    consume_modes: tuple[str, ...] = ("push",)
    makes_unique_keys: bool = True
    tells_queue_of_send: bool = True
    writes_time_as_java: bool = True
    """False if Java reads another time from the client's message ids, and so may look for a message only after it."""


@dataclass(frozen=True)
class Series:
    """A numbered series of messages: what a test sends and therefore expects to be received."""

    topic: str
    count: int = 1
    first: int = 0
    body: str = "body"
    body_size: int = 0
    tags: tuple[str, ...] = ()
    keys: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)

    def arguments(self) -> list[str]:
        """As options of the client programs."""
        named: dict[str, Any] = {"topic": self.topic, "count": self.count, "first": self.first, "body": self.body}
        named |= {"body-size": self.body_size} if self.body_size else {}
        named |= {"tags": ",".join(self.tags)} if self.tags else {}
        named |= {"keys": self.keys} if self.keys else {}
        named |= {"properties": json.dumps(self.properties)} if self.properties else {}
        return options(named)

    def expected(self) -> list[Received]:
        """The messages as they must arrive, in order."""
        return [self.expected_at(index) for index in range(self.first, self.first + self.count)]

    def expected_at(self, index: int) -> Received:
        """The message with this number as it must arrive."""
        return Received(
            hashlib.sha256(self.body_at(index)).hexdigest(),
            self.tags[index % len(self.tags)] if self.tags else "",
            self.keys.replace("{i}", str(index)),
            tuple(sorted(self.properties.items())),
        )

    def body_at(self, index: int) -> bytes:
        """The same bytes that every client program makes for this number."""
        unit = f"{self.body}-{index}".encode()
        if not self.body_size:
            return unit
        return ((unit + b"|") * (self.body_size // len(unit) + 1))[: self.body_size]


@dataclass(frozen=True, order=True)
class Received:
    """The parts of a received message that a test compares."""

    body_sha256: str
    tags: str
    keys: str
    properties: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, event: Event, names: Mapping[str, str]) -> Received:
        """From a `message` event; of its properties only those with the given names."""
        received_properties = event["properties"]
        mine = tuple(sorted((name, received_properties[name]) for name in names if name in received_properties))
        return cls(event["bodySha256"], event.get("tags") or "", event.get("keys") or "", mine)


def seen(events: Iterable[Event], names: Mapping[str, str] | None = None) -> list[Received]:
    """The messages of events, sorted, with those of their properties that are named."""
    return sorted(Received.of(event, names or {}) for event in events)


def queue_positions(events: Iterable[Event]) -> dict[int, list[int]]:
    """The queue offsets of each queue in order of arrival."""
    positions: dict[int, list[int]] = {}
    for event in events:
        positions.setdefault(event["queueId"], []).append(event["queueOffset"])
    return positions


class Client:
    """A real client, ready to run commands against one deployment after the other."""

    def __init__(self, kind: Kind, directory: Path) -> None:
        self.kind = kind
        self._runner = kind.open(directory)

    def produce(self, namesrv: str, series: Series, mode: str = "sync", **more: Any) -> list[Event]:
        """Send a series; the `sent` events (none for oneway)."""
        running = self.start_producing(namesrv, series, mode, **more)
        running.wait(PATIENCE_S)
        return running.named("sent")

    def request(self, namesrv: str, series: Series) -> list[str]:
        """Send a series of requests; the bodies of the replies in order."""
        running = self.start_producing(namesrv, series, "request")
        running.wait(PATIENCE_S)
        return [event["body"] for event in running.named("reply")]

    def start_producing(self, namesrv: str, series: Series, mode: str = "sync", **more: Any) -> Running:
        """Start to send a series; each answer is a `sent` event.

        With `trace=1` (Java, Go) the client stays until it is stopped: ended at once it drops traces that wait.
        """
        return self._runner.start(
            ["produce", *options({"namesrv": namesrv, "mode": mode, "timeout": 200, **more}), *series.arguments()]
        )

    def recall(self, namesrv: str, topic: str, handle: str) -> str:
        """Take a waiting message back (Java 5.3); the id of the message."""
        running = self._runner.start(["recall", *options({"namesrv": namesrv, "topic": topic, "handle": handle})])
        (done,) = [event for event in running.wait(PATIENCE_S) if event["event"] == "done"]
        return str(done["msgId"])

    def start_transacting(self, namesrv: str, series: Series, group: str, **more: Any) -> Running:
        """Send a series in transactions (Java, Go), then answer the broker until it is stopped.

        `states` (commit, rollback, unknown, joined by commas) is what the local work says in turn, `answer` what
        questions are answered with; a question is a `checked` event.
        """
        return self._runner.start(
            ["transact", *options({"namesrv": namesrv, "group": group, "timeout": 200, **more}), *series.arguments()]
        )

    def start_consuming(self, namesrv: str, topic: str, group: str, **more: Any) -> Running:
        """Start to consume; ends when `expect` messages came, `timeout` (s) is over, or it is stopped."""
        return self._runner.start(
            ["consume", *options({"namesrv": namesrv, "topic": topic, "group": group, "timeout": 120, **more})]
        )

    def consume(self, namesrv: str, topic: str, group: str, expect: int, **more: Any) -> list[Event]:
        """Consume until `expect` messages came; the `message` events."""
        running = self.start_consuming(namesrv, topic, group, expect=expect, **more)
        running.wait_until(
            lambda: len([event for event in running.events if event["event"] == "message"]) >= expect,
            PATIENCE_S,
            f"{self.kind.name} received {expect} messages of {topic} in group {group}",
        )
        running.wait(PATIENCE_S)
        return running.named("message")

    def read_topic(self, namesrv: str, topic: str, expect: int = 0) -> list[Event]:
        """Everything in a topic, queue by queue, without a group's offsets (Java).

        Answered sends are there at once, but Apache's ConsumeQueue follows its CommitLog a moment later: reads
        again until `expect` messages are there.
        """

        def read() -> list[Event]:
            running = self.start_consuming(namesrv, topic, "interop-reader", mode="pull")
            running.wait(PATIENCE_S)
            return running.named("message")

        patience = Patience(PATIENCE_S)
        while True:
            with suppress(TimeoutError):
                wait_for(lambda: probe.readable(namesrv, topic) >= expect, "all can be read", patience.left_s)
            messages = read()
            if len(messages) >= expect or patience.is_over:
                return messages
            block_for(READ_AGAIN_S)  # some of a damaged store cannot be read

    def admin(self, namesrv: str, call: str, **more: Any) -> list[Event]:
        """One administration call (Java); its `result` and `message` events."""
        running = self._runner.start(["admin", call, *options({"namesrv": namesrv, **more})])
        running.wait(PATIENCE_S)
        return [event for event in running.events if event["event"] in ("result", "message")]

    def found(self, namesrv: str, topic: str, key: str) -> list[Event]:
        """The messages with a key, none if RocketMQ's client says that there are none (Java)."""
        try:
            return self.admin(namesrv, "query-key", topic=topic, key=key)
        except CommandFailedError as problem:
            if problem.code in (NO_MESSAGE_CODE, QUERY_NOT_FOUND):
                return []
            raise

    def indexed(self, namesrv: str, topic: str, key: str) -> list[Event]:
        """The messages with a key once there is one: Apache's index follows its log (Java)."""
        found: list[Event] = []

        def is_found() -> bool:
            found[:] = self.found(namesrv, topic, key)
            return bool(found)

        wait_for(is_found, f"{key} of {topic} is found", PATIENCE_S)
        return found

    def progress(self, namesrv: str, group: str, topic: str) -> list[tuple[int, int]]:
        """For each queue of a topic: its end and where the group is (Java); empty before the first commit."""
        try:
            (stats,) = self.admin(namesrv, "consume-stats", group=group)
        except CommandFailedError as problem:
            if problem.code == CONSUMER_NOT_ONLINE:
                return []
            raise
        return [(end, at) for name, (end, at) in stats["value"].items() if name.startswith(f"{topic}:")]

    def create_topic(self, namesrv: str, broker: str, topic: str, queues: int = 4) -> None:
        """Create a topic (Java) and wait until the nameserver knows it: the broker answers as soon as it has it."""
        self.admin(namesrv, "create-topic", broker=broker, topic=topic, queues=queues)
        wait_for(lambda: probe.topic_routed(namesrv, topic), f"the nameserver knows {topic}", PATIENCE_S)

    def mqadmin(self, namesrv: str, *words: str, **more: Any) -> str:
        """One command of RocketMQ's mqadmin (Java); what it printed, MqAdminFailedError if there was an exception."""
        text, errors = self.mqadmin_output(namesrv, *words, **more)
        if "Exception" in text + errors:
            raise MqAdminFailedError(text + errors)
        return text

    def mqadmin_output(self, namesrv: str, *words: str, **more: Any) -> tuple[str, str]:
        """What one command of RocketMQ's mqadmin (Java) printed, and its errors."""
        running = self._runner.start(["mqadmin", *options(more), "--", *words, "-n", namesrv])
        (output,) = [event for event in running.wait(PATIENCE_S) if event["event"] == "output"]
        return output["text"], output["errors"]

    def close(self) -> None:
        """End everything that still runs."""
        self._runner.close()


def options(named: Mapping[str, Any]) -> list[str]:
    """`{"body_size": 3}` as `--body-size 3`."""
    return [word for name, value in named.items() for word in ("--" + name.replace("_", "-"), str(value))]


def java_runner(version: str, *flags: str) -> Callable[[Path], Runner]:
    """A function that starts the Java program with a version of RocketMQ in a directory."""

    def start(directory: Path) -> Runner:
        build = builds.java_client(version)
        (directory / "conf").mkdir()
        (directory / "conf" / "logback_tools.xml").write_text("<configuration/>")
        command = [builds.java(), "-Xms32m", "-Xmx256m", *builds.QUICK_JAVA, *flags]
        command += [
            f"-Duser.home={directory}",
            f"-Drocketmq.client.rebalance.waitInterval={REBALANCE_MS}",
            f"-Drocketmq.home.dir={directory}",
            "-Dfile.encoding=UTF-8",
            "-cp",
            f"{build}/classes:{build}/lib/*",
        ]
        return JavaRunner([*command, "interop.Main"], directory, {})

    return start


def _go(directory: Path) -> Runner:
    return ProcessRunner([str(builds.go_client() / "client")], directory, {"HOME": str(directory)})


def _node(directory: Path) -> Runner:
    return ProcessRunner(
        [builds.tool("node"), str(builds.node_client() / "client.js")], directory, {"HOME": str(directory)}
    )


def _cpp(directory: Path) -> Runner:
    script = str(builds.HERE / "cpp" / "client.py")
    return ProcessRunner([str(builds.cpp_client() / "bin/python"), script], directory, {"HOME": str(directory)})


ALL_SENDS = ("sync", "async", "oneway", "batch", "selector")
JAVA_CONSUMES = ("push", "pull", "litepull")
ORDERLY = ("java4", "java4-binary", "java5", "go", "cpp")
REQUESTERS = ("java4", "java4-binary", "go")
# The requester of java5 gets no reply over brokers of 4.9, Apache's included: it looks for itself under another id.
REPLIERS = (*REQUESTERS, "java5")
KINDS = {
    kind.name: kind
    for kind in (
        Kind("java4", java_runner("4.9.7"), ALL_SENDS, JAVA_CONSUMES),
        Kind("java4-binary", java_runner("4.9.7", "-Drocketmq.serialize.type=ROCKETMQ"), ALL_SENDS, JAVA_CONSUMES),
        Kind("java5", java_runner("5.3.3"), ALL_SENDS, JAVA_CONSUMES),
        Kind("go", _go, ALL_SENDS),
        Kind("node", _node, makes_unique_keys=False),
        Kind("cpp", _cpp, ALL_SENDS, ("push", "pull"), tells_queue_of_send=False, writes_time_as_java=False),
    )
}

JAVA55 = Kind("java55", java_runner("5.5.0"), ALL_SENDS, (*JAVA_CONSUMES, "pop"))
"""The newest client over remoting; only tests of POP use it."""

# What a client does that Apache 4.9 cannot answer, and CometMQ can.
APACHE_CANNOT = {
    ("java5", "litepull"): "the lite pull consumer of 5.x asks by code 361, which Apache 4.9 does not know",
    ("cpp", "batch"): "Apache takes the `batch: 1` of the C++ client for false and stores all as one message",
}
