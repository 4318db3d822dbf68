"""Large batches that Python reads, in slices: others are answered meanwhile, and the batch is stored as any other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo
from tests.broker.send.sequences import open_producer, send
from tests.broker.wire import Wire, records, send_header

import cometmq.broker.send.large_batches
from cometmq.broker.controller import Broker
from cometmq.broker.send.large_batches import LARGE_BYTES
from cometmq.broker.slices import do_in_slices
from cometmq.message.batch import BatchPiece, encode_batch
from cometmq.message.compression import compress
from cometmq.message.sysflag import COMPRESSED
from cometmq.remoting.codes import RequestCode, ResponseCode

MANY = 2_000
TTL = "COMETMQ_TTL_MS\x0186400000"
"""The core leaves messages with a life time to Python."""


def large(last: str = TTL) -> bytes:
    keys = " ".join(f"key-{number}" for number in range(10))
    pieces = [BatchPiece(0, b"%d" % number, f"{TTL}\x02KEYS\x01{keys}") for number in range(MANY - 1)]
    body = encode_batch([*pieces, BatchPiece(0, b"%d" % (MANY - 1), last)])
    assert len(body) > 2 * LARGE_BYTES
    return body


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Is set when a batch begins to be read; each slice reads a single message."""
    event = asyncio.Event()

    def note_and_do(steps: Iterator[None]) -> None:
        event.set()
        do_in_slices(steps)

    monkeypatch.setattr(cometmq.broker.send.large_batches, "do_in_slices", note_and_do)
    monkeypatch.setattr(cometmq.broker.send.large_batches, "SLICES_SECONDS", 0)
    return event


async def test_others_are_answered_while_a_batch_is_read_and_its_connection_waits(
    broker: Broker, connect_to: ConnectTo, begun: asyncio.Event
) -> None:
    wire, other = await connect_to(broker), await connect_to(broker)
    first = wire.command(RequestCode.SEND_BATCH_MESSAGE, send_header("T", batch=True), large())
    then = wire.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"then")
    wire.post(first)
    wire.post(then)
    answered = asyncio.create_task(wire.answer(then.opaque))
    await begun.wait()
    assert (await other.send("T", b"meanwhile")).ext_fields["queueOffset"] == "0"
    assert not answered.done()
    assert (await answered).ext_fields["queueOffset"] == str(MANY + 1)
    assert wire.answers[first.opaque].ext_fields["queueOffset"] == "1"
    stored = records(await other.pull("T", queue_offset=MANY - 1, max_msg_nums=5))
    assert [record.body for record in stored] == [b"%d" % (MANY - 2), b"%d" % (MANY - 1), b"then"]


async def test_a_large_batch_that_is_sent_again_is_not_stored_again(wire: Wire, begun: asyncio.Event) -> None:
    producer = await open_producer(wire)
    for _ in range(2):
        answer = await send(wire, range(MANY), epoch=producer.epoch, body=large())
        assert (answer.code, answer.ext_fields["queueOffset"]) == (ResponseCode.SUCCESS, "0")
    assert begun.is_set()
    assert (await wire.send("T", b"next")).ext_fields["queueOffset"] == str(MANY)


async def test_a_large_packed_batch_is_stored_plain(wire: Wire, begun: asyncio.Event) -> None:
    header = send_header("T", batch=True, sys_flag=COMPRESSED)
    assert (await wire.call(RequestCode.SEND_MESSAGE_V2, header, compress(large()))).code == ResponseCode.SUCCESS
    assert begun.is_set()
    record = records(await wire.pull("T"))[0]
    assert (record.body, record.sys_flag) == (b"0", 0)


@pytest.mark.parametrize("body", [large("DELAY\x013"), large()[:-1]], ids=["a delay", "cut"])
async def test_a_large_batch_that_is_refused_stores_nothing(wire: Wire, body: bytes) -> None:
    answer: Any = await wire.call(RequestCode.SEND_BATCH_MESSAGE, send_header("T", batch=True), body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert (await wire.send("T", b"first")).ext_fields["queueOffset"] == "0"
