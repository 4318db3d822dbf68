"""Apache's own clients of RocketMQ 5 against the endpoint of a broker, and against Apache's own of 5.5.0.

Each client is one process that runs all scenarios: messages, order, delay, a listener that fails once, transactions.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.interop import builds
from tests.interop.conftest import unavailable
from tests.interop.five.apache_endpoint import start_apache
from tests.interop.five.tables import make_group, make_topic
from tests.interop.systems import SMALL_JAVA, System, start_namesrv

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
PATIENCE_S = 240
KEYS = {"transactionTimeOut": "2000", "transactionCheckInterval": "3000"}
APACHE_KEYS = {**KEYS, "transactionOpBatchInterval": "86400000", "transactionOpMsgMaxSize": "1"}
"""Apache notes the end of each transaction at once, else in batches of 3 seconds, and asks about ended ones in between.

The thread of these batches (TransactionalOpBatchService) takes a whole processor from the first batch on until the
interval has passed that follows it: after this one no test runs any more.
"""


def _java(version: str, mode: str) -> Callable[[], list[str]]:
    def command() -> list[str]:
        built = builds.java_client_five(version)
        path = f"{built / 'classes'}:{built / 'lib'}/*"
        return [builds.java(), *builds.QUICK_JAVA, "-Xmx192m", "-cp", path, "Five", mode]

    return command


def _rust() -> list[str]:
    return [str(builds.rust_client_five() / "debug" / "interop-rust-client-five")]


def _python() -> list[str]:
    program = Path(__file__).parent / "python" / "client.py"
    return [str(builds.python_client_five() / "bin" / "python"), str(program)]


def _node() -> list[str]:
    return ["node", str(builds.node_client_five() / "client.js")]


TAKES_TLS = (*SMALL_JAVA, "-Dtls.server.mode=permissive")

CLIENTS: dict[str, tuple[Callable[[], list[str]], tuple[str, ...]]] = {
    "java-5.2.0-tls": (_java("5.2.0", "tls"), tuple(EXPECTED)),
    "java-5.0.7-plain": (_java("5.0.7", "plain"), tuple(EXPECTED)),
    "python-5.1.2": (_python, tuple(EXPECTED)),
    "node-1.0.8": (_node, tuple(EXPECTED)),
    "rust-5.0.0": (_rust, ("normal", "fifo")),
}
"""Name → its command, and the scenarios that it has."""
WITH_APACHE = ("java-5.2.0-tls", "java-5.0.7-plain")
"""Clients that Apache's endpoint is tried with, too. Python's fails there when a receive comes before the settings, and
Node's waits for ever when the settings come before it waits for them."""


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[str, str]]]:
    """For each system the address of an endpoint, and that of the broker behind it."""
    port = free_port("127.0.0.1")
    directory = tmp_path_factory.mktemp("apache55")
    with ExitStack() as running:
        cluster = running.enter_context(ProcessCluster(broker_keys={**KEYS, "grpcServerPort": str(port)}))
        try:
            namesrv = running.enter_context(start_namesrv(System.COMETMQ, directory / "namesrv"))
            apache, address = start_apache(directory / "broker", namesrv.address, APACHE_KEYS, TAKES_TLS)
        except builds.ToolMissingError as problem:
            unavailable(problem)
        running.enter_context(apache)
        ours = f"127.0.0.1:{port}", f"127.0.0.1:{cluster._ports[0]}"
        yield {"cometmq": ours, "apache55": (address, apache.address)}


async def _make_tables(broker: str, run: str) -> None:
    """Make the topics of one client, each with its type, and its groups, which Apache's endpoint does not make."""
    async with RemotingClient() as client:
        for name, kind in TOPICS.items():
            await make_topic(client, broker, name + run, kind, queues=4)
        for name in GROUPS:
            await make_group(client, broker, name + run, consumeMessageOrderly=name == "GF")


@pytest.mark.parametrize("name", CLIENTS)
def test_an_official_client_does_all_that_it_can(
    endpoints: dict[str, tuple[str, str]], tmp_path: Path, name: str
) -> None:
    make, scenarios = CLIENTS[name]
    try:
        command = make()
    except builds.ToolMissingError as problem:
        unavailable(problem)
    mode = [command.pop()] if name.startswith("java") else []
    run = name.replace(".", "_")
    programs = {}
    for system, (address, broker) in endpoints.items():  # at the same time: they wait most of it
        if system == "apache55" and name not in WITH_APACHE:
            continue
        asyncio.run(_make_tables(broker, run))
        home = tmp_path / system
        home.mkdir()
        with (home / "out").open("w") as out:
            programs[system] = subprocess.Popen(
                [*command, address, run, *mode], stdout=out, stderr=out, env={**os.environ, "HOME": str(home)}
            )
    try:
        for program in programs.values():
            program.wait(PATIENCE_S)
    finally:
        for program in programs.values():
            program.kill()
            program.wait()
    for system in programs:
        told = (tmp_path / system / "out").read_text()
        lines = [json.loads(line) for line in told.splitlines() if line.startswith('{"scenario"')]
        got = {line["scenario"]: line["got"] for line in lines}
        assert got == {scenario: EXPECTED[scenario] for scenario in scenarios}, f"{system}: {told[-4000:]}"


async def _ask(
    client: RemotingClient, broker: str, code: int, fields: dict[str, str], body: bytes = b""
) -> RemotingCommand:
    answer = await client.invoke(broker, code, None, body, ext=fields, timeout_s=20)
    assert answer.code == 0, answer
    return answer


async def test_javas_client_tells_its_stacks_and_verifies_messages(
    endpoints: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    """Apache's broker with its endpoint in one process answers these questions with code 207."""
    address, broker = endpoints["cometmq"]
    command = _java("5.2.0", "listen")()
    await _make_tables(broker, "listen")
    program = subprocess.Popen(
        [*command[:-1], address, "listen", "listen"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    try:
        async with RemotingClient() as client:
            member = await _member(client, broker, "GPlisten")
            who = {"consumerGroup": "GPlisten", "clientId": member}
            code = RequestCode.GET_CONSUMER_RUNNING_INFO
            told = json.loads((await _ask(client, broker, code, {**who, "jstackEnable": "true"})).body)
            assert "java.lang.Thread.run(" in told["jstack"]
            fields = {"producerGroup": "P", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0"}
            fields |= {"sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "0", "topic": "Dlisten"}
            sent = await _ask(client, broker, RequestCode.SEND_MESSAGE, {**fields, "properties": ""}, b"m")
            results = []
            for _ in range(3):
                named = {**who, "msgId": sent.ext_fields["msgId"]}
                answer = await _ask(client, broker, RequestCode.CONSUME_MESSAGE_DIRECTLY, named)
                results.append(json.loads(answer.body)["consumeResult"])
            assert results == ["CR_SUCCESS", "CR_SUCCESS", "CR_LATER"]
    finally:
        program.kill()
        program.communicate()


async def _member(client: RemotingClient, broker: str, group: str) -> str:
    """The client id of the only member of a group, once it is there."""
    for _ in range(300):
        fields = {"consumerGroup": group}
        answer = await client.invoke(broker, RequestCode.GET_CONSUMER_LIST_BY_GROUP, None, ext=fields, timeout_s=20)
        if answer.code == 0 and answer.body:
            (member,) = json.loads(answer.body)["consumerIdList"]
            return str(member)
        await asyncio.sleep(0.1)
    raise TimeoutError(f"nobody joins {group}")
