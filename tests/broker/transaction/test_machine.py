"""Transactions against a model: sends, ends, checks, producers that come and go, failures, stops, crashes in any order.

The model knows of each transaction every place that its producer ever heard of. Whatever happens, what
consumers can read is each committed message once, and what the broker holds open is what the model does.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.broker.conftest import small_config
from tests.broker.transacting import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    Half,
    delivered,
    end,
    end_header,
    join,
    next_checks,
    round_of_checks,
    send_half,
)
from tests.broker.wire import Wire
from tests.helpers.contents import stored
from tests.store.disks import MoodyDisk

from cometmq.broker.controller import Broker
from cometmq.broker.transaction.half_message import describe
from cometmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.store.disk import Disk
from cometmq.testing import VirtualClock, settle

T = TypeVar("T")

MAX_CHECKS = 3


class MoodyLog(MoodyDisk):
    """Fails at the next write to the log when told to; other files are written in threads, at any time."""

    def write(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
        if "commitlog" in os.readlink(f"/proc/self/fd/{fd}"):
            super().write(fd, data, at)
        else:
            Disk.write(self, fd, data, at)


class Known:
    """One transaction as its producer knows it."""

    def __init__(self, half: Half) -> None:
        self.body = half.key.encode()
        self.places = [half]
        self.state: int | None = None
        self.checks = 0


class TransactionMachine(RuleBasedStateMachine):
    """One broker, up to two producers, and the model beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="cometmq-transactions-"))
        self.generation = 0
        self.runner = asyncio.Runner()
        self.clock = VirtualClock()
        self.disk = MoodyLog()
        self.known: list[Known] = []
        self.producers: list[Wire] = []
        self.started = False

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        async def whole() -> T:
            return await work()

        return self.runner.run(whole())

    @property
    def root(self) -> Path:
        return self.base / f"life{self.generation}"

    @initialize()
    def begin(self) -> None:
        self.run(self.start)

    async def start(self) -> None:
        config = small_config(
            self.root,
            transaction_check_interval=86_400_000,
            transaction_check_max=MAX_CHECKS,
            mapped_file_size_commit_log=16_384,
            mapped_file_size_consume_queue=2_000,
            server_channel_max_idle_time_seconds=86_400,
        )
        self.broker = Broker(config, clock=self.clock, disk=self.disk)
        await self.broker.start()
        self.wire = await self.connect()
        self.producers.clear()
        self.started = True

    async def connect(self) -> Wire:
        return Wire(*await asyncio.open_connection("127.0.0.1", self.broker.server.port))

    async def leave(self) -> None:
        for wire in (self.wire, *self.producers):
            await wire.close()
        await self.broker.stop()

    def fail_next_write(self, error: int, after_bytes: int) -> None:
        self.disk.fails_with, self.disk.after_bytes = error, after_bytes

    @property
    def open(self) -> list[Known]:
        return [known for known in self.known if known.state is None]

    # --- what may happen ------------------------------------------------------------------------
    @rule(size=st.integers(0, 2000))
    def send(self, size: int) -> None:
        async def work() -> None:
            half = await send_half(self.wire, f"K{len(self.known)}", f"K{len(self.known)}".encode(), pad="x" * size)
            self.known.append(Known(half))

        self.run(work)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), how=st.sampled_from([COMMIT, ROLLBACK]), times=st.integers(1, 3))
    def finish(self, data: st.DataObject, how: int, times: int) -> None:
        known = data.draw(st.sampled_from(self.known))
        places = [data.draw(st.sampled_from(known.places)) for _ in range(times)]

        async def work() -> None:
            commands = [self.wire.command(RequestCode.END_TRANSACTION, end_header(half, how)) for half in places]
            self.wire.writer.write(b"".join(command.encode() for command in commands))
            for command in commands:
                assert (await self.wire.answer(command.opaque)).code == ResponseCode.SUCCESS

        self.run(work)
        known.state = how if known.state is None else known.state

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def know_nothing(self, data: st.DataObject) -> None:
        half = data.draw(st.sampled_from(data.draw(st.sampled_from(self.known)).places))

        async def work() -> None:
            self.wire.post(self.wire.command(RequestCode.END_TRANSACTION, end_header(half, UNKNOWN)))
            await self.wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)

        self.run(work)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), group=st.sampled_from(["Others", ""]))
    def strangers_are_refused(self, data: st.DataObject, group: str) -> None:
        half = data.draw(st.sampled_from(data.draw(st.sampled_from(self.known)).places))
        answer = self.run(lambda: end(self.wire, half, COMMIT, group))
        assert answer.code == ResponseCode.SYSTEM_ERROR

    @precondition(lambda self: self.open)
    @rule(
        data=st.data(),
        error=st.sampled_from([errno.ENOSPC, errno.EIO]),
        after_bytes=st.sampled_from([0, 1, 90, 300, 600, 2000]),
    )
    def an_end_cannot_be_written(self, data: st.DataObject, error: int, after_bytes: int) -> None:
        half = data.draw(st.sampled_from(data.draw(st.sampled_from(self.open)).places))
        self.fail_next_write(error, after_bytes)
        answer = self.run(lambda: end(self.wire, half, COMMIT))
        assert self.disk.fails_with is None
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE

    @precondition(lambda self: len(self.producers) < 2)
    @rule()
    def a_producer_comes(self) -> None:
        async def work() -> None:
            self.producers.append(await self.connect())
            await join(self.producers[-1])

        self.run(work)

    @precondition(lambda self: self.producers)
    @rule(data=st.data())
    def a_producer_goes(self, data: st.DataObject) -> None:
        producer = self.producers.pop(data.draw(st.integers(0, len(self.producers) - 1)))

        async def work() -> None:
            await producer.close()
            while len(self.broker.server.connections) > 1 + len(self.producers):
                await asyncio.sleep(0)

        self.run(work)

    @rule()
    def check(self) -> None:

        async def work() -> list[Half]:
            self.clock.advance(7)
            for producer in self.producers:
                await join(producer)
            await round_of_checks(self.broker)
            return [half for producer in self.producers for half, _ in await next_checks(producer)]

        asked = {half.key: half for half in self.run(work)}
        expected = set()
        for known in self.open:
            if known.checks == MAX_CHECKS:
                known.state = ROLLBACK
                continue
            known.checks += 1
            key = known.body.decode()
            if self.producers:
                expected.add(key)
                known.places.append(asked[key])
        assert set(asked) == expected

    @precondition(lambda self: self.open)
    @rule(after_bytes=st.sampled_from([0, 1, 300, 600, 2000]))
    def a_check_cannot_be_written(self, after_bytes: int) -> None:
        async def work() -> list[Half]:
            self.clock.advance(7)
            await settle()
            self.fail_next_write(errno.EIO, after_bytes)
            await round_of_checks(self.broker)
            return [half for producer in self.producers for half, _ in await next_checks(producer)]

        assert self.run(work) == []
        assert self.disk.fails_with is None

    @rule()
    def stop_and_start(self) -> None:
        async def work() -> None:
            await self.leave()
            await self.start()

        self.run(work)

    @rule()
    def crash_and_start(self) -> None:
        before = self.root
        self.generation += 1

        async def work() -> None:
            await settle()  # threads write some of the files
            shutil.copytree(before, self.root)
            await self.leave()
            shutil.rmtree(before)
            await self.start()

        self.run(work)

    # --- what must hold -------------------------------------------------------------------------
    @invariant()
    def each_committed_message_is_delivered_once(self) -> None:
        if self.started:
            expected = sorted(known.body for known in self.known if known.state == COMMIT)
            assert sorted(delivered(self.broker)) == expected

    @invariant()
    def what_is_open_is_known(self) -> None:
        if self.started:
            assert self.broker.transactions.open.count == len(self.open)
            keys = [self.broker.transactions.open.read_half(at) for at in self.broker.transactions.open.offsets()]
            assert sorted(half.body for half in keys if half is not None) == sorted(known.body for known in self.open)

    @invariant()
    def the_oldest_is_that_of_all(self) -> None:
        if self.started:
            table = self.broker.transactions.open
            halves = [(table.get_recorded(at), table.read_half(at)) for at in table.offsets()]
            begun = [(noted or describe(half)).begun_ms for noted, half in halves if half is not None]
            oldest = table.oldest()
            assert (None if oldest is None else oldest.begun_ms) == min(begun, default=None)

    @invariant()
    def what_is_given_up_is_kept(self) -> None:
        if self.started:
            kept = {record.body for record in stored(self.broker, TRANS_CHECK_MAX_TIME_TOPIC)}
            assert kept == {known.body for known in self.known if known.checks == MAX_CHECKS and known.body in kept}

    def teardown(self) -> None:
        if self.started:
            self.disk.fails_with = None
            self.run(self.leave)
        self.runner.close()
        shutil.rmtree(self.base, ignore_errors=True)


TransactionMachine.TestCase.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTransactions = TransactionMachine.TestCase
