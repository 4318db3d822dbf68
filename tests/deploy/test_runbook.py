"""Every bad day of docs/runbook.md: provoked on a real cluster, then the page's commands, which show it and cure it."""

from __future__ import annotations

import asyncio
import datetime
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import trustme
from tests.broker.conftest import small_config
from tests.cli.conftest import CommandLine, Result
from tests.helpers.waiting import wait_for
from tests.namesrv.wire import Wire

from cometmq.broker.controller import Broker
from cometmq.broker.failover.document import Document
from cometmq.broker.failover.engines.memory import MemoryEngine
from cometmq.broker.failover.identity import read_identity, write_identity
from cometmq.broker.failover.states import State
from cometmq.broker.member.set_member import SetMember
from cometmq.client import ConsumeFromWhere, Message, PushConfig
from cometmq.client.sync import SyncPushConsumer
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.testing import SyncCluster, VirtualClock
from cometmq.testing.replica_set import ReplicaSet

PAGE = Path(__file__).resolve().parents[2] / "docs" / "runbook.md"
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@dataclass
class BadDay:
    """A cluster in trouble, and how its trouble ends."""

    namesrv: str
    cure: Callable[[], None] = lambda: None
    """Done before the commands of the cure: what an operator does elsewhere."""
    words: Mapping[str, str] = field(default_factory=dict)
    """What stands for words of the page."""


Provoke = Callable[[Path, pytest.MonkeyPatch, ExitStack], BadDay]
DAYS: dict[str, Provoke] = {}


def day(title: str) -> Callable[[Provoke], Provoke]:
    def keep(provoke: Provoke) -> Provoke:
        DAYS[title] = provoke
        return provoke

    return keep


@dataclass(frozen=True)
class Section:
    """A section of the page."""

    title: str
    look: list[str]
    shows: list[str]
    cure: list[str]
    then: list[str]


def sections() -> Iterator[Section]:
    for part in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, text = part.partition("\n")
        blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
        commands = [[line[2:] for line in block.splitlines() if line.startswith("$ ")] for block in blocks]
        shows = re.search(r"^\*\*The output contains\*\* (.*)$", text, re.MULTILINE)
        then = re.search(r"^\*\*Afterwards\*\* the output contains (.*)$", text, re.MULTILINE)
        assert shows is not None, title
        words = [re.findall(r"`([^`]+)`", found[1]) if found else [] for found in (shows, then)]
        yield Section(title, commands[0], words[0], commands[1] if len(commands) > 1 else [], words[1])


SECTIONS = list(sections())


def run(command: str, bad: BadDay, directory: Path) -> Result:
    """Run a command of the page."""
    for word, text in bad.words.items():
        command = command.replace(word, text)
    words = shlex.split(command)
    if words[0] == "cometmq":
        return CommandLine(bad.namesrv)(*words[1:])
    done = subprocess.run(words, cwd=directory, capture_output=True, text=True, check=False)
    return Result(done.returncode, done.stdout, done.stderr)


def test_there_are_thirty_bad_days_and_each_is_provoked() -> None:
    assert [section.title for section in SECTIONS] == list(DAYS)
    assert len(DAYS) == 30


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_the_commands_show_the_trouble_and_cure_it(
    section: Section, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        bad = DAYS[section.title](tmp_path, monkeypatch, stack)
        results = [run(command, bad, tmp_path) for command in section.look]
        shown = " ".join("\n".join(result.out + result.err for result in results).split())
        assert [words for words in section.shows if words not in shown] == [], shown
        bad.cure()
        results = [run(command, bad, tmp_path) for command in section.cure]
        shown = " ".join("\n".join(result.out + result.err for result in results).split())
        assert [result.code for result in results] == [0] * len(results), shown
        assert [words for words in section.then if words not in shown] == [], shown


# --- the days -----------------------------------------------------------------------------------
def cluster_of(stack: ExitStack, count: int = 0, **options: object) -> SyncCluster:
    cluster = stack.enter_context(SyncCluster(**options))  # type: ignore[arg-type]
    if options.get("accounts") is None:
        for number in range(count):
            cluster.send(Message("orders", f"message {number}".encode()))
    return cluster


@day("The disk is full")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    return BadDay(cluster_of(stack, broker_keys={"diskSpaceWarningLevelRatio": "1"}).namesrv_address)


@day("A slave is behind, or gone")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    cluster = cluster_of(stack, 1, slaves=1)
    cluster.call(cluster.cluster.kill_slave())

    def cure() -> None:
        cluster.call(cluster.cluster.start_slave())
        wait_for(lambda: cluster.run(lambda inside: inside.has_replicated()), "the slave has everything")

    return BadDay(cluster.namesrv_address, cure)


@day("A certificate has expired")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    authority, now = trustme.CA(), datetime.datetime.now(datetime.UTC)
    before, after = now - datetime.timedelta(days=9), now - datetime.timedelta(days=2)
    issued = authority.issue_cert("127.0.0.1", not_before=before, not_after=after)
    (tmp_path / "server.pem").write_bytes(issued.private_key_and_cert_chain_pem.bytes())
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("ROCKETMQ_TLS_ENABLE", "true")
    monkeypatch.setenv("ROCKETMQ_TLS_TRUST_CERT_PATH", str(tmp_path / "ca.pem"))
    return BadDay(stack.enter_context(nameserver(tmp_path, tls_server_cert_path=str(tmp_path / "server.pem"))))


@contextmanager
def in_thread() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@contextmanager
def nameserver(tmp_path: Path, **options: str) -> Iterator[str]:
    """A nameserver alone; brokers can be registered by hand."""
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json"))
    values = {name: getattr(config, name) for name in ("listen_port", "bind_address", "kv_config_path")}
    with in_thread() as loop:
        server = NameServer(NamesrvConfig(**(values | options)))
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
        yield server.address
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(30)


@day("A consumer is stuck")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    cluster = cluster_of(stack, 10)
    taken, goes_on = threading.Event(), threading.Event()

    def listener(_messages: object) -> None:
        taken.set()
        goes_on.wait(60)

    consumer = SyncPushConsumer(
        "billing", listener, cluster.namesrv_address, config=PushConfig(consume_from_where=FIRST)
    )
    consumer.subscribe("orders")
    stack.enter_context(consumer)
    stack.callback(goes_on.set)
    assert taken.wait(30)
    return BadDay(cluster.namesrv_address)


@day("The lag of a group grows")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    cluster = cluster_of(stack, 1)
    command = CommandLine(cluster.namesrv_address)
    assert command("consume", "orders", "--group", "billing", "--from-beginning", "--max", "1").code == 0
    for number in range(10):
        cluster.send(Message("orders", str(number).encode()))
    return BadDay(cluster.namesrv_address)


def with_dead_letters(stack: ExitStack) -> SyncCluster:
    cluster = cluster_of(stack)
    cluster.send(Message("orders", b"poison"))

    def listener(_messages: object) -> None:
        raise ValueError("poison")

    config = PushConfig(consume_from_where=FIRST, max_reconsume_times=0)
    consumer = SyncPushConsumer("billing", listener, cluster.namesrv_address, config=config)
    consumer.subscribe("orders")
    with consumer:
        wait_for(lambda: cluster.run(lambda inside: inside.has_topic("%DLQ%billing")), "there is a dead letter")
        command = CommandLine(cluster.namesrv_address)
        wait_for(lambda: "poison" in command("dlq", "read", "billing").out, "it can be read")
    return cluster


@day("A message is poison")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    return BadDay(with_dead_letters(stack).namesrv_address)


@day("A broker was killed")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    cluster = cluster_of(stack, 1)
    cluster.call(cluster.cluster.kill_broker(0))
    return BadDay(cluster.namesrv_address, lambda: (cluster.call(cluster.cluster.start_broker(0)), None)[1])


@day("A nameserver is away")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    address = cluster_of(stack).namesrv_address
    return BadDay(address, words={"NAMESERVER-A;NAMESERVER-B": f"'{address};127.0.0.1:1'"})


@day("A clock is wrong")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    cluster = cluster_of(stack, clock=VirtualClock(round(time.time() * 1000) + 3_600_000))
    return BadDay(cluster.namesrv_address)


@day("A wrong address is advertised")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    return BadDay(registered(stack, tmp_path, address="127.0.0.1:1"))


def registered(stack: ExitStack, tmp_path: Path, **broker: str) -> str:
    """A nameserver at which a broker has registered by hand."""
    address = stack.enter_context(nameserver(tmp_path))
    loop = stack.enter_context(in_thread())

    async def register() -> Wire:
        host, port = address.split(":")
        wire = Wire(*await asyncio.open_connection(host, int(port)))
        await wire.register(**broker)  # type: ignore[arg-type]
        return wire

    wire = asyncio.run_coroutine_threadsafe(register(), loop).result(30)
    stack.callback(lambda: asyncio.run_coroutine_threadsafe(wire.close(), loop).result(30))
    return address


@contextmanager
def served(tmp_path: Path, *options: str, killed: bool = False) -> Iterator[tuple[str, str]]:
    """``cometmq serve`` in a process, its log in broker.log; the addresses of nameserver and broker."""
    arguments = ["serve", "--data", str(tmp_path / "data"), "--port", "0", "--namesrv-port", "0", "--no-console"]
    log = ["--log-file", str(tmp_path / "broker.log"), "--no-grpc"]
    process = CommandLine().start(*arguments, *log, *options, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    found = re.search(r"nameserver (\S+), broker (\S+),", line)
    assert found is not None, line
    try:
        yield found[1], found[2]
    finally:
        process.send_signal(signal.SIGKILL if killed else signal.SIGTERM)
        process.wait(30)
        process.stdout.close()


@day("Too many connections")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    namesrv, broker = stack.enter_context(served(tmp_path, "-o", "serverMaxConnections=1"))
    host, port = broker.split(":")
    held = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(2)]
    held[1].settimeout(10)
    assert held[1].recv(1) == b""
    return BadDay(namesrv)


@day("A quota is reached")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    cluster = cluster_of(stack, 1)
    command = CommandLine(cluster.namesrv_address)
    assert command("quota", "set", "address:127.0.0.1", "--messages-in", "1").code == 0
    command("produce", "orders", stdin="line\n" * 20)
    return BadDay(cluster.namesrv_address)


@day("An account is locked out")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    account = {"accessKey": "shop-app", "secretKey": "secret-of-shop", "admin": True}
    cluster = cluster_of(stack, accounts=[account])
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "shop-app")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "an old password")
    return BadDay(cluster.namesrv_address)


@day("A topic has the wrong permission")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    cluster = cluster_of(stack, 1)
    command = CommandLine(cluster.namesrv_address)
    assert command("topic", "alter", "orders", "--permission", "r", "--yes").code == 0
    assert "permission" in command("produce", "orders", "--body", "x").err
    return BadDay(cluster.namesrv_address)


@day("The store is damaged")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    with served(tmp_path, killed=True) as (namesrv, _broker):
        for body in ("first", "second"):
            assert CommandLine(namesrv)("produce", "orders", "--body", body).code == 0
    log = next((tmp_path / "data" / "broker-0" / "commitlog").iterdir())
    data = log.read_bytes()[:100_000]
    at = data.index(b"second")
    with open(log, "r+b") as file:
        file.seek(at)
        file.write(b"broken")
    namesrv, _ = stack.enter_context(served(tmp_path))
    return BadDay(namesrv)


@day("The log is missing")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    with served(tmp_path) as (namesrv, _broker):
        assert CommandLine(namesrv)("produce", "orders", "--body", "first").code == 0
    store = tmp_path / "data" / "broker-0"
    (tmp_path / "broker.conf").write_text(f"storePathRootDir={store}\n")
    (store / "commitlog").rename(tmp_path / "mounted")
    (store / "commitlog").mkdir()
    bad = BadDay("", words={"data/store": str(store)})

    def cure() -> None:
        (store / "commitlog").rmdir()
        (tmp_path / "mounted").rename(store / "commitlog")
        bad.namesrv, _ = stack.enter_context(served(tmp_path))

    bad.cure = cure
    return bad


@day("The index is damaged")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    with served(tmp_path) as (namesrv, _broker):
        assert CommandLine(namesrv)("produce", "orders", "--body", "first", "--key", "order-1").code == 0
    for file in (tmp_path / "data" / "broker-0" / "index").iterdir():
        with open(file, "r+b") as opened:
            opened.seek(40)
            opened.write(os.urandom(4_000))
    namesrv, _ = stack.enter_context(served(tmp_path))
    return BadDay(namesrv)


@day("Delayed messages pile up")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    cluster = cluster_of(stack, 1)
    command = CommandLine(cluster.namesrv_address)
    assert command("produce", "orders", "--body", "later", "--delay", "1h").code == 0
    wait_for(lambda: "orders" in command("delay", "waiting").out, "the timer has it")
    return BadDay(cluster.namesrv_address)


@day("Dead letters pile up")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    return BadDay(with_dead_letters(stack).namesrv_address)


@day("Two clusters are mixed")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    cluster = cluster_of(stack, 1)
    loop = stack.enter_context(in_thread())

    async def start() -> Broker:
        keys = {"namesrv_addr": cluster.namesrv_address, "broker_cluster_name": "staging", "broker_name": "stray"}
        broker = Broker(small_config(tmp_path / "stray", **keys))
        await broker.start()
        return broker

    broker = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    stack.callback(lambda: asyncio.run_coroutine_threadsafe(broker.stop(), loop).result(30))
    return BadDay(cluster.namesrv_address)


@day("Memory grows")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    cluster = cluster_of(stack, 1, broker_keys={"metricsExporterType": "PROM", "metricsPromExporterPort": "0"})
    url = cluster.run(lambda inside: getattr(inside.broker(0).monitor, "url", ""))
    with urllib.request.urlopen(url, timeout=10) as answer:
        (tmp_path / "metrics.txt").write_bytes(answer.read())
    assert sys.platform != "linux" or "resident" in (tmp_path / "metrics.txt").read_text()
    return BadDay(cluster.namesrv_address)


# --- sets that elect their master ---------------------------------------------------------------
class Members:
    """The members of a set, for a test without a loop."""

    def __init__(self, stack: ExitStack, **keys: str) -> None:
        keys = {"failoverLeaseMs": "2000", **keys}
        self.cluster = stack.enter_context(SyncCluster(replicas=3, broker_keys=keys))
        self.set: ReplicaSet = self.cluster.run(lambda inside: inside.replica_set())
        self.wait_in_sync()
        self.cluster.send(Message("orders", b"message"))

    @property
    def namesrv(self) -> str:
        return self.cluster.namesrv_address

    @property
    def master(self) -> str:
        master = self.set.master
        assert master is not None
        return master

    @property
    def others(self) -> list[str]:
        return [name for name in self.set.names if name != self.master]

    @property
    def document(self) -> Document:
        assert self.set.engine.document is not None
        return self.set.engine.document

    def kill(self, *names: str) -> None:
        for name in names:
            self.cluster.call(self.set.kill(name))

    def start(self, *names: str) -> None:
        for name in names:
            self.cluster.call(self.set.start(name))

    def state(self, name: str) -> str:
        return self.set.members[name].machine.state.value

    def wait_in_sync(self) -> None:
        wait_for(self.set.is_in_sync, "all members are in sync")

    def wait_alone(self) -> None:
        wait_for(lambda: len(self.document.in_sync) == 1, "the master is alone")

    def halted(self, name: str) -> BadDay:
        """The day on which a member has halted."""
        wait_for(lambda: self.state(name) == "halted", f"{name} has halted")
        return BadDay(self.namesrv, words={"MEMBER": self.set.address(name)})


@day("A set has no master")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    members = Members(stack)
    master, others = members.master, members.others
    members.kill(*others)
    members.wait_alone()
    members.kill(master)
    members.start(*others)

    def is_over() -> bool:
        machines = [members.set.members[name].machine for name in others]
        return all(m.state is State.FOLLOWER and master not in m.view.presences for m in machines)

    wait_for(is_over, "the lease has ended, and nobody may be elected")
    return BadDay(members.namesrv)


@day("A member of a set is not in sync")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    members = Members(stack)
    gone = members.others[0]
    members.kill(gone)
    wait_for(lambda: len(members.document.in_sync) == 2, "it has left")

    def cure() -> None:
        members.start(gone)
        members.wait_in_sync()

    return BadDay(members.namesrv, cure)


@day("A master refuses messages")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    members = Members(stack, minInSyncReplicas="2")
    gone = members.others
    members.kill(*gone)
    members.wait_alone()

    def cure() -> None:
        members.start(*gone)
        members.wait_in_sync()

    return BadDay(members.namesrv, cure)


@day("Masters change often")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    members = Members(stack)
    for _number in range(2):
        assert CommandLine(members.namesrv)("failover", "handover").code == 0
        members.wait_in_sync()
    return BadDay(members.namesrv)


@day("The engine does not answer")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    members = Members(stack)
    silence = members.set.silence_engine()
    machine = members.set.members[members.master].machine
    wait_for(lambda: machine.view.trouble != "", "the master has noticed")

    def cure() -> None:
        silence.close()
        wait_for(lambda: machine.view.trouble == "", "the engine answers")

    return BadDay(members.namesrv, cure)


@day("A member finds no document")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    members = Members(stack)
    names = members.set.names
    for name in names:
        members.cluster.call(members.set.stop(name))
    members.set.engine.document = None
    members.start(names[0])
    return members.halted(names[0])


@day("A member finds the document of another set")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    members = Members(stack)
    name = members.others[0]
    members.cluster.call(members.set.stop(name))
    file = members.set.root(name) / "comet" / "failover.json"
    identity = read_identity(file)
    assert identity is not None
    write_identity(file, replace(identity, set_id="0123456789abcdef"))
    members.start(name)
    return members.halted(name)


@day("The engine was restored from a backup")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    members = Members(stack)
    backup = members.document
    assert CommandLine(members.namesrv)("failover", "handover").code == 0
    members.wait_in_sync()
    follower = members.others[0]
    members.set.engine.document = backup
    return members.halted(follower)


@day("Two members have one name")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> BadDay:
    members = Members(stack)
    taken = members.others[0]
    config = replace(
        members.set.members[taken].config, listen_port=0, ha_listen_port=0, store_path_root_dir=str(tmp_path / "twin")
    )
    twin = SetMember(config, engine=MemoryEngine(members.set.engine, lease_s=2))
    members.cluster.call(twin.start())
    stack.callback(lambda: members.cluster.call(twin.stop()))
    wait_for(lambda: twin.machine.state.value == "halted", "the twin has halted")
    return BadDay(members.namesrv, words={"MEMBER": twin.address})
