"""Apache's own clients of RocketMQ 5 against the endpoint of a broker.

Each client is one process that runs all scenarios: messages, order, delay, a listener that fails once, transactions.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from tests.interop import builds
from tests.interop.conftest import unavailable
from tests.interop.five.tables import make_group, make_topic

from cometmq.remoting.client import RemotingClient
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
KEYS = {"transactionTimeOut": "2000", "transactionCheckInterval": "3000"}


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


CLIENTS: dict[str, tuple[Callable[[], list[str]], tuple[str, ...]]] = {
    "java-5.2.0-tls": (_java("5.2.0", "tls"), tuple(EXPECTED)),
    "java-5.0.7-plain": (_java("5.0.7", "plain"), tuple(EXPECTED)),
    "python-5.1.2": (_python, tuple(EXPECTED)),
    "rust-5.0.0": (_rust, ("normal", "fifo")),
}
"""Name → its command, and the scenarios that it has."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[tuple[str, str]]:
    """The address of an endpoint, and that of the broker behind it."""
    port = free_port("127.0.0.1")
    with ProcessCluster(broker_keys={**KEYS, "grpcServerPort": str(port)}) as cluster:
        yield f"127.0.0.1:{port}", f"127.0.0.1:{cluster._ports[0]}"


async def _make_topics(broker: str, run: str) -> None:
    """Make the topics of one client, each with its type, and the group that consumes in order."""
    async with RemotingClient() as client:
        for name, kind in TOPICS.items():
            await make_topic(client, broker, name + run, kind, queues=4)
        await make_group(client, broker, f"GF{run}", consumeMessageOrderly=True)


@pytest.mark.parametrize("name", CLIENTS)
def test_an_official_client_does_all_that_it_can(endpoint: tuple[str, str], name: str) -> None:
    address, broker = endpoint
    make, scenarios = CLIENTS[name]
    try:
        command = make()
    except builds.ToolMissingError as problem:
        unavailable(problem)
    mode = [command.pop()] if name.startswith("java") else []
    run = name.replace(".", "_")
    asyncio.run(_make_topics(broker, run))
    done = subprocess.run(
        [*command, address, run, *mode],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "HOME": mkdtemp(prefix="cometmq-five-")},
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    got = {line["scenario"]: line["got"] for line in lines}
    assert got == {scenario: EXPECTED[scenario] for scenario in scenarios}, done.stdout[-2000:] + done.stderr[-3000:]
