from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.consumer.config import PushConfig
from cometmq.client.consumer.process_queue import ConsumeRequest, ProcessQueue
from cometmq.client.consumer.pulling import Budget, Chunk
from cometmq.message.message import MessageExt, split_records
from cometmq.message.record import encode_record
from cometmq.remoting.bodies import MessageQueue

QUEUE = MessageQueue("T", "b", 0)
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


def message(offset: int) -> MessageExt:
    record = encode_record(
        topic="T",
        queue_id=0,
        queue_offset=offset,
        physical_offset=offset * 200,
        body=b"body",
        properties_text="",
        born_timestamp=1,
        born_host=HOST,
        store_timestamp=2,
        store_host=HOST,
    )
    return next(iter(split_records(record)))


def chunk(first: int, count: int) -> Chunk:
    return Chunk([message(first + number) for number in range(count)], first + count, 100 * count)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(1, 3), st.randoms(use_true_random=False))
def test_the_offset_is_always_that_of_the_first_message_not_done(counts: list[int], size: int, random: object) -> None:
    requests: list[ConsumeRequest] = []
    queue = ProcessQueue(QUEUE, PushConfig(consume_batch_size=size), Budget(10**9), requests.extend)
    queue.begin(100)
    at = 100
    for count in counts:
        queue.take(chunk(at, count) if count else Chunk([], at + 1, 0))
        at += count or 1
    opened = {offset for request in requests for offset in (message.queue_offset for message in request.messages)}
    shuffled = list(requests)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for request in shuffled:
        kept = request.messages[len(request.messages) // 2 :]
        opened -= {message.queue_offset for message in request.messages[: len(request.messages) // 2]}
        queue.shrink(request, kept)
        assert queue.offset == min(opened, default=at)
        opened -= {message.queue_offset for message in kept}
        queue.finish(request)
        assert queue.offset == min(opened, default=at)
    assert queue.offset == at
    assert queue.cached_count == queue.cached_bytes == 0


async def test_flow_control_waits_for_room_and_goes_on() -> None:
    requests: list[ConsumeRequest] = []
    queue = ProcessQueue(QUEUE, PushConfig(pull_threshold_for_queue=3), Budget(10**9), requests.extend)
    queue.begin(0)
    queue.take(chunk(0, 3))
    waiting = asyncio.create_task(queue.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.finish(requests[0])
    await waiting


async def test_a_dropped_queue_takes_nothing_and_gives_its_memory_back() -> None:
    budget = Budget(1000)
    requests: list[ConsumeRequest] = []
    queue = ProcessQueue(QUEUE, PushConfig(), budget, requests.extend)
    other = ProcessQueue(QUEUE, PushConfig(), budget, lambda requests: None)
    queue.begin(0)
    queue.take(chunk(0, 3))
    assert (queue.cached_bytes, budget.share_bytes) == (300, 500)
    await queue.stop_reading()
    queue.take(chunk(3, 3))
    queue.release()
    queue.finish(requests[0])
    assert (queue.cached_bytes, budget.share_bytes) == (0, 1000)
    assert len(requests) == 3
    assert not other.is_full


async def test_a_queue_that_waits_for_room_gets_the_share_of_one_that_is_left() -> None:
    budget = Budget(1000)
    queue, other = (ProcessQueue(QUEUE, PushConfig(), budget, lambda requests: None) for _ in range(2))
    queue.begin(0)
    queue.take(chunk(0, 6))
    waiting = asyncio.create_task(queue.room())
    await asyncio.sleep(0)
    assert queue.is_full
    assert not waiting.done()
    other.release()
    await waiting
