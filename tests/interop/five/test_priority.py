"""Priorities of Apache's clients of RocketMQ 5: the same order from a CometMQ broker and from Apache's of 5.5.0.

Retries and delayed messages are where they differ: CometMQ's keep their priorities.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.broker.wire import records, send_header
from tests.helpers.waiting import answered
from tests.interop import builds
from tests.interop.conftest import unavailable
from tests.interop.five import programs
from tests.interop.five.apache_endpoint import start_apache
from tests.interop.five.tables import Endpoint, make_group, make_topic, send_a_probe, wait_until_ready
from tests.interop.systems import SMALL_JAVA, System, start_namesrv
from tests.proxy.client import Client

from cometmq.message.properties import PRIORITY
from cometmq.proxy.protocol.v2 import Code, MessageType
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import GetMaxOffsetRequestHeader
from cometmq.remoting.pop_headers import PopMessageRequestHeader
from cometmq.testing import ProcessCluster, free_port

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

QUEUES = 4
CLIENTS: dict[str, Callable[[], list[str]]] = {
    "java-5.2.0": partial(programs.java, "5.2.0", "Levels"),
    "python-5.1.2": partial(programs.python, "levels.py"),
}
LEVELS = ["3.1 3", "9.4 9", "3.5 3", "2.3 2", "1.0 1", "1.7 1", "0.2 0", "0.6 0"]
"""What comes, each with its priority: by level, and in a level in the order of the sends."""
PATIENCE_S = 120
EXCEPTION = "org.apache.rocketmq.proxy.common.ProxyException: "
"""Stands before some of the texts of Apache's endpoint."""
RETRY_POLICY = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000]}}


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Endpoint]]:
    """For each system an endpoint that takes messages."""
    port = free_port("127.0.0.1")
    directory = tmp_path_factory.mktemp("apache55")
    with ExitStack() as running:
        cluster = running.enter_context(ProcessCluster(broker_keys={"grpcServerPort": str(port)}))
        try:
            namesrv = running.enter_context(start_namesrv(System.COMETMQ, directory / "namesrv"))
            apache, address = start_apache(directory / "broker", namesrv.address, {}, SMALL_JAVA)
        except builds.ToolMissingError as problem:
            unavailable(problem)
        running.enter_context(apache)
        ours = Endpoint(f"127.0.0.1:{port}", f"127.0.0.1:{cluster._ports[0]}", cluster.namesrv_address)
        found = {"cometmq": ours, "apache55": Endpoint(address, apache.address, namesrv.address)}
        for endpoint in found.values():
            asyncio.run(send_a_probe(endpoint))
        yield found


async def _make_tables(endpoint: Endpoint, run: str, kind: str = "PRIORITY") -> None:
    async with RemotingClient() as client:
        await make_topic(client, endpoint.broker, f"P{run}", kind, QUEUES)
        await make_group(client, endpoint.broker, f"GL{run}", retryMaxTimes=16, groupRetryPolicy=RETRY_POLICY)
    await wait_until_ready(endpoint, [f"P{run}"])


@pytest.mark.parametrize("name", CLIENTS)
def test_an_official_client_gets_the_order_of_apache(endpoints: dict[str, Endpoint], tmp_path: Path, name: str) -> None:
    try:
        command = CLIENTS[name]()
    except builds.ToolMissingError as problem:
        unavailable(problem)
    run = name.replace(".", "_")
    got = {}
    for system, endpoint in endpoints.items():
        asyncio.run(_make_tables(endpoint, run))
        program = subprocess.run(
            [*command, endpoint.address, run],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env={**os.environ, "HOME": str(tmp_path)},
            check=False,
        )
        lines = [json.loads(line) for line in program.stdout.splitlines() if line.startswith('{"scenario"')]
        got[system] = lines[0]["got"] if lines else [program.stdout[-2000:] + program.stderr[-2000:]]
    assert got == dict.fromkeys(endpoints, LEVELS)


async def _levels(endpoint: Endpoint, topic: str, values: list[str], more: str = "") -> list[str]:
    """The queues that messages with these priorities get, when the producer asks for queue 1."""
    async with RemotingClient() as client:
        found = []
        for value in values:
            header = send_header(topic, queue_id=1, properties=f"{PRIORITY}\x01{value}{more}")
            answer = await client.invoke(endpoint.broker, RequestCode.SEND_MESSAGE_V2, header, b"x", timeout_s=20)
            found.append(answer.ext_fields["queueId"] if answer.code == 0 else f"{answer.code} {answer.remark}")
    return found


@pytest.mark.parametrize("kind", ["PRIORITY", "NORMAL"])
async def test_sends_over_remoting_get_the_queues_of_apache(endpoints: dict[str, Endpoint], kind: str) -> None:
    values = ["0", "2", "3", "4", "99", "+2", "-1", "-0", "2147483647", "2147483648", "high", "1.0", " 2"]
    expected = ["0", "2", "3", "3", "3", "2", "1", "0", "3", "1", "1", "1", "1"]
    found = {}
    for system, endpoint in endpoints.items():
        await _make_tables(endpoint, f"raw{kind}", kind)
        found[system] = await _levels(endpoint, f"Praw{kind}", values)
        sharded = await _levels(endpoint, f"Praw{kind}", ["3"], "\x02__SHARDINGKEY\x01g")
        assert sharded == ["1"], system
    assert found == dict.fromkeys(endpoints, expected)


async def test_wrong_messages_over_grpc_are_refused_as_by_apache(endpoints: dict[str, Endpoint]) -> None:
    asked: list[dict[str, Any]] = [
        {"priority": -1, "message_type": MessageType.PRIORITY},
        {"message_type": MessageType.NORMAL},
        {"priority": 1, "message_group": "g", "message_type": MessageType.FIFO},
        {"priority": 1, "message_type": MessageType.PRIORITY},
        {"priority": 2**31 - 1, "message_type": MessageType.PRIORITY},
    ]
    found = {}
    for system, endpoint in endpoints.items():
        await _make_tables(endpoint, "wrong")
        async with grpc.aio.insecure_channel(endpoint.address) as channel:
            client = Client(channel)
            answers = [(await client.send("Pwrong", b"x", **system_properties)).status for system_properties in asked]
        found[system] = [(Code(answer.code).name, answer.message) for answer in answers]
    (code, words), *ours = found["cometmq"]
    (their_code, their_words), *theirs = found["apache55"]
    assert ours == [(name, text.removeprefix(EXCEPTION)) for name, text in theirs]
    assert (code, their_code) == ("BAD_REQUEST", "INTERNAL_SERVER_ERROR")
    assert their_words.startswith(words), their_words


async def _pop(client: RemotingClient, endpoint: Endpoint, topic: str, most: int, invisible_ms: int) -> list[bytes]:
    header = PopMessageRequestHeader(
        consumer_group="GLretry",
        topic=topic,
        queue_id=-1,
        max_msg_nums=most,
        invisible_time=invisible_ms,
        poll_time=5_000,
        born_time=int(time.time() * 1000),
        init_mode=0,
        exp_type="TAG",
        exp="*",
        order=False,
    )
    answer = await client.invoke(endpoint.broker, RequestCode.POP_MESSAGE, header, timeout_s=20)
    return [record.body for record in records(answer)] if answer.code == 0 else []


async def test_a_retry_keeps_its_level_here_and_loses_it_at_apaches_broker(endpoints: dict[str, Endpoint]) -> None:
    found = {}
    for system, endpoint in endpoints.items():
        await _make_tables(endpoint, "retry")
        async with RemotingClient() as client:

            async def send(body: bytes, level: int, client: RemotingClient = client, to: Endpoint = endpoint) -> None:
                header = send_header("Pretry", queue_id=0, properties=f"{PRIORITY}\x01{level}")
                answer = await client.invoke(to.broker, RequestCode.SEND_MESSAGE_V2, header, body, timeout_s=20)
                assert (answer.code, answer.ext_fields["queueId"]) == (0, str(level))

            async def messages_of(topic: str, client: RemotingClient = client, to: Endpoint = endpoint) -> int:
                ends = []
                for queue_id in range(QUEUES):
                    header = GetMaxOffsetRequestHeader(topic=topic, queue_id=queue_id)
                    answer = await client.invoke(to.broker, RequestCode.GET_MAX_OFFSET, header, timeout_s=20)
                    ends.append(int((answer.ext_fields or {}).get("offset", 0)))
                return sum(ends)

            async def is_retried(count: Callable[[str], Awaitable[int]] = messages_of) -> bool:
                return await count("%RETRY%GLretry_Pretry") == 1

            async def is_indexed(count: Callable[[str], Awaitable[int]] = messages_of) -> bool:
                return await count("Pretry") == 2

            await send(b"failed", 3)
            assert await _pop(client, endpoint, "Pretry", 1, 1_000) == [b"failed"], system
            await answered(is_retried)
            await send(b"new", 2)
            await answered(is_indexed)  # Apache's broker builds its queues after it has answered
            found[system] = await _pop(client, endpoint, "Pretry", 2, 60_000)
    assert found == {"cometmq": [b"failed", b"new"], "apache55": [b"new", b"failed"]}
