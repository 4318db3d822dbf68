"""Batches with sequences, sent over a wire."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable
from typing import Any

from tests.broker.wire import Wire, records, send_header
from tests.helpers.waiting import real_time

from cometmq.message.batch import BatchPiece, encode_batch
from cometmq.message.producer_sequence import ProducerLane, ProducerLanes, ProducerSequence
from cometmq.remoting.bodies import decode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import OpenProducerRequestHeader, OpenProducerResponseHeader

_PAUSE_S = 0.001


class Opened:
    """The answer of a broker when a producer is opened."""

    def __init__(self, answer: RemotingCommand) -> None:
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        self.epoch = answer.header(OpenProducerResponseHeader).epoch
        self.lanes: dict[str, ProducerLane] = decode_body(ProducerLanes, answer.body).lanes


async def once_read(ask: Callable[[], Awaitable[RemotingCommand]]) -> RemotingCommand:
    """Ask until the broker has read its log for what producers sent; the answer."""
    while (answer := await ask()).code == ResponseCode.SYSTEM_BUSY:
        await real_time(_PAUSE_S)
    return answer


async def open_answer(wire: Wire, producer: str = "q-0", batch: int = 0) -> RemotingCommand:
    header = OpenProducerRequestHeader(producer=producer, batch=batch)
    return await once_read(lambda: wire.call(RequestCode.OPEN_PRODUCER, header))


async def open_producer(wire: Wire, producer: str = "q-0", batch: int = 0) -> Opened:
    return Opened(await open_answer(wire, producer, batch))


def body_of(numbers: range) -> bytes:
    return encode_batch(BatchPiece(0, b"%d" % number, f"UNIQ_KEY\x01u{number}") for number in numbers)


async def send(
    wire: Wire,
    numbers: range,
    *,
    epoch: int = 1,
    batch: int = 0,
    first: int = 0,
    body: bytes | None = None,
    **more: Any,
) -> RemotingCommand:
    """Send the messages with these numbers; the body of each is its number and ``first`` together."""
    crc = zlib.crc32(body_of(range(first, first + numbers.stop)) if body is None else body)
    sequence = ProducerSequence(
        more.pop("producer", "q-0"), batch, epoch, numbers.start, len(numbers), crc, more.pop("note", "")
    )
    header = send_header("T", batch=True, properties=f"PRODUCER_SEQUENCE\x01{sequence.text()}\x02", **more)
    return await wire.call(
        RequestCode.SEND_BATCH_MESSAGE, header, body or body_of(range(first + numbers.start, first + numbers.stop))
    )


async def all_stored(wire: Wire, queue_id: int = 0) -> list[int]:
    """The numbers in the bodies of a queue's messages."""
    found: list[int] = []
    while (answer := await wire.pull("T", queue_id=queue_id, queue_offset=len(found))).code == ResponseCode.SUCCESS:
        found += [int(record.body) for record in records(answer)]
    return found
