"""Batches with sequences: stored once each, gaps and older runs refused."""

from __future__ import annotations

import zlib

import pytest
from tests.broker.send.sequences import all_stored, body_of, open_answer, open_producer, send
from tests.broker.wire import Wire, records, send_header

from cometmq.broker.limits import PRODUCER_EXPIRY_SECONDS, PRODUCER_MIN_IDLE_SECONDS
from cometmq.broker.send.producer_sequences import ProducerSequences
from cometmq.broker.turn.inner_message import Stored
from cometmq.broker.turn.targets import RefusedError
from cometmq.message.producer_sequence import ProducerLane, ProducerSequence
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.testing import VirtualClock


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
    assert await all_stored(wire) == [0, 1, 2, 3, 4]


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
    assert await all_stored(wire) == [0, 1, 2, 3, 4, 5]
    assert (await open_producer(wire)).lanes == {"T/0": ProducerLane(6, zlib.crc32(body_of(range(6))), "")}


async def test_gaps_are_refused(wire: Wire) -> None:
    await open_producer(wire)
    await send(wire, range(3))
    answer = await send(wire, range(5, 6))
    assert answer.code == ResponseCode.SEQUENCE_GAP
    assert answer.remark == "messages 3 to 4 of producer q-0 are missing in T/0"
    assert (await send(wire, range(1, 2), producer="never-seen")).code == ResponseCode.SEQUENCE_GAP
    assert await all_stored(wire) == [0, 1, 2]


async def test_other_contents_under_the_same_numbers_are_refused(wire: Wire) -> None:
    await open_producer(wire)
    await send(wire, range(3))
    answer = await send(wire, range(3), body=body_of(range(7, 10)))
    assert answer.code == ResponseCode.SEQUENCE_MISMATCH
    assert "stored with different contents" in (answer.remark or "")


async def test_a_later_run_fences_an_earlier_one(wire: Wire) -> None:
    await open_producer(wire)
    await send(wire, range(3))
    later = await open_producer(wire)
    assert (later.epoch, later.lanes["T/0"].next) == (2, 3)
    zombie = await send(wire, range(3, 4), epoch=1)
    assert zombie.code == ResponseCode.PRODUCER_FENCED
    assert "epoch 1 has ended" in (zombie.remark or "")
    assert (await send(wire, range(3, 5), epoch=2)).code == 0
    assert await all_stored(wire) == [0, 1, 2, 3, 4]


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
        "producer q-0 has begun batch 1; batch 0 has ended",
    )
    assert await all_stored(wire) == [0, 1, 2, 0, 1]


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
    assert len(await all_stored(wire)) == (2 if code == 0 else 0)


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
    with pytest.raises(RefusedError, match="2 producers with sequences in 2 queues"):
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
        with pytest.raises(RefusedError, match=r"in \d queues; those that are idle for 1 h can be replaced"):
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
        "this broker already has 1 producers with sequences in 1 queues; those that are idle for 1 h can be replaced",
    )
    assert (await send(wire, range(2, 4))).code == ResponseCode.SUCCESS
    assert await all_stored(wire) == [0, 1, 2, 3]
    assert await all_stored(wire, 1) == []


async def test_what_a_full_table_refuses_is_not_all_stored(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    await open_producer(wire)
    monkeypatch.setattr("cometmq.broker.send.producer_sequences.MAX_PRODUCERS", 1)
    assert (await send(wire, range(3), producer="unopened")).code == ResponseCode.SYSTEM_BUSY
    assert (await send(wire, range(2))).code == ResponseCode.SUCCESS
    assert await all_stored(wire) == [0, 1]


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
