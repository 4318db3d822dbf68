"""Apache's own clients of RocketMQ 5 against the endpoint of a broker, and against Apache's own of 5.5.0.

Each client is one process that runs all scenarios: messages, order, delay, a listener that fails once, transactions.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import grpc
import pytest
from tests.helpers.waiting import answered
from tests.interop import builds
from tests.interop.conftest import unavailable
from tests.interop.five import programs
from tests.interop.five.apache_endpoint import start_apache
from tests.interop.five.tables import Endpoint, make_group, make_topic, send_a_probe, wait_until_ready
from tests.interop.systems import SMALL_JAVA, System, start_namesrv
from tests.proxy.client import Client, receive

from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.proxy.proxy_config import ProxyConfig
from cometmq.proxy.standalone import FleetProxy
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.testing import ProcessCluster, free_port

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]  # the first run compiles the clients

TOPICS = {"N": "NORMAL", "F": "FIFO", "D": "DELAY", "X": "TRANSACTION"}
MESSAGES = [f"m{number}" for number in range(10)]
EXPECTED = {
    "normal": MESSAGES,
    "fifo": [f"f{number}" for number in range(6)],
    "delay": ["later"],
    "push": sorted([*MESSAGES, "m3"]),
    "transactions": ["commit", "orphan"],
}
GROUPS = ("GN", "GF", "GD", "GP", "GX")
RETRY_POLICY = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000]}}
PATIENCE_S = 240
KEYS = {"transactionTimeOut": "2000", "transactionCheckInterval": "3000"}
TAKES_TLS = (*SMALL_JAVA, "-Dtls.server.mode=permissive")

CLIENTS: dict[str, tuple[Callable[[], list[str]], tuple[str, ...], tuple[str, ...]]] = {
    "java-5.2.0-tls": (partial(programs.java, "5.2.0", "Five"), ("tls",), tuple(EXPECTED)),
    "java-5.0.7-plain": (partial(programs.java, "5.0.7", "Five"), ("plain",), tuple(EXPECTED)),
    "python-5.1.2": (partial(programs.python, "client.py"), (), (*EXPECTED, "refused")),
    "node-1.0.8": (partial(programs.node, "client.js"), (), tuple(EXPECTED)),
    "rust-5.0.0": (programs.rust, (), ("normal", "fifo")),
}
"""Name → its command, the arguments after endpoint and run, and the scenarios that it has."""
BEFORE_SETTINGS = '"settings" is null'
"""So Apache's endpoint refuses a receive that comes before the settings of its client; ours refuses none."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ProcessCluster, dict[str, Endpoint]]]:
    """Our cluster, and for each system an endpoint that takes messages."""
    port = free_port("127.0.0.1")
    directory = tmp_path_factory.mktemp("apache55")
    with ExitStack() as running:
        cluster = running.enter_context(ProcessCluster(broker_keys={**KEYS, "grpcServerPort": str(port)}))
        try:
            namesrv = running.enter_context(start_namesrv(System.COMETMQ, directory / "namesrv"))
            apache, address = start_apache(directory / "broker", namesrv.address, KEYS, TAKES_TLS)
        except builds.ToolMissingError as problem:
            unavailable(problem)
        running.enter_context(apache)
        ours = Endpoint(f"127.0.0.1:{port}", f"127.0.0.1:{cluster._ports[0]}", cluster.namesrv_address)
        endpoints = {"cometmq": ours, "apache55": Endpoint(address, apache.address, namesrv.address)}
        for endpoint in endpoints.values():
            asyncio.run(send_a_probe(endpoint))
        yield cluster, endpoints


@pytest.fixture
def endpoints(servers: tuple[ProcessCluster, dict[str, Endpoint]]) -> dict[str, Endpoint]:
    """For each system an endpoint."""
    return servers[1]


async def _make_tables(endpoint: Endpoint, run: str, queues: int = 4) -> None:
    """Make the topics of one client, each with its type, and its groups, which Apache's endpoint does not make."""
    async with RemotingClient() as client:
        for name, kind in TOPICS.items():
            await make_topic(client, endpoint.broker, name + run, kind, queues)
        for name in GROUPS:
            settings = {"consumeMessageOrderly": name == "GF", "retryMaxTimes": 1000, "groupRetryPolicy": RETRY_POLICY}
            await make_group(client, endpoint.broker, name + run, **settings)
    await wait_until_ready(endpoint, [name + run for name in TOPICS])


@pytest.mark.parametrize("name", CLIENTS)
def test_an_official_client_does_the_same_as_with_apache(
    endpoints: dict[str, Endpoint], tmp_path: Path, name: str
) -> None:
    make, arguments, scenarios = CLIENTS[name]
    try:
        command = make()
    except builds.ToolMissingError as problem:
        unavailable(problem)
    run = name.replace(".", "_")
    started = {}
    for system, endpoint in endpoints.items():  # at the same time: they wait most of it
        asyncio.run(_make_tables(endpoint, run))
        home = tmp_path / system
        home.mkdir()
        with (home / "out").open("w") as out:
            started[system] = subprocess.Popen(
                [*command, endpoint.address, run, *arguments],
                stdout=out,
                stderr=out,
                env={**os.environ, "HOME": str(home)},
            )
    try:
        for program in started.values():
            program.wait(PATIENCE_S)
    finally:
        for program in started.values():
            program.kill()
            program.wait()
    for system in started:
        told = (tmp_path / system / "out").read_text()
        lines = [json.loads(line) for line in told.splitlines() if line.startswith('{"scenario"')]
        got = {line["scenario"]: line["got"] for line in lines}
        if system == "apache55" and "refused" in got:
            got["refused"] = [text for text in got["refused"] if BEFORE_SETTINGS not in text]
        assert got == {scenario: EXPECTED.get(scenario, []) for scenario in scenarios}, f"{system}: {told[-4000:]}"


async def _ask(
    client: RemotingClient, broker: str, code: int, fields: dict[str, str], body: bytes = b""
) -> RemotingCommand:
    answer = await client.invoke(broker, code, None, body, ext=fields, timeout_s=20)
    assert answer.code == 0, answer
    return answer


async def test_exactly_the_named_client_tells_its_stacks_and_verifies_messages(
    endpoints: dict[str, Endpoint], tmp_path: Path
) -> None:
    """Apache's broker with its endpoint in one process answers these questions with code 207."""
    endpoint = endpoints["cometmq"]
    await _make_tables(endpoint, "listen")
    command = [*programs.java("5.2.0", "Five"), endpoint.address, "listen", "listen"]
    environment = {**os.environ, "HOME": str(tmp_path)}
    with programs.running(command, environment, tmp_path / "errors") as (_, told):
        async with RemotingClient() as client:
            fields = {"producerGroup": "P", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0"}
            fields |= {"sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "0", "topic": "Dlisten"}
            sent = await _ask(client, endpoint.broker, RequestCode.SEND_MESSAGE, {**fields, "properties": ""}, b"m")
            groups = {"GPlisten": 2, "GNlisten": 1}
            members = [
                (group, member)
                for group, count in groups.items()
                for member in await answered(partial(_members, client, endpoint.broker, group, count))
            ]
            for group, member in members:
                who = {"consumerGroup": group, "clientId": member}
                code = RequestCode.GET_CONSUMER_RUNNING_INFO
                ask = partial(client.invoke, endpoint.broker, code, ext={**who, "jstackEnable": "true"}, timeout_s=20)
                stacks = await answered(partial(_stacks, ask))  # a cold client may need longer than the broker waits
                assert "java.lang.Thread.run(" in stacks
                results = []
                for _ in range(3):
                    named = {**who, "msgId": sent.ext_fields["msgId"]}
                    answer = await _ask(client, endpoint.broker, RequestCode.CONSUME_MESSAGE_DIRECTLY, named)
                    results.append(json.loads(answer.body)["consumeResult"])
                assert results == ["CR_SUCCESS", "CR_SUCCESS", "CR_LATER"]
                number = member.split("@")[2]  # Java's client counts its clients
                told.wait(lambda: len(told.all) >= 3, "the client has told of its three messages")
                assert told.all == [(number, "m")] * 3
                told.all.clear()


async def _stacks(ask: Callable[[], Awaitable[RemotingCommand]]) -> str:
    """The stacks that a client tells; empty if it took too long."""
    answer = await ask()
    assert answer.code == 0 or "did not respond within" in str(answer.remark), answer
    return json.loads(answer.body)["jstack"] if answer.code == 0 else ""


async def _members(client: RemotingClient, broker: str, group: str, count: int) -> list[str]:
    """The client ids of a group, once there are so many."""
    fields = {"consumerGroup": group}
    answer = await client.invoke(broker, RequestCode.GET_CONSUMER_LIST_BY_GROUP, None, ext=fields, timeout_s=20)
    members = json.loads(answer.body)["consumerIdList"] if answer.code == 0 and answer.body else []
    return members if len(members) == count else []


@pytest.mark.parametrize("system", ["cometmq", "apache55"])
async def test_a_failing_message_stops_its_own_message_group_and_with_apache_its_queue(
    servers: tuple[ProcessCluster, dict[str, Endpoint]], tmp_path: Path, system: str
) -> None:
    cluster, endpoints = servers
    await _make_tables(endpoints[system], "groups", queues=1)
    command = [*programs.java("5.2.0", "Groups"), endpoints[system].address, "groups"]
    environment = {**os.environ, "HOME": str(tmp_path)}
    with programs.running(command, environment, tmp_path / "errors") as (process, told):

        def tell(line: str) -> None:
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()

        tell("fail b0")
        tell("send b0 b1 b2")
        told.wait(lambda: "b0" in told.bodies("failed"), "the first message fails")
        tell("send a0 c0 a1 c1")
        if system == "cometmq":
            told.wait(lambda: set(told.bodies("got")) == {"a0", "a1", "c0", "c1"}, "the other groups go on")
            cluster.kill_broker(0)
            cluster.start_broker(0)
        else:
            times = len(told.bodies("failed"))
            told.wait(lambda: len(told.bodies("failed")) >= times + 2, "it fails again and again")
            assert not told.bodies("got")
        tell("send a2 b3 c2")
        if system == "cometmq":
            told.wait(lambda: {"a2", "c2"} <= set(told.bodies("got")), "the other groups go on after the restart")
            assert not any(body.startswith("b") for body in told.bodies("got"))
        tell("fail")
        told.wait(lambda: len(set(told.bodies("got"))) == 10, "all are consumed")
        order = list(dict.fromkeys(told.bodies("got")))
        assert {group: [body for body in order if body.startswith(group)] for group in "abc"} == {
            "a": ["a0", "a1", "a2"],
            "b": ["b0", "b1", "b2", "b3"],
            "c": ["c0", "c1", "c2"],
        }


async def test_tags_of_one_hash_are_told_apart_by_every_endpoint(endpoints: dict[str, Endpoint]) -> None:
    proxy = FleetProxy(
        ProxyConfig(namesrv_addr=endpoints["apache55"].namesrv, bind_address="127.0.0.1", grpc_server_port=0)
    )
    await proxy.start()
    try:
        for run, (system, address) in enumerate(
            [*((name, endpoint.address) for name, endpoint in endpoints.items()), ("apache55", proxy.address)]
        ):
            topic, group = f"Tags{run}", f"GTags{run}"
            async with RemotingClient() as remoting:
                await make_topic(remoting, endpoints[system].broker, topic, "NORMAL", 1)
                await make_group(remoting, endpoints[system].broker, group)
            await wait_until_ready(endpoints[system], [topic])
            async with grpc.aio.insecure_channel(address) as channel:
                client = Client(channel)
                await client.subscribe(group, topic)
                for tag in ("BB", "Aa", "BB", "Aa"):
                    sent = await client.send(topic, tag.encode(), tag=tag)
                    assert sent.status.code == Code.OK, sent
                request = receive(topic, group, {"cometmq": "broker-0", "apache55": "broker-a"}[system])
                request.filter_expression.expression = "Aa"
                found: list[bytes] = []
                while len(found) < 2:
                    status, *answers = await client.receive(request)
                    assert status.status.code in (Code.OK, Code.MESSAGE_NOT_FOUND), status
                    found += [answer.message.body for answer in answers[:-1]]
                assert found == [b"Aa", b"Aa"], (system, address)
    finally:
        await proxy.stop()


async def test_our_proxy_before_apaches_broker_locks_queues_and_makes_each_client_a_member(
    endpoints: dict[str, Endpoint],
) -> None:
    apache = endpoints["apache55"]
    await _make_tables(apache, "fleet", queues=1)
    proxy = FleetProxy(ProxyConfig(namesrv_addr=apache.namesrv, bind_address="127.0.0.1", grpc_server_port=0))
    await proxy.start()
    try:
        async with grpc.aio.insecure_channel(proxy.address) as channel, RemotingClient() as remoting:
            one, other = Client(channel), Client(channel)
            streams = {client: await client.subscribe("GFfleet", "Ffleet") for client in (one, other)}
            for body in (b"a0", b"b0"):
                sent = await one.send("Ffleet", body, message_group=body[:1].decode())
                assert sent.status.code == Code.OK, sent
            request = receive("Ffleet", "GFfleet", "broker-a", batch_size=1)
            _, first, _ = await one.receive(request)
            assert first.message.body == b"a0"
            locked = await other.receive(request)
            assert locked[0].status.code == Code.MESSAGE_NOT_FOUND
            entry = v2.AckMessageEntry(receipt_handle=first.message.system_properties.receipt_handle)
            names = {"group": v2.Resource(name="GFfleet"), "topic": v2.Resource(name="Ffleet")}
            acked = await one.ask("AckMessage", v2.AckMessageRequest(**names, entries=[entry]))
            assert acked.status.code == Code.OK, acked
            _, second, _ = await other.receive(request)
            assert second.message.body == b"b0"

            assert set(await _members(remoting, apache.broker, "GFfleet", 2)) == {one.client_id, other.client_id}
            for client, stream in streams.items():
                who = {"consumerGroup": "GFfleet", "clientId": client.client_id, "jstackEnable": "true"}
                code = RequestCode.GET_CONSUMER_RUNNING_INFO
                asked = asyncio.create_task(_ask(remoting, apache.broker, code, who))
                nonce = (await stream.read()).print_thread_stack_trace_command.nonce
                trace = v2.ThreadStackTrace(nonce=nonce, thread_stack_trace=client.client_id)
                command = v2.TelemetryCommand(status=v2.Status(code=Code.OK), thread_stack_trace=trace)
                await stream.call.write(command)
                assert json.loads((await asked).body)["jstack"] == client.client_id
    finally:
        await proxy.stop()
