"""Batches with sequences: stored once each, gaps and zombies refused, over restarts, crashes and cut requests."""

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
from tests.broker.send.sequences import body_of, once_read, open_answer, open_producer, send
from tests.broker.snapshots import copy_store
from tests.broker.wire import Wire, records, send_header
from tests.helpers.waiting import until

from cometmq.broker.controller import Broker
from cometmq.broker.limits import PRODUCER_EXPIRY_SECONDS, PRODUCER_MIN_IDLE_SECONDS, PRODUCER_SAVE_SLICE_BYTES
from cometmq.broker.send.producer_sequences import ProducerSequences, ProducerState
from cometmq.broker.turn.inner_message import Stored
from cometmq.broker.turn.targets import RefusedError
from cometmq.message.names import PRODUCER_RUNS_TOPIC
from cometmq.message.producer_sequence import ProducerLane, ProducerSequence
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import OpenProducerRequestHeader
from cometmq.testing import VirtualClock


async def stored(wire: Wire, queue_id: int = 0) -> list[int]:
    found: list[int] = []
    while (answer := await wire.pull("T", queue_id=queue_id, queue_offset=len(found))).code == ResponseCode.SUCCESS:
        found += [int(record.body) for record in records(answer)]
    return found


async def test_a_request_sent_again_is_stored_once_and_answered_as_the_first_time(wire: Wire) -> None:
    opened = await open_producer(wire)
    assert (opened.epoch, opened.lanes) == (1, {})
    first = await send(wire, range(3))
    again = await send(wire, range(3))
    await send(wire, range(3, 5))
    older = await send(wire, range(3))
    assert (first.code, again.code, older.code) == (0, 0, 0)
    assert first.ext_fields == again.ext_fields
    assert (older.remark, older.ext_fields["msgId"]) == ("stored before", "")
    assert await stored(wire) == [0, 1, 2, 3, 4]


async def test_only_the_first_message_of_a_request_carries_the_sequence(wire: Wire) -> None:
    await open_producer(wire)
    await send(wire, range(3), note="broker-a:4")
    properties = [record.properties for record in records(await wire.pull("T"))]
    assert [sorted(found) for found in properties] == [
        ["CLUSTER", "PRODUCER_SEQUENCE", "UNIQ_KEY"],
        *[["CLUSTER", "UNIQ_KEY"]] * 2,
    ]
    assert properties[0]["PRODUCER_SEQUENCE"].endswith(";q-0;broker-a:4")


async def test_what_overlaps_is_stored_from_where_it_is_new(wire: Wire) -> None:
    await open_producer(wire)
    await send(wire, range(3))
    assert (await send(wire, range(1, 6))).code == 0
    assert await stored(wire) == [0, 1, 2, 3, 4, 5]
    assert (await open_producer(wire)).lanes == {"T/0": ProducerLane(6, zlib.crc32(body_of(range(6))), "")}


async def test_gaps_are_refused(wire: Wire) -> None:
    await open_producer(wire)
    await send(wire, range(3))
    answer = await send(wire, range(5, 6))
    assert answer.code == ResponseCode.SEQUENCE_GAP
    assert answer.remark == "messages 3 to 4 of producer q-0 are missing in T/0"
    assert (await send(wire, range(1, 2), producer="never-seen")).code == ResponseCode.SEQUENCE_GAP
    assert await stored(wire) == [0, 1, 2]


async def test_other_contents_under_the_same_numbers_are_refused(wire: Wire) -> None:
    await open_producer(wire)
    await send(wire, range(3))
    answer = await send(wire, range(3), body=body_of(range(7, 10)))
    assert answer.code == ResponseCode.SEQUENCE_MISMATCH
    assert "stored with other contents" in (answer.remark or "")


async def test_a_later_run_fences_an_earlier_one(wire: Wire) -> None:
    await open_producer(wire)
    await send(wire, range(3))
    later = await open_producer(wire)
    assert (later.epoch, later.lanes["T/0"].next) == (2, 3)
    zombie = await send(wire, range(3, 4), epoch=1)
    assert zombie.code == ResponseCode.PRODUCER_FENCED
    assert "epoch 1 is over" in (zombie.remark or "")
    assert (await send(wire, range(3, 5), epoch=2)).code == 0
    assert await stored(wire) == [0, 1, 2, 3, 4]


async def test_with_a_new_batch_numbers_start_again_and_the_one_before_is_over(wire: Wire) -> None:
    await open_producer(wire)
    await send(wire, range(3))
    opened = await open_producer(wire, batch=1)
    assert (opened.epoch, opened.lanes) == (2, {})
    assert (await send(wire, range(2), batch=1, epoch=2)).code == 0
    assert (await send(wire, range(3, 4), batch=0, epoch=1)).code == ResponseCode.PRODUCER_FENCED
    over = await open_answer(wire, batch=0)
    assert (over.code, over.remark) == (
        ResponseCode.PRODUCER_FENCED,
        "producer q-0 has begun batch 1; batch 0 is over",
    )
    assert await stored(wire) == [0, 1, 2, 0, 1]


async def test_queues_and_producers_count_for_themselves(wire: Wire) -> None:
    await open_producer(wire)
    await open_producer(wire, "q-1")
    await send(wire, range(3))
    await send(wire, range(2), queue_id=1)
    await send(wire, range(1), producer="q-1")
    assert {name: lane.next for name, lane in (await open_producer(wire)).lanes.items()} == {"T/0": 3, "T/1": 2}


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ("PRODUCER_SEQUENCE\x01nonsense", ResponseCode.MESSAGE_ILLEGAL),
        ("PRODUCER_SEQUENCE\x011;0;1;0;9;0;q-0;", ResponseCode.MESSAGE_ILLEGAL),
        ("PRODUCER_SEQUENCE\x011;0;1;0;2;0;q/0;", ResponseCode.MESSAGE_ILLEGAL),
        ("XPRODUCER_SEQUENCE\x01x", ResponseCode.SUCCESS),
        ("PRODUCER_SEQUENCE\x01", ResponseCode.SUCCESS),
    ],
)
async def test_what_is_no_sequence_is_refused(wire: Wire, properties: str, code: int) -> None:
    await open_producer(wire)
    header = send_header("T", batch=True, properties=properties)
    answer = await wire.call(RequestCode.SEND_BATCH_MESSAGE, header, body_of(range(2)))
    assert answer.code == code, answer.remark
    assert len(await stored(wire)) == (2 if code == 0 else 0)


@pytest.mark.parametrize(("producer", "batch"), [("a/b", 0), ("", 0), ("q", -1), ("q" * 161, 0)])
async def test_a_bad_name_is_refused(wire: Wire, producer: str, batch: int) -> None:
    answer = await open_answer(wire, producer, batch)
    assert answer.code == ResponseCode.INVALID_PARAMETER


def put(table: ProducerSequences, producer: str) -> None:
    sequence = ProducerSequence(producer, 0, 1, 0, 1, 7)
    stored = Stored(0, 0)
    table.put(sequence, "T/0", stored)(stored)


def test_an_idle_producer_is_forgotten() -> None:
    clock = VirtualClock()
    table = ProducerSequences(clock=clock)
    put(table, "old")
    clock.advance(PRODUCER_EXPIRY_SECONDS - 1)
    put(table, "young")
    clock.advance(2)
    table.expire()
    assert list(table.producers) == ["young"]


def test_a_full_table_lets_go_of_who_is_idle_and_refuses_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.broker.send.producer_sequences.MAX_PRODUCERS", 2)
    clock = VirtualClock()
    table = ProducerSequences(clock=clock)
    put(table, "a")
    clock.advance(PRODUCER_MIN_IDLE_SECONDS - 1)
    put(table, "b")
    with pytest.raises(RefusedError, match="2 producers with sequences in 2 queues already"):
        table.open("c", 0)
    clock.advance(1)
    table.open("c", 0)
    assert list(table.producers) == ["b", "c"]


def test_a_known_producer_gets_no_more_queues_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.broker.send.producer_sequences.MAX_PRODUCER_LANES", 3)
    clock = VirtualClock()
    table = ProducerSequences(clock=clock)
    put(table, "old")
    clock.advance(PRODUCER_MIN_IDLE_SECONDS - 1)
    put(table, "greedy")
    sequence = ProducerSequence("greedy", 0, 1, 0, 1, 7)
    assert table.stored_of(sequence, "T/1") == 0
    when_stored = table.put(sequence, "T/1", Stored(0, 0))
    for _ in range(2):  # while the third one is being stored, and then
        with pytest.raises(RefusedError, match=r"in \d queues already; those that send nothing for 1 h give way"):
            table.stored_of(sequence, "T/2")
        when_stored(Stored(0, 0))
    assert table.stored_of(sequence, "T/1") == 1
    assert table.stored_of(ProducerSequence("greedy", 0, 1, 1, 1, 8), "T/1") == 0, "known queues go on"
    clock.advance(1)
    assert table.stored_of(sequence, "T/2") == 0
    assert list(table.producers) == ["greedy"], "it does not give way to itself"


async def test_what_another_queue_of_a_full_table_is_refused_is_not_stored(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.broker.send.producer_sequences.MAX_PRODUCER_LANES", 1)
    await open_producer(wire)
    assert (await send(wire, range(2))).code == ResponseCode.SUCCESS
    refused = await send(wire, range(2), queue_id=1)
    assert (refused.code, refused.remark) == (
        ResponseCode.SYSTEM_BUSY,
        "this broker has 1 producers with sequences in 1 queues already; those that send nothing for 1 h give way",
    )
    assert (await send(wire, range(2, 4))).code == ResponseCode.SUCCESS
    assert await stored(wire) == [0, 1, 2, 3]
    assert await stored(wire, 1) == []


async def test_what_a_full_table_refuses_is_not_stored(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    await open_producer(wire)
    monkeypatch.setattr("cometmq.broker.send.producer_sequences.MAX_PRODUCERS", 1)
    assert (await send(wire, range(3), producer="unopened")).code == ResponseCode.SYSTEM_BUSY
    assert (await send(wire, range(2))).code == ResponseCode.SUCCESS
    assert await stored(wire) == [0, 1]


def test_what_a_failed_turn_put_is_not_stored() -> None:
    table = ProducerSequences(clock=VirtualClock())
    first, second = (ProducerSequence("q", 0, 1, n, 1, n) for n in (0, 1))
    callbacks = [table.put(sequence, "T/0", Stored(100 + at, at)) for at, sequence in enumerate((first, second))]
    assert table.known_below(500) == 100
    with pytest.raises(RefusedError, match="being stored right now"):
        table.stored_of(second, "T/0")
    for stored in callbacks:
        stored(RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, "the disk is full"))
    assert table.stored_of(first, "T/0") == 0
    assert table.known_below(500) == 500


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
    assert await stored(wire) == [0, 1, 2, 3, 4]


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
    assert await stored(wire) == [0, 1, 2, 3, 4]
    assert PRODUCER_RUNS_TOPIC not in [
        path.name for path in (Path(broker.config.store_path_root_dir) / "consumequeue").iterdir()
    ]


async def test_a_store_that_knows_no_producers_is_not_read_at_start(broker: Broker, wire: Wire) -> None:
    await wire.send("T", b"1")
    answer = await wire.call(RequestCode.OPEN_PRODUCER, OpenProducerRequestHeader(producer="q-0", batch=0))
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "are being read from the log" in (answer.remark or "")
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
        patch.setattr("cometmq.broker.send.producer_sequences.PRODUCER_SAVE_SLICE_BYTES", 1)
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
                kept = [n for n in await stored(wire, queue_id) if n // 1_000_000 == batch]
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
                    kept = [n for n in await stored(wire, queue_id) if n // 1_000_000 == batch]
                    lane = opened.lanes.get(f"T/{queue_id}")
                    assert (0 if lane is None else lane.next) == len(kept)
            for queue_id in (0, 1):
                found = [n for n in await stored(wire, queue_id) if n >= 0]
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
