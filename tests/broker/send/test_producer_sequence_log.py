"""The table of producers' sequences over restarts, crashes, cut requests and damaged files."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.conftest import ConnectTo, StartBroker, small_config
from tests.broker.send.sequences import all_stored, body_of, once_read, open_producer, send
from tests.broker.snapshots import copy_store
from tests.broker.wire import Wire
from tests.helpers.waiting import until

from cometmq.broker.controller import Broker
from cometmq.broker.limits import PRODUCER_SAVE_SLICE_BYTES
from cometmq.broker.send.producer_sequences import ProducerState
from cometmq.message.names import PRODUCER_RUNS_TOPIC
from cometmq.message.producer_sequence import ProducerLane
from cometmq.remoting.admin_headers import DeleteTopicRequestHeader
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import OpenProducerRequestHeader
from cometmq.testing import VirtualClock


@pytest.mark.parametrize("saved", [False, True])
async def test_a_clean_restart_remembers(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, saved: bool
) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)
    await open_producer(wire)
    first = await send(wire, range(3), note="n")
    if saved:
        await broker.producers.save()
    second = await send(wire, range(3, 5), note="n")
    await broker.stop()
    wire = await connect_to(await start_broker())
    opened = await open_producer(wire)
    assert opened.epoch == 2
    assert opened.lanes == {"T/0": ProducerLane(5, zlib.crc32(body_of(range(5))), "n")}
    again = await send(wire, range(3, 5), epoch=2)
    assert again.ext_fields["queueOffset"] == second.ext_fields["queueOffset"]
    assert (await send(wire, range(3), epoch=1)).code == ResponseCode.PRODUCER_FENCED
    assert first.code == 0
    assert await all_stored(wire) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("others", [2, 3, 5])
async def test_a_topic_that_is_made_anew_has_none_of_the_messages(
    start_broker: StartBroker, connect_to: ConnectTo, others: int
) -> None:
    """Whether it holds fewer messages than before, as many or more; the log, which tells after a restart, has both."""
    broker = await start_broker()
    wire = await connect_to(broker)
    await open_producer(wire)
    await send(wire, range(3))
    await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader("T"))
    assert (await send(wire, range(others), producer="other")).code == 0
    assert (await send(wire, range(3, 4))).code == ResponseCode.SEQUENCE_GAP
    for _ in range(2):
        assert "T/0" not in (await open_producer(wire)).lanes
        await broker.stop()
        broker = await start_broker()
        wire = await connect_to(broker)
    assert "T/0" not in (await open_producer(wire)).lanes
    assert (await send(wire, range(2), epoch=4)).code == 0
    await broker.stop()
    (Path(broker.config.store_path_root_dir) / "comet" / "producers.json").unlink(missing_ok=True)
    wire = await connect_to(await start_broker())
    assert (await open_producer(wire)).lanes["T/0"].next == 2
    assert (await send(wire, range(3), epoch=5)).code == 0
    assert await all_stored(wire) == [*range(others), *range(3)]


async def test_a_run_that_has_sent_nothing_fences_the_one_before_also_after_a_crash(
    start_broker: StartBroker, connect_to: ConnectTo, tmp_path: Path
) -> None:
    """The log has it that the run began, though no file was written and no message sent."""
    broker = await start_broker()
    wire = await connect_to(broker)
    await open_producer(wire)
    await send(wire, range(3))
    assert (await open_producer(wire)).epoch == 2
    left = tmp_path / "left"
    copy_store(Path(broker.config.store_path_root_dir), left)
    await broker.stop()
    (left / "comet" / "producers.json").unlink(missing_ok=True)
    shutil.rmtree(broker.config.store_path_root_dir)
    left.rename(broker.config.store_path_root_dir)
    broker = await start_broker()
    wire = await connect_to(broker)
    zombie = await once_read(lambda: send(wire, range(3, 4), epoch=1))
    assert zombie.code == ResponseCode.PRODUCER_FENCED
    assert (await send(wire, range(3, 5), epoch=2)).code == 0
    assert await all_stored(wire) == [0, 1, 2, 3, 4]
    assert PRODUCER_RUNS_TOPIC not in [
        path.name for path in (Path(broker.config.store_path_root_dir) / "consumequeue").iterdir()
    ]


async def test_a_store_that_knows_no_producers_is_not_read_at_start(broker: Broker, wire: Wire) -> None:
    await wire.send("T", b"1")
    answer = await wire.call(RequestCode.OPEN_PRODUCER, OpenProducerRequestHeader(producer="q-0", batch=0))
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "are still being read from the log" in (answer.remark or "")
    assert (await open_producer(wire)).epoch == 1
    saved = Path(broker.config.store_path_root_dir) / "comet" / "producers.json"
    await until(saved.exists)  # once the log is flushed


async def test_a_run_that_the_disk_does_not_take_in_time_is_to_be_begun_again(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start_broker(flush_disk_type="SYNC_FLUSH", sync_flush_timeout=3000)
    wire = await connect_to(broker)
    assert (await open_producer(wire)).epoch == 1
    flushes: list[Callable[[None], None]] = []
    monkeypatch.setattr(broker.store, "when_flushed", lambda _position, callback: flushes.append(callback))
    waiting = wire.command(RequestCode.OPEN_PRODUCER, OpenProducerRequestHeader(producer="q-0", batch=0))
    wire.post(waiting)
    while not flushes:
        await asyncio.sleep(0)
    clock.advance(3.0)
    assert (await wire.answer(waiting.opaque)).code == ResponseCode.SYSTEM_BUSY
    monkeypatch.undo()
    for flushed in flushes:
        flushed(None)
    assert (await send(wire, range(3))).code == ResponseCode.PRODUCER_FENCED, "the run before is fenced all the same"
    assert (await open_producer(wire)).epoch == 3


async def test_a_broker_that_stops_does_not_wait_until_its_log_is_read(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    await wire.send("T", b"1")
    ((_, view),) = broker.store.records(0, broker.store.max_physical_offset)
    monkeypatch.setattr(broker.store, "records", lambda _start, _end: itertools.repeat((0, view)))
    answer = await wire.call(RequestCode.OPEN_PRODUCER, OpenProducerRequestHeader(producer="q-0", batch=0))
    assert answer.code == ResponseCode.SYSTEM_BUSY
    await asyncio.wait_for(broker.stop(), 60)


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"position": 99999999, "producers": {}, "version": 1}', b'{"version": 7}']
)
async def test_a_damaged_or_foreign_file_is_made_up_for_by_the_log(
    start_broker: StartBroker, connect_to: ConnectTo, content: bytes
) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)
    await open_producer(wire)
    await send(wire, range(3))
    await broker.stop()
    (Path(broker.config.store_path_root_dir) / "comet" / "producers.json").write_bytes(content)
    assert (await open_producer(await connect_to(await start_broker()))).lanes["T/0"].next == 3


@pytest.mark.parametrize(
    ("limit", "queues"), [({"MAX_PRODUCERS": 2}, 1), ({"MAX_PRODUCER_LANES": 4}, 2)], ids=["producers", "queues"]
)
async def test_a_log_that_tells_of_more_than_is_known_can_be_read(
    start_broker: StartBroker,
    connect_to: ConnectTo,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    limit: dict[str, int],
    queues: int,
) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)
    for number in range(5):
        await open_producer(wire, f"p-{number}")
        for queue_id in range(queues):
            await send(wire, range(3), producer=f"p-{number}", queue_id=queue_id)
        clock.advance(1)
    await broker.stop()
    (Path(broker.config.store_path_root_dir) / "comet" / "producers.json").unlink()
    for name, most in limit.items():
        monkeypatch.setattr(f"cometmq.broker.send.producer_sequences.{name}", most)
    broker = await start_broker()
    wire = await connect_to(broker)
    for number in (3, 4):
        opened = await asyncio.wait_for(open_producer(wire, f"p-{number}"), 60)
        assert opened.lanes["T/0"].next == 3
    assert list(broker.producers.table().producers) == ["p-3", "p-4"]


async def test_a_large_table_is_saved_while_the_broker_serves(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)
    await open_producer(wire)
    await send(wire, range(3))
    table = broker.producers.table()
    lane = table.lane("q-0", "T/0")
    for number in range(20):
        lanes = {f"T{queue}/0": msgspec.structs.replace(lane, next=queue) for queue in range(500)}
        table.producers[f'many "{number}"'] = ProducerState(number, 1, clock.now_ms(), lanes)
    expected = msgspec.to_builtins(table.producers)
    saving = asyncio.create_task(broker.producers.save())
    turns = 0
    while not saving.done():
        await asyncio.sleep(0)
        turns += 1
    saved = Path(broker.config.store_path_root_dir) / "comet" / "producers.json"
    assert turns > saved.stat().st_size / PRODUCER_SAVE_SLICE_BYTES > 10
    assert msgspec.json.decode(saved.read_bytes())["producers"] == expected


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 1), st.integers(0, 6), st.integers(1, 5)),
        st.tuples(st.just("open"), st.integers(0, 2)),
        st.tuples(st.just("plain"), st.integers(0, 1)),
        st.tuples(st.just("save")),
        st.tuples(st.just("begin to save"), st.integers(0, 8)),
        st.tuples(st.just("restart")),
        st.tuples(st.just("crash"), st.integers(0, 400)),
    ),
    min_size=3,
    max_size=25,
)


@pytest.mark.crash
@given(steps=_STEPS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_happens_each_message_is_stored_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]
) -> None:
    """Sends with any numbers, runs, restarts, and crashes that cut the log anywhere: the broker agrees with a model.

    The table is saved at once, or in pieces between which all the rest goes on.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cometmq.broker.send.producer_sequence_log.PRODUCER_SAVE_SLICE_BYTES", 1)
        asyncio.run(_follow(tmp_path_factory.mktemp("sequences"), steps))


async def _follow(place: Path, steps: list[tuple[Any, ...]]) -> None:
    clock = VirtualClock()
    life = 0
    saving: list[asyncio.Task[None]] = []

    async def begin() -> tuple[Broker, Wire]:
        broker = Broker(small_config(place / str(life)), clock=clock)
        await broker.start()
        return broker, Wire(*await asyncio.open_connection("127.0.0.1", broker.server.port))

    async def end() -> None:
        await wire.close()
        await asyncio.gather(*saving)
        saving.clear()
        await broker.stop()

    broker, wire = await begin()
    epoch, batch = (await open_producer(wire)).epoch, 0
    try:
        for step in steps:
            clock.advance(0.002)
            if step[0] == "send":
                _, queue_id, back, count = step
                kept = [n for n in await all_stored(wire, queue_id) if n // 1_000_000 == batch]
                first = max(len(kept) - back, 0) if back < 6 else len(kept) + 1
                numbers = range(first, first + count)
                begin_at = batch * 1_000_000
                answer = await send(wire, numbers, epoch=epoch, batch=batch, first=begin_at, queue_id=queue_id)
                if first > len(kept):
                    assert answer.code == ResponseCode.SEQUENCE_GAP
                else:
                    assert answer.code == 0, answer.remark
            elif step[0] == "open":
                batch = max(batch, step[1])
                epoch = (await open_producer(wire, batch=batch)).epoch
            elif step[0] == "plain":
                await wire.send("T", b"-1", queue_id=step[1])
            elif step[0] == "save":
                await broker.producers.save()
            elif step[0] == "begin to save":
                saving.append(asyncio.create_task(broker.producers.save()))
                for _ in range(step[1]):
                    await asyncio.sleep(0)
            else:
                lost = step[1] if step[0] == "crash" else 0
                if step[0] == "restart":
                    await end()
                    shutil.copytree(place / str(life), place / str(life + 1))
                else:
                    flushed = broker.store.flushed_position
                    log_end = broker.store.max_physical_offset
                    copy_store(place / str(life), place / str(life + 1))
                    await end()
                    (place / str(life + 1) / "store" / "abort").touch()
                    _cut(place / str(life + 1), max(log_end - lost, flushed), log_end)
                life += 1
                broker, wire = await begin()
                opened = await open_producer(wire, batch=batch)
                epoch = opened.epoch
                for queue_id in (0, 1):
                    kept = [n for n in await all_stored(wire, queue_id) if n // 1_000_000 == batch]
                    lane = opened.lanes.get(f"T/{queue_id}")
                    assert (0 if lane is None else lane.next) == len(kept)
            for queue_id in (0, 1):
                found = [n for n in await all_stored(wire, queue_id) if n >= 0]
                of_batches = {number // 1_000_000 for number in found}
                assert found == [b * 1_000_000 + n for b in sorted(of_batches) for n in range(_count(found, b))]
    finally:
        await end()


def _count(found: list[int], batch: int) -> int:
    return sum(number // 1_000_000 == batch for number in found)


def _cut(directory: Path, position: int, end: int) -> None:
    """Leave the log as a power cut does: zeros from ``position`` on."""
    (segment,) = (directory / "store" / "commitlog").glob("0" * 20)
    with segment.open("r+b") as file:
        file.seek(position)
        file.write(bytes(end - position))
    position_file = directory / "store" / "comet" / "position.json"
    position_file.unlink(missing_ok=True)
