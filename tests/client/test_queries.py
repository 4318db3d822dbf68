"""The search for the first message of a time, where store times run back and offsets have no message."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.queries import first_at
from cometmq.message.record import encode_record
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    SearchOffsetResponseHeader,
    to_ext,
)

QUEUE = MessageQueue("T", "broker-a", 0)
HOST = bytes((127, 0, 0, 1, 0, 0, 0, 1))


def answer_of(times: Mapping[int, int], offset: int, end: int) -> RemotingCommand:
    """The answer to a pull of a queue that has messages at some offsets only."""
    low = min(times, default=end)
    at = offset if offset in times else min((one for one in times if one > offset), default=end)
    fields = to_ext(PullMessageResponseHeader(0, at, low, end))
    if offset not in times:
        code = ResponseCode.PULL_OFFSET_MOVED if offset < low else ResponseCode.PULL_RETRY_IMMEDIATELY
        return RemotingCommand(code, ext_fields=fields)
    record = encode_record(
        topic="T",
        queue_id=0,
        queue_offset=offset,
        physical_offset=0,
        body=b"x",
        properties_text="",
        flag=0,
        sys_flag=0,
        born_timestamp=0,
        born_host=HOST,
        store_timestamp=times[offset],
        store_host=HOST,
        reconsume_times=0,
        prepared_transaction_offset=0,
    )
    return RemotingCommand(ResponseCode.SUCCESS, ext_fields=fields, body=bytes(record))


def search(times: Mapping[int, int], end: int, hint: int, wanted: int) -> tuple[int, int]:
    """The offset that is found, and the number of looks."""
    looking, looks = first_at(QUEUE, "G", 0, end, wanted), 0
    hinted = RemotingCommand(ResponseCode.SUCCESS, ext_fields=to_ext(SearchOffsetResponseHeader(hint)))
    result = None
    try:
        while True:
            query = looking.send(result)
            if query.code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                result = query.result(hinted, "broker-a")
                continue
            looks += 1
            assert isinstance(query.header, PullMessageRequestHeader)
            assert 0 <= query.header.queue_offset <= end
            result = query.result(answer_of(times, query.header.queue_offset, end), "broker-a")
    except StopIteration as found:
        return found.value, looks


@given(st.lists(st.integers(0, 20), max_size=60), st.integers(-5, 70), st.integers(-1, 22), st.booleans())
def test_it_ends_before_a_message_of_the_time_and_behind_one_that_is_older(
    stored: list[int], hint: int, wanted: int, turned_back: bool
) -> None:
    """Also where a clock was turned back, and wherever the broker's hint leads."""
    times = dict(enumerate(stored if turned_back else sorted(stored)))
    found, looks = search(times, len(times), hint, wanted)
    assert found == len(times) or times[found] >= wanted
    assert found == 0 or times[found - 1] < wanted
    assert looks <= 20
    if not turned_back:
        assert found == sum(time < wanted for time in stored)


@given(st.sets(st.integers(0, 59)), st.integers(0, 60), st.integers(-1, 62), st.integers(0, 60))
def test_offsets_without_a_message_cost_none_that_is_there(
    kept: set[int], hint: int, wanted: int, deleted_below: int
) -> None:
    """The first messages may be deleted while it looks, and others may be missing."""
    times = {offset: offset for offset in sorted(kept) if offset >= deleted_below}
    found, _ = search(times, 60, hint, wanted)
    assert [offset for offset in times if offset >= found] == [offset for offset in times if offset >= wanted]
