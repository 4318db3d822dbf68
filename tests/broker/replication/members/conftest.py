"""Brokers in the place of a set's members: a master with followers, and a follower with a link."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.broker.conftest import small_config
from tests.broker.replication.members.sides import FakeFollower, FakeMaster

from cometmq.broker.controller import Broker
from cometmq.broker.failover.epochs import EpochLog
from cometmq.broker.membership import Membership
from cometmq.broker.replication.copies.key_copy import SetKeysProcessor
from cometmq.broker.replication.copies.user_copy import SetUsersProcessor
from cometmq.broker.replication.ha_service import HAService
from cometmq.broker.replication.slave import Slave
from cometmq.broker.tables.set_keys import SetKeys
from cometmq.testing import VirtualClock

FILE_BYTES = 64 * 1024


class Master(NamedTuple):
    """A broker whose HA port is that of a set's master."""

    broker: Broker
    side: FakeMaster

    @property
    def end(self) -> int:
        return self.broker.store.max_physical_offset


class Follower(NamedTuple):
    """A broker that follows the master of a set."""

    broker: Broker
    side: FakeFollower

    @property
    def end(self) -> int:
        return self.broker.store.max_physical_offset


StartMaster = Callable[..., Awaitable[Master]]
StartFollower = Callable[..., Awaitable[Follower]]


async def started(broker: Broker) -> None:
    await broker.listen_for_slaves()
    await broker.serve()
    await broker.register()


async def master_of(broker: Broker, *, begins: bool = True, **side: Any) -> Master:
    """Open a broker as the master of epoch 1."""
    await broker.open()
    fake = FakeMaster(broker.store, **side)
    guard = None if broker.access is None else broker.access.guard
    broker.ha = HAService(broker.config, broker.store, None, broker._access.tls, guard, fake)
    broker._context.tables.when_others_have = broker.ha.when_tables_copied
    if broker.access is not None and broker.access.users is not None:
        broker.processors.add(SetUsersProcessor(broker.access.users))
    broker.processors.add(SetKeysProcessor(SetKeys(broker.config), fake))
    if begins:
        await EpochLog(broker.store).begin(fake.epoch)
    await started(broker)
    return Master(broker, fake)


async def follower_of(broker: Broker, **side: Any) -> Follower:
    """Open a broker as a follower."""
    await broker.open()
    fake = FakeFollower(broker.store, **side)
    keys = SetKeys(broker.config)
    membership = Membership(fake, None, keys)  # type: ignore[arg-type]
    copies = partial(membership.copies, broker.live, broker.access)
    broker.slave = Slave(broker._context, broker._access.own, fake, copies)
    broker.processors.add(broker.slave, replaces=True)
    await started(broker)
    return Follower(broker, fake)


@pytest.fixture
async def brokers(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Callable[..., Broker]]:
    made: list[Broker] = []

    def make(name: str, **options: Any) -> Broker:
        values = {"mapped_file_size_commit_log": FILE_BYTES, "clean_file_forcibly_enable": False} | options
        made.append(Broker(small_config(tmp_path / name, **values), clock=clock))
        return made[-1]

    yield make
    for broker in reversed(made):
        await broker.stop()


@pytest.fixture
def start_master(brokers: Callable[..., Broker]) -> StartMaster:
    async def start(side: dict[str, Any] | None = None, *, begins: bool = True, **options: Any) -> Master:
        return await master_of(brokers("master", **options), begins=begins, **(side or {}))

    return start


@pytest.fixture
def start_follower(brokers: Callable[..., Broker]) -> StartFollower:
    async def start(name: str = "follower", side: dict[str, Any] | None = None, **options: Any) -> Follower:
        broker = brokers(name, **({"broker_role": "SLAVE", "broker_id": 1} | options))
        return await follower_of(broker, **(side or {}))

    return start


@pytest.fixture
async def master(start_master: StartMaster) -> Master:
    return await start_master()


@pytest.fixture
async def follower(start_follower: StartFollower) -> Follower:
    return await start_follower()
