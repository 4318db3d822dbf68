"""Long polling: who is woken, when, and what bounds the waiting."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.pull.holding import held, post_pull
from tests.broker.wire import Connect, Wire, records
from tests.helpers.waiting import until

import cometmq.broker.pull.pull_request_hold
from cometmq.broker.controller import Broker
from cometmq.broker.limits import HELD_SLICE_SECONDS
from cometmq.broker.pull.held_queue import HeldPull, HeldQueue
from cometmq.broker.pull.pull_request_hold import PullRequestHoldService
from cometmq.remoting.codes import ResponseCode
from cometmq.testing import VirtualClock


async def test_arriving_message_wakes_at_once(broker: Broker, wire: Wire, connect: Connect) -> None:
    await wire.send("T", b"first")
    waiting = post_pull(wire, queue_offset=1)
    await held(broker)
    producer = await connect()
    await producer.send("T", b"second")
    answer = await wire.answer(waiting.opaque)
    assert answer.code == ResponseCode.SUCCESS
    assert [record.body for record in records(answer)] == [b"second"]
    assert len(broker.hold) == 0


async def test_first_message_of_an_empty_queue_wakes(broker: Broker, wire: Wire, connect: Connect) -> None:
    await wire.send("T", queue_id=1)
    waiting = post_pull(wire)
    await held(broker)
    await (await connect()).send("T", b"new")
    assert [record.body for record in records(await wire.answer(waiting.opaque))] == [b"new"]


async def test_waiting_for_queues_without_messages_creates_no_queues(broker: Broker, wire: Wire) -> None:
    await wire.send("T", queue_id=3)
    for queue_id in range(4):
        post_pull(wire, queue_id=queue_id, queue_offset=queue_id // 3)
    await held(broker, 4)
    assert [broker.store.find_queue("T", queue_id) is not None for queue_id in range(4)] == [False, False, False, True]


async def test_other_queues_and_other_tags_do_not_wake(broker: Broker, wire: Wire, connect: Connect) -> None:
    await wire.send("T", properties="TAGS\x01a")
    waiting = post_pull(wire, queue_offset=1, subscription="b")
    await held(broker)
    producer = await connect()
    await producer.send("T", queue_id=1, properties="TAGS\x01b")
    await producer.send("T", properties="TAGS\x01a")
    assert len(broker.hold) == 1
    await producer.send("T", b"wanted", properties="TAGS\x01b")
    assert [record.body for record in records(await wire.answer(waiting.opaque))] == [b"wanted"]


async def test_one_message_wakes_everyone(broker: Broker, wire: Wire, connect: Connect) -> None:
    await wire.send("T")
    waiting = [post_pull(wire, queue_offset=1, consumer_group=f"g{n}") for n in range(20)]
    await held(broker, 20)
    await (await connect()).send("T", b"all")
    for command in waiting:
        assert [record.body for record in records(await wire.answer(command.opaque))] == [b"all"]


async def test_sends_are_answered_whatever_happens_to_waiting_pulls(
    broker: Broker, wire: Wire, connect: Connect, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await wire.send("T")
    waiting = post_pull(wire, queue_offset=1, subscription="TagA")
    await held(broker)
    with monkeypatch.context() as patched:
        patched.setattr(HeldQueue, "match_by_tags", lambda *_: 1 / 0)
        assert (await (await connect()).send("T", b"stored")).code == ResponseCode.SUCCESS
    clock.advance(5)
    assert [record.body for record in records(await wire.answer(waiting.opaque))] == [b"stored"]


@pytest.mark.parametrize("slice_s", [HELD_SLICE_SECONDS, 0.0], ids=["at once", "over turns"])
async def test_time_is_up(
    broker: Broker, wire: Wire, clock: VirtualClock, slice_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the time comes while a sweep is under way."""
    monkeypatch.setattr(cometmq.broker.pull.pull_request_hold, "HELD_SLICE_SECONDS", slice_s)
    await wire.send("T")
    waiting = post_pull(wire, queue_offset=1, wait_ms=15_000)
    await held(broker)
    clock.advance(14)
    assert len(broker.hold) == 1
    clock.advance(2)
    answer = await wire.answer(waiting.opaque)
    assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE")


async def test_queue_that_grew_without_a_match_moves_the_consumer_on(
    broker: Broker, wire: Wire, connect: Connect, clock: VirtualClock
) -> None:
    await wire.send("T", properties="TAGS\x01a")
    waiting = post_pull(wire, queue_offset=1, subscription="b")
    await held(broker)
    await (await connect()).send("T", properties="TAGS\x01a")
    clock.advance(5)
    answer = await wire.answer(waiting.opaque)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.ext_fields["nextBeginOffset"] == "2"


async def test_short_polling(start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock) -> None:
    broker = await start_broker(long_polling_enable=False, short_polling_time_mills=1000)
    wire = await connect_to(broker)
    await wire.send("T")
    waiting = post_pull(wire, queue_offset=1, wait_ms=15_000)
    await held(broker)
    clock.advance(2)
    assert (await wire.answer(waiting.opaque)).code == ResponseCode.PULL_NOT_FOUND


async def test_no_wait_is_not_held(broker: Broker, wire: Wire) -> None:
    await wire.send("T")
    answer = await wire.pull("T", queue_offset=1, wait_ms=0)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert len(broker.hold) == 0


async def test_closed_connection_lets_go(broker: Broker, connect: Connect) -> None:
    leaving, staying = await connect(), await connect()
    await staying.send("T")
    for wire in (leaving, staying):
        post_pull(wire, queue_offset=1)
    await held(broker, 2)
    await leaving.close()
    await held(broker, 1)


async def test_topic_deleted_while_waiting(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    await wire.send("T")
    waiting = post_pull(wire, queue_offset=1)
    await held(broker)
    broker.topics.delete("T")
    clock.advance(16)
    assert (await wire.answer(waiting.opaque)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_too_many_of_one_connection_are_answered_at_once(
    broker: Broker, wire: Wire, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.pull.pull_request_hold, "MAX_HELD_PULLS_OF_CONNECTION", 2)
    await wire.send("T")
    for _ in range(2):
        post_pull(wire, queue_offset=1)
    answer = await wire.pull("T", queue_offset=1, wait_ms=15_000)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    other = await connect()
    post_pull(other, queue_offset=1)
    await held(broker, 3)


async def test_too_many_in_all_are_answered_at_once(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.pull.pull_request_hold, "MAX_HELD_PULLS", 1)
    await wire.send("T")
    post_pull(wire, queue_offset=1)
    assert (await wire.pull("T", queue_offset=1, wait_ms=15_000)).code == ResponseCode.PULL_NOT_FOUND


async def test_texts_of_waiting_pulls_are_bounded(
    broker: Broker, wire: Wire, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.pull.pull_request_hold, "MAX_HELD_PULL_CHARS", 1_100)
    await wire.send("T")
    other = await connect()
    post_pull(other, queue_offset=1, subscription="t" * 900)
    await held(broker)
    long = await wire.pull("T", queue_offset=1, wait_ms=15_000, subscription="t" * 900)
    assert long.code == ResponseCode.PULL_NOT_FOUND
    await other.close()
    await held(broker, 0)
    post_pull(wire, queue_offset=1, subscription="t" * 900)
    await held(broker)


async def test_pulls_of_a_client_that_does_not_read_wait_until_it_reads(
    broker: Broker, connect: Connect, clock: VirtualClock
) -> None:
    producer, idle = await connect(), await connect()
    await producer.send("T")
    waiting = [post_pull(idle, queue_offset=1) for _ in range(40)]
    await held(broker, 40)
    await producer.send("T", bytes(4_000_000))
    assert 30 < len(broker.hold) < 40, "answers of more than the high-water mark are not made"
    clock.advance(16)
    assert len(broker.hold) > 30, "also when their time is up"
    for command in waiting:
        while command.opaque not in idle.answers:
            try:
                await idle.read(0.05)
            except TimeoutError:
                clock.advance(1)
        assert idle.answers.pop(command.opaque).code == ResponseCode.SUCCESS
    assert len(broker.hold) == 0


async def test_sweeps_look_at_pulls_that_are_due_or_whose_queue_has_grown_only(
    broker: Broker, wire: Wire, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each second a sweep looked at all: with 80,000 pulls a tenth of a processor."""
    looked: list[HeldPull] = []
    for name in ("_answer_pull", "_has_grown"):
        plain = getattr(PullRequestHoldService, name)

        def counted(hold: PullRequestHoldService, pull: HeldPull, plain: Callable[..., bool] = plain) -> bool:
            looked.append(pull)
            return plain(hold, pull)

        monkeypatch.setattr(PullRequestHoldService, name, counted)
    await wire.send("T")
    await wire.send("T", queue_id=1, properties="TAGS\x01a")
    for number in range(50):
        post_pull(wire, queue_offset=1, consumer_group=f"g{number}", wait_ms=30_000)
    other = post_pull(wire, queue_id=1, queue_offset=1, subscription="b", wait_ms=30_000)
    early = post_pull(wire, queue_offset=1, wait_ms=3_000)
    await held(broker, 52)
    clock.advance(2)
    assert not looked
    clock.advance(2)
    assert (await wire.answer(early.opaque)).code == ResponseCode.PULL_NOT_FOUND
    assert len(looked) == 1
    await wire.send("T", queue_id=1, properties="TAGS\x01a")
    looked.clear()
    clock.advance(5)
    assert (await wire.answer(other.opaque)).code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert len(looked) == 2
    clock.advance(15)
    assert len(looked) == 2
    clock.advance(7)
    await held(broker, 0)
    assert not broker.hold._queues
    assert not broker.hold._due
    assert not broker.hold._grown


async def test_the_end_of_a_topic_touches_its_own_pulls_only(broker: Broker, wire: Wire) -> None:
    await wire.send("T")
    await wire.send("U")
    post_pull(wire, "T", queue_offset=1)
    post_pull(wire, "U", queue_offset=1)
    await held(broker, 2)
    broker.hold.topic_deleted("T")
    assert [waiting.key for waiting in broker.hold._grown] == [("T", 0)]


async def test_pulls_of_a_closed_connection_are_taken_out_over_turns(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.pull.pull_request_hold, "HELD_SLICE_SECONDS", 0.0)
    leaving, staying = await connect(), await connect()
    await staying.send("T")
    for _ in range(20):
        post_pull(leaving, queue_offset=1)
    post_pull(staying, queue_offset=1)
    await held(broker, 21)
    await leaving.close()
    await held(broker, 1)
    await until(lambda: sum(map(len, broker.hold._due.values())) == 1)
