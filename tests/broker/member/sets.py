"""Sets of members in this process, with an engine in memory and a nameserver."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.helpers.pace import Patience, slowness

from cometmq.broker.config import BrokerConfig
from cometmq.broker.failover.document import Document
from cometmq.broker.failover.engines.memory import MemoryEngine, MemoryStore
from cometmq.broker.member.lives import LifeOptions
from cometmq.broker.member.set_member import SetMember
from cometmq.client.instance import ClientInstance
from cometmq.client.producer.producer import Producer
from cometmq.client.send_result import SendStatus
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.message.message import Message
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.options import parse_value, spellings_of
from cometmq.testing.cluster_keys import HOST, SMALL_STORE
from cometmq.testing.ports import free_port


@cache
def lease_ms() -> int:
    """Return the lease of the sets: two seconds, and up to six on a slow machine, which renews it later."""
    return round(2_000 * min(slowness(), 3))


@dataclass
class MemberSet:
    """A set whose members a test starts and kills by name."""

    root: Path
    namesrv: str
    keys: Mapping[str, str]
    clock: Clock = SYSTEM_CLOCK
    store: MemoryStore = field(default_factory=MemoryStore)
    members: dict[str, SetMember] = field(default_factory=dict)
    engines: dict[str, MemoryEngine] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    def config(self, name: str, **further: str) -> BrokerConfig:
        known = spellings_of(BrokerConfig)
        port = self.ports.setdefault(name, free_port(HOST))
        keys = {
            **SMALL_STORE,
            "brokerName": "set",
            "brokerIP1": HOST,
            "bindAddress": HOST,
            "listenPort": str(port),
            "namesrvAddr": self.namesrv,
            "storePathRootDir": str(self.root / name),
            "failover": "etcd",
            "failoverMember": name,
            "failoverLeaseMs": str(lease_ms()),
            **self.keys,
            **further,
        }
        return BrokerConfig(**{known[key].name: parse_value(known[key], text) for key, text in keys.items()})

    async def start(
        self, name: str, *, bootstraps: bool = False, clock: Clock | None = None, **further: str
    ) -> SetMember:
        options = LifeOptions(clock=self.clock if clock is None else clock)
        return await self.start_with(name, options, bootstraps=bootstraps, **further)

    async def start_with(
        self, name: str, options: LifeOptions, *, bootstraps: bool = False, **further: str
    ) -> SetMember:
        engine = self.engines[name] = MemoryEngine(self.store, lease_s=lease_ms() / 1000, clock=options.clock)
        member = SetMember(self.config(name, **further), engine=engine, bootstraps=bootstraps, options=options)
        await member.start()
        self.members[name] = member
        return member

    async def kill(self, name: str) -> None:
        """End a member as SIGKILL does."""
        member = self.members.pop(name)
        await member.cut_off()
        await member.stop()

    async def stop(self, name: str) -> None:
        await self.members.pop(name).stop()

    @property
    def master(self) -> SetMember | None:
        """The master of the highest epoch that serves clients."""
        serving = [member for member in self.members.values() if member.is_serving]
        return max(serving, key=lambda member: member.machine.epoch, default=None)

    @property
    def in_sync(self) -> set[str]:
        document = self.store.document
        return set() if document is None else {member.name for member in document.in_sync}

    def edit(self, document: Document) -> None:
        """Change the document as a person does with the engine's tools."""
        self.store.document = document
        self.store._document_version = self.store._changed()

    def instance(self) -> ClientInstance:
        return ClientInstance(self.namesrv, clock=self.clock)


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until a condition is true, longer on a slow machine."""
    patience = Patience(seconds)
    while not condition():
        assert not patience.is_over, "the condition did not become true"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def member_set(root: Path, count: int = 3, **keys: str) -> AsyncIterator[MemberSet]:
    """Start a set, and wait until all members are in sync."""
    namesrv = NameServer(
        NamesrvConfig(listen_port=0, bind_address=HOST, kv_config_path=str(root / "kv.json")), clock=SYSTEM_CLOCK
    )
    await namesrv.start()
    members = MemberSet(root, namesrv.address, keys)
    try:
        for name in "abcde"[:count]:
            await members.start(name)
        if count:
            await until(lambda: members.master is not None and members.in_sync == set("abcde"[:count]))
        yield members
    finally:
        for name in list(members.members):
            await members.stop(name)
        await namesrv.stop()


def bodies(member: SetMember) -> Counter[bytes]:
    """The bodies of all messages of the topic that a member's consumers can read."""
    store = member.broker.store
    found: Counter[bytes] = Counter()
    for queue in store.queues().get("T", {}).values():
        for offset in range(queue.min_offset(), queue.max_offset()):
            unit = queue.unit(offset)
            assert unit is not None
            record = store.decoded_at(unit[0])
            assert record is not None
            found[record.body] += 1
    return found


async def send(members: MemberSet, body: bytes) -> None:
    """Send a message as an application does; it is acknowledged when the call returns."""
    async with Producer("tests", instance=members.instance()) as producer:
        result = await producer.send(Message("T", body))
    assert result.status is SendStatus.SEND_OK
