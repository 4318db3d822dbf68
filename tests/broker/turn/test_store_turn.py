"""Messages that the broker itself stores: where they go, when their makers hear of it, what a failure takes back."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.broker.conftest import StartBroker, small_config
from tests.broker.disks import FailingDisk
from tests.broker.transacting import COMMIT, Half, end
from tests.broker.wire import Connect, Wire
from tests.helpers.waiting import until

from cometmq.broker.controller import Broker
from cometmq.broker.turn.inner_message import InnerMessage, Stored
from cometmq.broker.turn.targets import RefusedError
from cometmq.message.record import decode_record
from cometmq.remoting.codes import ResponseCode
from cometmq.testing import VirtualClock

MESSAGE = InnerMessage("Inner", 3, b"body", "TAGS\x01a\x02KEYS\x01k", 7, 0, 1234, bytes(8), 2)


async def stored_once(broker: Broker, message: InnerMessage) -> Stored | RefusedError:
    outcomes: list[Stored | RefusedError] = []
    broker.turn.put_inner(message, outcomes.append)
    assert not outcomes, "nobody hears of a message before it is stored"
    broker.turn.end()
    return outcomes[0]


async def test_an_inner_message_is_stored_as_it_is(broker: Broker) -> None:
    stored = await stored_once(broker, MESSAGE)
    assert isinstance(stored, Stored)
    data = broker.store.record_at(stored.physical_offset)
    assert data is not None
    record = decode_record(data)
    assert (record.topic, record.queue_id, record.queue_offset) == ("Inner", 3, 0)
    assert (record.body, record.properties_text, record.flag) == (b"body", MESSAGE.properties, 7)
    assert (record.born_timestamp, record.reconsume_times) == (1234, 2)
    found = broker.store.query("Inner", "k", 1, 0, 1 << 62)
    assert len(found.records) == 1


async def test_offsets_of_one_queue_follow_each_other(broker: Broker) -> None:
    offsets = [(await stored_once(broker, MESSAGE)) for _ in range(3)]
    assert [stored.queue_offset for stored in offsets if isinstance(stored, Stored)] == [0, 1, 2]


async def test_the_loop_ends_the_turn_by_itself(broker: Broker, connect: Connect) -> None:
    outcomes: list[Stored | RefusedError] = []
    broker.turn.put_inner(MESSAGE, outcomes.append)
    wire = await connect()
    await wire.send("Other", b"x")
    assert isinstance(outcomes[0], Stored)


async def test_a_failed_write_is_told_to_everybody_and_stores_nothing(tmp_path: Path, clock: VirtualClock) -> None:
    disk = FailingDisk()
    broker = Broker(small_config(tmp_path), clock=clock, disk=disk)
    await broker.start()
    try:
        await stored_once(broker, MESSAGE)
        end = broker.store.max_physical_offset
        disk.write_error = errno.ENOSPC
        assert isinstance(await stored_once(broker, MESSAGE), RefusedError)
        assert broker.store.max_physical_offset == end
        disk.write_error = None
    finally:
        await broker.stop()


async def test_a_stopping_broker_takes_none(broker: Broker) -> None:
    broker.turn.stop()
    with pytest.raises(RefusedError):
        broker.turn.put_inner(MESSAGE, lambda _: None)


@pytest.mark.parametrize("waits", ["DELAY\x011", "TIMER_DELAY_MS\x011000", "TRAN_MSG\x01true\x02PGROUP\x01p"])
async def test_what_is_taken_to_wait_fits_into_a_log_file_when_it_goes_on(
    start_broker: StartBroker, connect_to: Callable[[Broker], Awaitable[Wire]], clock: VirtualClock, waits: str
) -> None:
    """The log files are so small that the largest message does not fit; the topic's name is as long as can be."""
    size = 1024 * 1024
    broker = await start_broker(mapped_file_size_commit_log=size)
    wire = await connect_to(broker)
    topic = "T" * 127
    taken = []
    for length in range(size - 800, size, 10):
        answer = await wire.send(topic, bytes(length), properties=f"{waits}\x02UNIQ_KEY\x01k")
        if answer.code == ResponseCode.SUCCESS:
            taken.append(length)
            if "TRAN_MSG" in waits:
                half = Half("k", int(answer.ext_fields["queueOffset"]), int(answer.ext_fields["msgId"][16:], 16))
                assert (await end(wire, half, COMMIT, "p")).code == ResponseCode.SUCCESS
        else:
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    clock.advance(2)
    await until(lambda: broker.store.queue(topic, 0).max_offset() == len(taken))
    assert 0 < len(taken) < 80


async def test_properties_over_the_limit_are_refused(broker: Broker) -> None:
    long = InnerMessage("Inner", 0, b"", "a\x01" + "b" * 32_768, 0, 0, 0, bytes(8))
    with pytest.raises(RefusedError, match="32KB"):
        broker.turn.put_inner(long, lambda _: None)
