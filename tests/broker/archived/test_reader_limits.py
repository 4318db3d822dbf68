"""An archive reader that is stopped, slow or asked too much, and archives of other topics with the same name."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.broker.archived.archiving import archive_store, delete_old_messages, header_of, is_readable, send_many
from tests.broker.archived.conftest import Archived
from tests.broker.archived.test_queries import FOREVER, decoded
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.wire import pull_header
from tests.helpers.waiting import until

from cometmq.broker.limits import ARCHIVE_ANSWER_SECONDS, ARCHIVE_SILENCE_SECONDS, MAX_ARCHIVE_LOOKUPS
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    LOWER,
    Header,
    QueryMessageRequestHeader,
    SearchOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from cometmq.testing import VirtualClock
from cometmq.tier.frames import Extent, Extents, Read

BY_KEY = QueryMessageRequestHeader("T", "key-0", 32, 0, FOREVER)


@contextmanager
def stopped(archived: Archived) -> Iterator[None]:
    """Stop the process of the archive reader for a block."""
    pid = archived.messages.process.pid or 0
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_long_report_replaces_what_is_known_once_it_is_complete(archived: Archived) -> None:
    """Until then the earlier extents are used, also if the reader ends in the middle."""
    messages = archived.messages
    known = messages.extent("T", 0)
    assert known is not None
    messages._received(Extents([Extent("other", 0, 0, 5, 0)], is_whole=True, is_last=False), b"")
    assert messages.extent("T", 0) == known
    messages._send_again()
    messages._received(Extents([known], is_whole=True, is_last=True), b"")
    assert messages.extent("T", 0) == known
    assert list(messages._extents) == ["T"]
    messages._received(Extents([Extent("T", 0, 0, 0, 0)], is_whole=False, is_last=True), b"")
    assert messages.extent("T", 0) is None


async def test_lookups_beyond_a_limit_are_refused_and_pulls_are_not(archived: Archived) -> None:
    with stopped(archived):
        lookups = [archived.wire.command(RequestCode.QUERY_MESSAGE, BY_KEY) for _ in range(MAX_ARCHIVE_LOOKUPS)]
        for lookup in lookups:
            archived.wire.post(lookup)
        answer = await archived.wire.call(RequestCode.QUERY_MESSAGE, BY_KEY)
        assert (answer.code, "try again" in (answer.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
        pull = archived.wire.command(RequestCode.PULL_MESSAGE, pull_header("T", queue_offset=0))
        archived.wire.post(pull)
        assert (await archived.wire.pull("T", queue_offset=archived.low)).code == ResponseCode.SUCCESS
        assert not archived.wire.answers.keys() & {pull.opaque, *(lookup.opaque for lookup in lookups)}
    for command in (pull, *lookups):
        assert (await archived.wire.answer(command.opaque)).body.startswith(archived.stored[0])
    assert (await archived.wire.call(RequestCode.QUERY_MESSAGE, BY_KEY)).body == archived.stored[0]


@pytest.mark.parametrize("code", [RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID])
async def test_a_lookup_that_has_no_answer_does_not_say_that_there_is_no_message(archived: Archived, code: int) -> None:
    header: Header = BY_KEY
    if code == RequestCode.VIEW_MESSAGE_BY_ID:
        header = ViewMessageRequestHeader(offset=decoded(archived)[0].physical_offset)
    with stopped(archived):
        lookup = archived.wire.command(code, header)
        archived.wire.post(lookup)
        await archived.wire.pull("T", queue_offset=archived.low)
        archived.clock.advance(ARCHIVE_ANSWER_SECONDS + 1)
        answer = await archived.wire.answer(lookup.opaque)
    assert (answer.code, "try again" in (answer.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)


async def test_a_reader_that_says_nothing_for_minutes_is_replaced(archived: Archived, connect_to: ConnectTo) -> None:
    process = archived.messages.process
    pid = process.pid or 0
    os.kill(pid, signal.SIGSTOP)
    for pause in (ARCHIVE_ANSWER_SECONDS + 1, ARCHIVE_SILENCE_SECONDS, ARCHIVE_ANSWER_SECONDS + 1):
        wire = await connect_to(archived.broker)  # the broker closes idle connections
        pull = wire.command(RequestCode.PULL_MESSAGE, pull_header("T", queue_offset=3))
        wire.post(pull)
        await wire.pull("T", queue_offset=archived.low)
        archived.clock.advance(pause)
    await until(lambda: process.restarts == 1)
    await until(lambda: process.pid not in (None, pid), clock=archived.clock)
    wire = await connect_to(archived.broker)
    answer = await wire.pull("T", queue_offset=3, max_msg_nums=1)
    while answer.code == ResponseCode.PULL_NOT_FOUND:
        answer = await wire.pull("T", queue_offset=3, max_msg_nums=1)
    assert answer.body == archived.stored[3]


async def test_five_hundred_pulls_wait_for_a_stopped_reader_and_get_what_they_asked_for(archived: Archived) -> None:
    """Of consumers that go back and forth."""
    chosen = random.Random(7)
    asked: dict[int, tuple[int, int]] = {}
    with stopped(archived):
        for _ in range(500):
            offset, count = chosen.randrange(archived.low), chosen.randrange(1, 9)
            header = pull_header("T", queue_offset=offset, max_msg_nums=count)
            pull = archived.wire.command(RequestCode.PULL_MESSAGE, header)
            asked[pull.opaque] = offset, count
            archived.wire.post(pull)
        assert (await archived.wire.pull("T", queue_offset=archived.low)).code == ResponseCode.SUCCESS
        assert archived.messages.waiting >= 500
    for opaque, (offset, count) in asked.items():
        answer = await archived.wire.answer(opaque)
        while answer.code == ResponseCode.PULL_NOT_FOUND:  # this connection has much to send: again at the same offset
            assert header_of(answer)["nextBeginOffset"] == offset
            answer = await archived.wire.pull("T", queue_offset=offset, max_msg_nums=count)
        end = header_of(answer)["nextBeginOffset"]
        assert offset < end <= min(offset + count, archived.low)
        assert answer.body == b"".join(archived.stored[offset:end])


async def test_requests_for_a_reader_that_does_not_read_are_not_kept_without_a_limit(archived: Archived) -> None:
    link = archived.messages.process._link
    assert link is not None
    assert link._transport is not None
    with stopped(archived):
        for number in range(100_000):
            link.send(Read(-number, "T" * 100, 0, 0, 0, 0, 0))
        assert 0 < link._transport.get_write_buffer_size() < 2 << 20


async def test_searches_find_nothing_of_an_earlier_topic_with_the_same_name(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, tmp_path: Path
) -> None:
    """Although no consumer has pulled yet, and the broker does not know of the earlier topic."""
    earlier = await start_broker()
    await send_many(await connect_to(earlier), "T", clock)
    position = earlier.store.queue("T", 0).unit(0)
    assert position is not None
    archive_store(tmp_path / "store", tmp_path / "lake")
    await earlier.stop()
    (tmp_path / "store").rename(tmp_path / "earlier")
    clock.advance(60)
    broker = await start_broker()
    await send_many(await connect_to(broker), "T", clock, 900)
    low = await delete_old_messages(broker, clock)
    await broker.stop()
    broker = await start_broker(archive_read=str(tmp_path / "lake"))
    await until(lambda: is_readable(broker))
    wire = await connect_to(broker)
    assert broker.archived is not None
    assert (await wire.call(RequestCode.QUERY_MESSAGE, BY_KEY)).code == ResponseCode.QUERY_NOT_FOUND
    broker.archived.forget("T")  # each search compares the topics itself
    by_id = ViewMessageRequestHeader(offset=position[0])
    answer = await wire.call(RequestCode.VIEW_MESSAGE_BY_ID, by_id)
    assert (answer.code, answer.remark) == (1, f"can not find message by the offset, {position[0]}")
    broker.archived.forget("T")
    by_time = SearchOffsetRequestHeader(topic="T", queue_id=0, timestamp=0, boundary_type=LOWER)
    found = await wire.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, by_time)
    assert header_of(found) == {"offset": low}
