"""Delayed messages over stops and crashes: nothing is lost, and nothing is delivered twice."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.broker.conftest import small_config
from tests.broker.disks import FailingDisk
from tests.broker.snapshots import copy_store
from tests.helpers.contents import bodies
from tests.helpers.waiting import until

from cometmq.broker.controller import Broker
from cometmq.broker.delay.delay_offsets import DelayOffsets, DelayProgress
from cometmq.broker.turn.inner_message import InnerMessage
from cometmq.testing import VirtualClock

T = TypeVar("T")


def put(broker: Broker, body: bytes, level: int, topic: str = "Delayed") -> None:
    """Park one message, stored when this returns."""
    message = InnerMessage(topic, 0, body, f"UNIQ_KEY\x01{body.decode()}", 0, 0, 1, bytes(8))
    broker.turn.put_inner(broker.schedule.park(message, level), lambda _: None)
    broker.turn.end()


async def crashed(broker: Broker, root: Path, copy: Path) -> Path:
    """Copy the store as a SIGKILL would leave it."""
    copy_store(root, copy)
    await broker.stop()
    return copy


async def started(root: Path, clock: VirtualClock) -> Broker:
    """A broker on the store in ``root``."""
    broker = Broker(small_config(root.parent, store_path_root_dir=str(root)), clock=clock)
    await broker.start()
    return broker


def saved(root: Path) -> bytes:
    """Apache's file, without its blanks."""
    return b"".join((root / "config" / "delayOffset.json").read_bytes().split())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


async def test_a_clean_stop_repeats_nothing_and_what_fell_due_meanwhile_comes_at_once(
    root: Path, clock: VirtualClock
) -> None:
    broker = await started(root, clock)
    put(broker, b"done", 1)
    put(broker, b"waits", 3)
    await clock.run_for(1)
    await until(lambda: bodies(broker, "Delayed") == [b"done"])
    await broker.stop()
    clock.advance(3600)
    broker = await started(root, clock)
    await until(lambda: bodies(broker, "Delayed") == [b"done", b"waits"])
    await broker.stop()
    broker = await started(root, clock)
    await clock.run_for(10)
    assert bodies(broker, "Delayed") == [b"done", b"waits"]
    await broker.stop()


async def test_a_crash_repeats_nothing_that_is_in_the_log(root: Path, clock: VirtualClock, tmp_path: Path) -> None:
    broker = await started(root, clock)
    sent = [b"%d" % number for number in range(300)]
    for body in sent:
        put(broker, body, 1)
        put(broker, b"other " + body, 1, "Other")
        put(broker, b"later " + body, 2)
    await clock.run_for(1)
    await until(lambda: len(bodies(broker, "Other")) == 300)
    root = await crashed(broker, root, tmp_path / "copy")
    broker = await started(root, clock)
    assert broker.schedule.offsets() == {1: (600, 600), 2: (0, 300)}
    await clock.run_for(4)
    await until(lambda: len(bodies(broker, "Delayed")) == 600)
    assert bodies(broker, "Delayed") == sent + [b"later " + body for body in sent]
    assert bodies(broker, "Other") == [b"other " + body for body in sent]
    await broker.stop()


async def test_twins_are_counted_not_recognised(root: Path, clock: VirtualClock, tmp_path: Path) -> None:
    broker = await started(root, clock)
    for level in (1, 1, 2, 2):
        put(broker, b"twin", level)
    await clock.run_for(1)
    await until(lambda: len(bodies(broker, "Delayed")) == 2)
    root = await crashed(broker, root, tmp_path / "copy")
    broker = await started(root, clock)
    assert broker.schedule.offsets() == {1: (2, 2), 2: (0, 2)}
    await broker.stop()


async def test_where_another_broker_has_delivered_since_its_file_counts(root: Path, clock: VirtualClock) -> None:
    broker = await started(root, clock)
    for number in range(5):
        put(broker, b"%d" % number, 1)
    await broker.stop()
    (root / "config" / "delayOffset.json").write_text('{\n\t"offsetTable":{1:3\n\t}\n}')
    clock.advance(1)
    broker = await started(root, clock)
    await until(lambda: bodies(broker, "Delayed") == [b"3", b"4"])
    await broker.stop()
    assert saved(root) == b'{"offsetTable":{1:5}}'


async def test_without_files_every_message_that_waits_in_the_queues_is_delivered(
    root: Path, clock: VirtualClock
) -> None:
    broker = await started(root, clock)
    put(broker, b"a", 1)
    await broker.stop()
    (root / "config" / "delayOffset.json").unlink()
    (root / "comet" / "delayOffset.json").write_bytes(b"garbage")
    clock.advance(1)
    broker = await started(root, clock)
    await until(lambda: bodies(broker, "Delayed") == [b"a"])
    await broker.stop()


@pytest.mark.parametrize("offset", [99, 2, 10**30, -5, '"x"', 1.5])
async def test_offsets_that_cannot_be_true_lose_no_message_and_repeat_none(
    root: Path, clock: VirtualClock, offset: object
) -> None:
    """Behind the end of the queue, or behind a message that waits still: the log says what was delivered."""
    broker = await started(root, clock)
    put(broker, b"a", 1)
    await clock.run_for(1)
    put(broker, b"b", 1)
    await broker.stop()
    (root / "config" / "delayOffset.json").write_text(f'{{"offsetTable":{{1:{offset}}}}}')
    broker = await started(root, clock)
    put(broker, b"c", 1)
    await clock.run_for(1)
    await until(lambda: bodies(broker, "Delayed") == [b"a", b"b", b"c"])
    await broker.stop()
    assert saved(root) == b'{"offsetTable":{1:3}}'


@pytest.mark.parametrize("exact", ["{", '{"offsets":{"1":99},"position":0}', '{"offsets":{"1":1},"position":7}'])
@pytest.mark.parametrize("content", ['{"offsetTable":[1]}', "{", "", "null"])
async def test_with_damaged_files_the_log_says_what_was_delivered(
    root: Path, clock: VirtualClock, content: str, exact: str
) -> None:
    broker = await started(root, clock)
    for body in (b"a", b"twin", b"twin"):
        put(broker, body, 1)
    await clock.run_for(1)
    await until(lambda: len(bodies(broker, "Delayed")) == 3)
    put(broker, b"twin", 1)
    await broker.stop()
    (root / "config" / "delayOffset.json").write_text(content)
    (root / "config" / "delayOffset.json.bak").unlink(missing_ok=True)
    (root / "comet" / "delayOffset.json").write_text(exact)
    broker = await started(root, clock)
    assert broker.schedule.offsets() == {1: (3, 4)}
    await clock.run_for(1)
    await until(lambda: bodies(broker, "Delayed") == [b"a", b"twin", b"twin", b"twin"])
    await broker.stop()
    assert saved(root) == b'{"offsetTable":{1:4}}'


async def test_progress_is_written_every_interval(root: Path, clock: VirtualClock) -> None:
    broker = await started(root, clock)
    put(broker, b"a", 1)
    await clock.run_for(10)
    exact = root / "comet" / "delayOffset.json"
    await until(lambda: json.loads(exact.read_bytes())["offsets"] == {"1": 1})
    assert json.loads(exact.read_bytes())["position"] == broker.store.max_physical_offset
    await until(lambda: saved(root) == b'{"offsetTable":{1:1}}')
    await broker.stop()


async def test_progress_is_written_only_once_the_log_is_flushed(root: Path, clock: VirtualClock) -> None:
    disk = FailingDisk()
    broker = Broker(small_config(root.parent), clock=clock, disk=disk)
    await broker.start()
    before = saved(root)
    disk.flush_error = errno.EIO
    put(broker, b"a", 1)
    await clock.run_for(1)
    await until(lambda: broker.store.writable() is not None)
    await broker.stop()
    assert saved(root) == before


def test_a_crash_between_the_two_files_is_seen(tmp_path: Path) -> None:
    files = DelayOffsets(tmp_path)
    files.save(DelayProgress({1: 5, 2: 7}, 100))
    older = (tmp_path / "config" / "delayOffset.json").read_bytes()
    files.save(DelayProgress({1: 6, 2: 7}, 200))
    (tmp_path / "config" / "delayOffset.json").write_bytes(older)
    assert DelayOffsets(tmp_path).load()[0] == DelayProgress({1: 6, 2: 7}, 200)
    (tmp_path / "config" / "delayOffset.json").write_text('{"offsetTable":{1:6,2:8}}')
    assert DelayOffsets(tmp_path).load()[0] == DelayProgress({1: 6, 2: 8})


def test_files_that_cannot_be_written_are_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = DelayOffsets(tmp_path)
    (tmp_path / "comet").write_text("in the way")
    files.save(DelayProgress({1: 5}, 100))
    assert "will retry" in caplog.text
    (tmp_path / "comet").unlink()
    files.save(DelayProgress({1: 5}, 100))
    assert DelayOffsets(tmp_path).load()[0] == DelayProgress({1: 5}, 100)


class DelayMachine(RuleBasedStateMachine):
    """Messages are sent, time passes, the broker stops and crashes; each comes once, in the order of its level."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.base = Path(tempfile.mkdtemp(prefix="cometmq-delays-"))
        self.generation = 0
        self.clock = VirtualClock()
        self.sent: list[tuple[int, int, bytes]] = []
        """The due time, the level and the body of each message, in the order sent."""
        self.broker = self.run(started(self.root, self.clock))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @property
    def root(self) -> Path:
        return self.base / f"store{self.generation}"

    @rule(levels=st.lists(st.integers(1, 4), min_size=1, max_size=200))
    def send(self, levels: list[int]) -> None:
        async def put_all() -> None:
            for level in levels:
                body = b"%d" % len(self.sent)
                put(self.broker, body, level)
                self.sent.append((self.clock.now_ms() + self.broker.schedule.delays_ms[level - 1], level, body))

        self.run(put_all())

    @rule(milliseconds=st.integers(1, 40_000))
    def time_passes(self, milliseconds: int) -> None:
        self.run(self.clock.run_for(milliseconds / 1000))

    @rule()
    def stop_and_start(self) -> None:
        self.run(self.broker.stop())
        self.broker = self.run(started(self.root, self.clock))

    @rule(turns=st.integers(0, 3))
    def crash_and_start(self, turns: int) -> None:
        """The process dies while a few turns of what falls due in the next second are done."""

        async def some_turns() -> None:
            self.clock.advance(1)
            for _ in range(turns):
                await asyncio.sleep(0)

        self.run(some_turns())
        before = self.root
        self.generation += 1
        self.run(crashed(self.broker, before, self.root))
        shutil.rmtree(before)
        self.broker = self.run(started(self.root, self.clock))

    @invariant()
    def everything_due_came_once_in_its_levels_order(self) -> None:
        due = [sent for sent in self.sent if sent[0] <= self.clock.now_ms()]
        self.run(until(lambda: len(bodies(self.broker, "Delayed")) >= len(due)))
        found = bodies(self.broker, "Delayed")
        level_of = {body: level for _, level, body in self.sent}
        for wanted in range(1, 5):
            assert [body for body in found if level_of[body] == wanted] == [
                body for _, level, body in due if level == wanted
            ]

    def teardown(self) -> None:
        self.run(self.broker.stop())
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.base)


DelayMachine.TestCase.settings = settings(
    max_examples=15, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
TestDelaysAgainstTheirModel = DelayMachine.TestCase
