"""broker drain: producers move without an error, nothing acknowledged is lost, and what is left is said."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import pytest
from tests.broker.heartbeats import heartbeat
from tests.broker.wire import Wire
from tests.cli.conftest import CommandLine
from tests.helpers.waiting import real_time, until
from tests.proxy.client import Client

from cometmq.client import ConsumeFromWhere, Message, MessageExt, Producer, PushConfig, PushConsumer
from cometmq.client.admin import Admin
from cometmq.message.hosts import parse_address
from cometmq.proxy.protocol import v2
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.testing import ProcessCluster, free_port

ROUTES_EVERY_S = 0.5


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessCluster]:
    """Two brokers, and clients of this process that ask for routes twice a second."""
    monkeypatch.setattr("cometmq.client.instance.REFRESH_S", ROUTES_EVERY_S)
    with ProcessCluster(2, data=tmp_path) as running:
        yield running


class Traffic:
    """Producers of a plain and of an ordered topic, and a group that reads both."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self.acknowledged: list[str] = []
        self.brokers: list[str] = []
        self.received: set[str] = set()
        self.failures: list[BaseException] = []
        self._stop = asyncio.Event()

    async def take(self, messages: Sequence[MessageExt]) -> None:
        self.received.update(message.body.decode() for message in messages)

    async def produce(self, topic: str, *, ordered: bool) -> None:
        number = 0
        async with Producer(f"of-{topic}", self.namesrv) as producer:
            while not self._stop.is_set():
                number += 1
                body = f"{topic}-{number}"
                key = f"key-{number % 7}" if ordered else None
                try:
                    sent = await producer.send(Message(topic, body.encode()), sharding_key=key)
                except Exception as error:
                    self.failures.append(error)
                    continue
                self.acknowledged.append(body)
                self.brokers.append(sent.queue.broker_name)
                await real_time(0.002)

    async def until_on(self, broker: str) -> None:
        """Wait until a message of now is on a broker."""
        begin = len(self.brokers)
        await until(lambda: broker in self.brokers[begin:])

    async def end(self) -> None:
        """Stop the producers, and wait until everything is received."""
        self._stop.set()
        await until(lambda: self.received.issuperset(self.acknowledged))


async def test_a_drained_broker_loses_no_message_and_no_send_fails(two: ProcessCluster) -> None:
    cometmq = CommandLine(two.namesrv_address)

    async def run(*words: str) -> object:
        done = await asyncio.to_thread(cometmq, *words)
        assert done.code == 0, done.err
        return done.json() if "json" in words else None

    await run("topic", "create", "plain", "--queues", "2")
    await run("topic", "create", "sorted", "--queues", "2", "--order")
    drain = ("broker", "drain", "broker-1", "--settle", "2s", "--at-most", "60s", "-o", "json")
    traffic = Traffic(two.namesrv_address)
    config = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer = PushConsumer("readers", traffic.take, two.namesrv_address, config=config)
    await consumer.subscribe("plain")
    await consumer.subscribe("sorted")
    async with consumer:
        producing = [
            asyncio.create_task(traffic.produce("plain", ordered=False)),
            asyncio.create_task(traffic.produce("sorted", ordered=True)),
        ]
        await traffic.until_on("broker-1")
        drained = await run(*drain)
        assert drained == {
            "broker": "broker-1",
            "drained": True,
            "delayed": 0,
            "transactions": 0,
            "slave_bytes": None,
            "groups": [],
        }
        begin = len(traffic.brokers)
        await traffic.until_on("broker-0")
        assert set(traffic.brokers[begin:]) == {"broker-0"}
        await run("broker", "drain", "broker-1", "--undo")
        await traffic.until_on("broker-1")
        await run(*drain)
        await asyncio.to_thread(two.kill_broker, 1)  # all that it had is read
        await traffic.until_on("broker-0")
        await traffic.end()
        await asyncio.gather(*producing)
    assert traffic.failures == []


def test_what_is_left_is_said_and_the_time_has_a_limit(two: ProcessCluster) -> None:
    cometmq = CommandLine(two.namesrv_address)
    drain = ("broker", "drain", "broker-0", "--settle", "200ms", "--at-most", "1s")
    cometmq("topic", "create", "here", "--queues", "2", "--broker", "broker-0")
    refused = cometmq(*drain)
    assert refused.code == 1
    assert "no other broker accepts messages for here; nothing was changed" in refused.err
    assert cometmq("broker", "config", "get", "brokerPermission", "--broker", "broker-0", "-o", "json").json() == [
        {"broker": "broker-0", "key": "brokerPermission", "value": "6"}
    ]
    cometmq("produce", "here", "--count", "5", "--batch", "1")
    cometmq("consume", "here", "--group", "slow", "--from-beginning", "--max", "2")
    cometmq("produce", "here", "--count", "10", "--batch", "1")
    cometmq("topic", "create", "here", "--queues", "2")
    cometmq("produce", "here", "--delay", "1h", "--count", "3", "--batch", "1")
    shown = cometmq(*drain, "--dry-run")
    assert (shown.code, shown.out.splitlines()[-1].split()) == (0, ["broker-0", "brokerPermission", "6", "4"])
    late = cometmq(*drain)
    assert late.code == 3
    assert "for group slow, which has no members" in late.err
    assert "delayed messages" in late.err
    assert "broker-0 still accepts no new messages" in late.err
    skipped = cometmq(*drain, "--skip-idle", "-o", "json").json()
    assert (skipped["drained"], skipped["groups"]) == (False, [])
    assert skipped["delayed"] > 0
    assert cometmq("broker", "drain", "broker-0", "--undo").code == 0


async def test_a_dry_run_lists_the_producers_whose_sends_fail_while_the_broker_restarts(two: ProcessCluster) -> None:
    cometmq = CommandLine(two.namesrv_address)
    host, port = parse_address(two.broker_addresses[0])
    clients = {"go-1": ("GO", 317), "go-2": ("GO", 317), "node": ("JAVA", 121), "java": ("JAVA", 409)}
    wires = []
    for client, (language, version) in clients.items():
        wire = Wire(*await asyncio.open_connection(host, port))
        wires.append(wire)
        beat = wire.command(RequestCode.HEART_BEAT, body=heartbeat(client, producer=f"of-{language}-{version}"))
        beat.language, beat.version = language, version
        assert (await wire.ask(beat)).code == ResponseCode.SUCCESS
        beat = wire.command(RequestCode.HEART_BEAT, body=heartbeat(client, producer="CLIENT_INNER_PRODUCER"))
        assert (await wire.ask(beat)).code == ResponseCode.SUCCESS
    shown = await asyncio.to_thread(cometmq, "broker", "drain", "broker-0", "--force", "--dry-run")
    assert shown.code == 0, shown.err
    rows = {tuple(line.split()[:4]) for line in shown.out.splitlines()}
    assert {("GO", "317", "2", "of-GO-317"), ("JAVA", "121", "1", "of-JAVA-121")} <= rows
    assert "CLIENT_INNER_PRODUCER" not in shown.out
    assert "may fail" in next(line for line in shown.out.splitlines() if "of-GO-317" in line)
    assert "may fail" in next(line for line in shown.out.splitlines() if "of-JAVA-121" in line)
    assert "another broker" in next(line for line in shown.out.splitlines() if "V4_9_8" in line)
    for wire in wires:
        await wire.close()


async def test_a_dry_run_says_that_a_drain_fails_sends_over_the_brokers_own_grpc_endpoint(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    with ProcessCluster(data=tmp_path, broker_keys={"grpcServerPort": str(port)}) as running:
        cometmq = CommandLine(running.namesrv_address)
        for topic in ("plain", "other"):
            assert (await asyncio.to_thread(cometmq, "topic", "create", topic)).code == 0
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            client = Client(channel)
            stream = await client.publish("plain", "other")
            assert (await client.send("plain", b"before")).status.code == v2.Code.OK
            drain = ("broker", "drain", "broker-0", "--force")
            shown = await asyncio.to_thread(cometmq, *drain, "--dry-run")
            assert shown.code == 0, shown.err
            (row,) = [line for line in shown.out.splitlines() if "PYTHON" in line]
            assert row.split()[:6] == ["PYTHON", "5", "(gRPC)", "1", "other,", "plain"]
            assert "fail, also in a drain" in row
            drained = await asyncio.to_thread(cometmq, *drain, "--settle", "0s", "--at-most", "20s")
            assert drained.code == 0, drained.err
            assert (await client.send("plain", b"after")).status.code == v2.Code.FORBIDDEN
            stream.call.cancel()


async def test_a_slave_that_has_everything_is_an_end(tmp_path: Path) -> None:
    with ProcessCluster(2, slaves=1, data=tmp_path) as running:
        cometmq = CommandLine(running.namesrv_address)
        await asyncio.to_thread(cometmq, "topic", "create", "copied", "--queues", "1")
        await asyncio.to_thread(cometmq, "consume", "copied", "--group", "slow", "--from-beginning", "--until-end")
        await asyncio.to_thread(cometmq, "produce", "copied", "--count", "20", "--batch", "1")
        words = ("broker", "drain", "broker-0", "--until", "slave", "--settle", "200ms", "--at-most", "60s")
        done = await asyncio.to_thread(cometmq, *words, "-o", "json")
        assert done.code == 0, done.err
        assert (done.json()["drained"], done.json()["slave_bytes"]) == (True, 0)
        async with Admin(running.namesrv_address) as admin:
            routes = (await admin.topic_route("copied")).queue_datas
        assert {queues.broker_name: queues.perm for queues in routes} == {"broker-0": 4, "broker-1": 6}
