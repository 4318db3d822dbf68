"""Apache's own clients of RocketMQ 5 with lite topics: the same programs at Apache's 5.5.0 and at ours.

Each client is one process that runs all scenarios; the processes run side by side. Apache's brokers also serve them
through `cometmq proxy`, and ours serve them through their own endpoint and through `cometmq proxy`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.helpers.waiting import run_to_end
from tests.interop import builds
from tests.interop.conftest import unavailable
from tests.interop.five.lite.servers import LITE_KEYS, TAKES_TLS, start_proxy
from tests.interop.five.tables import Endpoint, make_group, make_topic, send_a_probe, wait_until_ready
from tests.interop.systems import System, start_broker, start_namesrv

from cometmq.remoting.client import RemotingClient
from cometmq.testing import ProcessCluster, free_port

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]  # the first run compiles the clients

PATIENCE_S = 240
RETRY_POLICY = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000]}}
JAVA = {
    "order of a": ["a:a0:1", "a:a1:1", "a:once:1", "a:once:2", "a:a3:1", "a:a4:1"],
    "order of session-1": [f"session-1:s{number}:1" for number in range(5)],
    "order of other": [],
    "unsubscribed": ["session-1:last:1"],
    "set": ["session-1"],
    "dead": ["dead:always:1", "dead:always:2", "dead:always:3", "dead:next:1"],
    "new group": [f"old:o{number}:1" for number in range(4)],
    "last two": ["old:o2:1", "old:o3:1"],
    "first offset": [f"old:o{number}:1" for number in range(4)],
    "offset 3": ["old:o3:1"],
    "exclusive first": ["mine:m0:1"],
    "exclusive second": ["mine:m1"],
    "exclusive sets": ["[]", "[mine]"],
    "refusals": [
        "slash BadRequestException:40020",
        "long IllegalArgumentException",
        "q0 done",
        "q1 done",
        "q2 LiteSubscriptionQuotaExceededException:42902",
        "again done",
        "send slash BadRequestException:40020",
        "send long BadRequestException:40020",
        "send normal IllegalArgumentException",
        "send to normal IllegalArgumentException",
        "group of no topic IllegalStateException",
    ],
}
PYTHON = {
    "push": ["session-7:s0", "session-7:s1", "session-7:s2"],
    "letters": ["letters:l0", "letters:l1"],
    "simple": ["simple:x0:1", "simple:x1:1", "simple:x1:2"],
    "exclusive": ["only:to first", "/", "only:to second"],
}
OURS_ONLY = {"letters", "simple", "exclusive"}
"""What Python's client cannot do with Apache's endpoint: it does not know simple consumers of lite topics, and it
subscribes to the letters of a name."""


class Access(NamedTuple):
    """An endpoint's address, and the broker behind it."""

    address: str
    endpoint: Endpoint


@pytest.fixture(scope="module")
def accesses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Access]]:
    """Each endpoint in front of each kind of broker."""
    port = free_port("127.0.0.1")
    directory = tmp_path_factory.mktemp("lite")
    with ExitStack() as running:
        cluster = running.enter_context(ProcessCluster(broker_keys={"grpcServerPort": str(port)}))
        ours = Endpoint(f"127.0.0.1:{port}", f"127.0.0.1:{cluster._ports[0]}", cluster.namesrv_address)
        found = {"cometmq": Access(ours.address, ours)}
        try:
            namesrv = running.enter_context(start_namesrv(System.COMETMQ, directory / "namesrv"))
            broker = running.enter_context(
                start_broker(System.APACHE55, directory / "broker", namesrv.address, LITE_KEYS, java_options=TAKES_TLS)
            )
            apache = running.enter_context(start_proxy(System.APACHE55, directory / "apache", namesrv.address))
        except builds.ToolMissingError as problem:
            unavailable(problem)
        theirs = Endpoint(apache.address, broker.address, namesrv.address)
        found["apache"] = Access(apache.address, theirs)
        for name, endpoint in (("cometmq proxy", ours), ("cometmq proxy before apache", theirs)):
            proxy = running.enter_context(start_proxy(System.COMETMQ, directory / name, endpoint.namesrv))
            found[name] = Access(proxy.address, endpoint)
        for endpoint in (ours, theirs):
            asyncio.run(send_a_probe(endpoint))
        yield found


async def _make_tables(endpoint: Endpoint, run: str) -> None:
    """Make the topics of one run, and its groups."""
    bound = {"+lite.bind.topic": f"L{run}"}
    groups: dict[str, dict[str, object]] = {
        "GF": {"consumeMessageOrderly": True, "attributes": bound},
        "GE": {"consumeMessageOrderly": True, "attributes": {**bound, "+lite.sub.model": "Exclusive"}},
        "GQ": {"attributes": {**bound, "+lite.sub.client.quota": "2"}},
        "GS": {"attributes": bound},
        "GN": {},
    }
    async with RemotingClient() as client:
        await make_topic(client, endpoint.broker, f"L{run}", "LITE", 4)
        await make_topic(client, endpoint.broker, f"N{run}", "NORMAL", 4)
        for name, settings in groups.items():
            settings = {"retryMaxTimes": 2, "groupRetryPolicy": RETRY_POLICY, **settings}
            await make_group(client, endpoint.broker, name + run, **settings)
    await wait_until_ready(endpoint, [f"L{run}", f"N{run}"])


def _run(command: list[str], home: Path) -> dict[str, list[str]]:
    """Run a program; return what each scenario got."""
    home.mkdir()
    done = run_to_end(command, PATIENCE_S, env={**os.environ, "HOME": str(home)})
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["scenario"]: line["got"] for line in lines}


NAMES = ["cometmq", "cometmq proxy", "apache", "cometmq proxy before apache"]
SIDE_BY_SIDE = 4
Results = dict[tuple[str, str], Future[dict[str, list[str]]]]


@pytest.fixture(scope="module")
def results(accesses: dict[str, Access], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    """What each client got at each endpoint, by the client's language and the endpoint's name."""
    built = builds.java_client_lite()
    path = f"{built / 'classes'}:{built / 'lib'}/*"
    java = [builds.java(), *builds.QUICK_JAVA, "-Xmx192m", "-cp", path, "Lite"]
    program = str(Path(__file__).with_name("lite_client.py"))
    python = [str(builds.python_client_five() / "bin" / "python"), program]
    homes = tmp_path_factory.mktemp("homes")

    def run(command: list[str], language: str, name: str, *arguments: str) -> dict[str, list[str]]:
        access, run = accesses[name], f"{language}{NAMES.index(name)}"
        asyncio.run(_make_tables(access.endpoint, run))
        return _run([*command, access.address, run, *arguments], homes / run)

    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        started: Results = {("Java", name): threads.submit(run, java, "Java", name) for name in NAMES}
        for name in NAMES:
            started["Python", name] = threads.submit(run, python, "Python", name, *_scenarios(name))
        yield started


def _scenarios(name: str) -> list[str]:
    return [scenario for scenario in PYTHON if name != "apache" or scenario not in OURS_ONLY]


@pytest.mark.parametrize("name", NAMES)
def test_javas_client_reads_lite_topics(results: Results, name: str) -> None:
    assert results["Java", name].result() == JAVA


@pytest.mark.parametrize("name", NAMES)
def test_pythons_client_reads_lite_topics(results: Results, name: str) -> None:
    assert results["Python", name].result() == {scenario: PYTHON[scenario] for scenario in _scenarios(name)}
