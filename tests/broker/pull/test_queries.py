"""Questions about stored messages: offsets, times, keys, ids."""

from __future__ import annotations

import pytest
from tests.broker.wire import Wire, records

from cometmq.message.ids import decode_offset_msg_id
from cometmq.message.record import decode_record
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryMessageRequestHeader,
    SearchOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from cometmq.store.index import index_service
from cometmq.testing import VirtualClock


async def offset(wire: Wire, code: int, header: object) -> int:
    answer = await wire.call(code, header)  # type: ignore[arg-type]
    assert answer.code == ResponseCode.SUCCESS
    return int(answer.ext_fields["offset"])


async def test_offsets_of_a_queue(wire: Wire) -> None:
    for _ in range(3):
        await wire.send("T")
    assert await offset(wire, 30, GetMaxOffsetRequestHeader(topic="T", queue_id=0)) == 3
    assert await offset(wire, 31, GetMinOffsetRequestHeader(topic="T", queue_id=0)) == 0


@pytest.mark.parametrize("topic", ["nosuch", "../T", ""])
async def test_unknown_queues_are_zero_and_are_not_made(wire: Wire, topic: str) -> None:
    assert await offset(wire, 30, GetMaxOffsetRequestHeader(topic=topic, queue_id=0)) == 0
    assert await offset(wire, 31, GetMinOffsetRequestHeader(topic=topic, queue_id=0)) == 0
    assert await offset(wire, 29, SearchOffsetRequestHeader(topic=topic, queue_id=0, timestamp=0)) == 0
    answer = await wire.call(32, GetEarliestMsgStoretimeRequestHeader(topic=topic, queue_id=0))
    assert answer.ext_fields == {"timestamp": "-1"}


async def test_offset_by_time(wire: Wire, clock: VirtualClock) -> None:
    begin = clock.now_ms()
    for _ in range(3):
        await wire.send("T")
        clock.advance(10)
    for timestamp, expected in ((0, 0), (begin, 0), (begin + 10_000, 1), (begin + 14_000, 1), (begin + 10**9, 2)):
        header = SearchOffsetRequestHeader(topic="T", queue_id=0, timestamp=timestamp)
        assert await offset(wire, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header) == expected
    answer = await wire.call(32, GetEarliestMsgStoretimeRequestHeader(topic="T", queue_id=0))
    assert answer.ext_fields == {"timestamp": str(begin)}


async def test_clients_of_5_get_the_bound_of_a_time_that_they_name(wire: Wire, clock: VirtualClock) -> None:
    """As RocketMQ 5.5.0 answered: three messages, twenty of one time, three."""
    begin = clock.now_ms()
    for count in (1, 1, 1, 20, 1, 1, 1):
        for _ in range(count):
            await wire.send("T")
        clock.advance(10)
    seconds = (-1, 0, 10, 15, 29.999, 30, 30.001, 59.999, 60, 100)
    bounds = {"LOWER": [0, 0, 1, 2, 3, 3, 23, 25, 25, 26], "UPPER": [0, 0, 1, 1, 2, 22, 22, 24, 25, 25]}
    for bound, expected in bounds.items():
        for after, number in zip(seconds, expected, strict=True):
            header = SearchOffsetRequestHeader("T", 0, begin + round(after * 1000), boundary_type=bound)
            assert await offset(wire, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header) == number, (bound, after)
        header = SearchOffsetRequestHeader("nosuch", 0, begin, boundary_type=bound)
        assert await offset(wire, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header) == 0


async def test_view_by_offset_id(wire: Wire) -> None:
    msg_id = (await wire.send("T", b"see me")).ext_fields["msgId"]
    position = decode_offset_msg_id(msg_id)[2]
    answer = await wire.call(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=position))
    assert answer.code == ResponseCode.SUCCESS
    assert decode_record(answer.body).body == b"see me"


@pytest.mark.parametrize("position", [99_999_999, 1, -1, 2**62])
async def test_view_where_no_record_begins(wire: Wire, position: int) -> None:
    await wire.send("T")
    answer = await wire.call(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=position))
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        f"can not find message by the offset, {position}",
    )


def query_header(key: str, **fields: int | bool) -> QueryMessageRequestHeader:
    values = {"max_num": 10, "begin_timestamp": 0, "end_timestamp": 2**62} | fields
    return QueryMessageRequestHeader(topic="T", key=key, **values)  # type: ignore[arg-type]


async def test_query_by_key_and_unique_key(wire: Wire) -> None:
    await wire.send("T", b"1", properties="KEYS\x01red blue\x02UNIQ_KEY\x01U1")
    await wire.send("T", b"2", properties="KEYS\x01blue\x02UNIQ_KEY\x01U2")
    await wire.send("Other", b"3", properties="KEYS\x01blue\x02UNIQ_KEY\x01U3")
    for key, expected in (("red", [b"1"]), ("blue", [b"1", b"2"]), ("U2", [b"2"])):
        answer = await wire.call(RequestCode.QUERY_MESSAGE, query_header(key, unique_key_query=key == "U2"))
        assert answer.code == ResponseCode.SUCCESS
        assert [record.body for record in records(answer)] == expected
        assert set(answer.ext_fields) == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}


async def test_a_query_gives_what_has_the_topic_and_the_key_and_not_what_has_their_hash(wire: Wire) -> None:
    await wire.send("AaTopic", b"wanted", properties="KEYS\x01Aa")
    for _ in range(100):  # more than one query takes; all have one hash
        await wire.send("BBTopic", b"of another topic", properties="KEYS\x01Aa")
        await wire.send("AaTopic", b"of another key", properties="KEYS\x01BB")
    for key, expected in (("Aa", [b"wanted"]), ("BB", [b"of another key"] * 10)):
        header = QueryMessageRequestHeader("AaTopic", key, 10, 0, 2**62)
        assert [record.body for record in records(await wire.call(RequestCode.QUERY_MESSAGE, header))] == expected


async def test_a_query_gives_what_was_stored_in_its_time_to_the_millisecond(wire: Wire, clock: VirtualClock) -> None:
    """The index has whole seconds since its first message."""
    times = []
    for number in range(12):
        times.append(clock.now_ms())
        await wire.send("T", b"%d" % number, properties="KEYS\x01k")
        clock.advance(0.3)
    for begin, end in [(first, last) for first in times for last in times] + [(times[3] + 1, times[5] - 1)]:
        header = query_header("k", max_num=64, begin_timestamp=begin, end_timestamp=end)
        found = [record.body for record in records(await wire.call(RequestCode.QUERY_MESSAGE, header))]
        assert found == [b"%d" % number for number, stored in enumerate(times) if begin <= stored <= end]


async def test_messages_with_the_unique_key_of_another_one_among_their_keys_do_not_hide_it(wire: Wire) -> None:
    await wire.send("T", b"wanted", properties="UNIQ_KEY\x01U")
    for _ in range(40):  # more than one query takes
        await wire.send("T", b"other", properties="KEYS\x01U\x02UNIQ_KEY\x01V")
        await wire.send("T", b"without its own", properties="KEYS\x01U")
    answer = await wire.call(RequestCode.QUERY_MESSAGE, query_header("U", unique_key_query=True))
    assert [record.body for record in records(answer)] == [b"wanted"]


async def test_a_query_among_keys_that_are_chosen_to_collide_ends(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    await wire.send("T", b"wanted", properties="KEYS\x01Aa")
    for _ in range(4):
        await wire.send("T", b"other", properties="KEYS\x01BB 1 2")
    for looks, code in ((16, ResponseCode.QUERY_NOT_FOUND), (17, ResponseCode.SUCCESS)):
        monkeypatch.setattr(index_service, "MAX_QUERY_LOOKS", looks)
        assert (await wire.call(RequestCode.QUERY_MESSAGE, query_header("Aa"))).code == code


async def test_query_takes_no_more_than_asked(wire: Wire) -> None:
    for _ in range(5):
        await wire.send("T", properties="KEYS\x01k")
    assert len(records(await wire.call(RequestCode.QUERY_MESSAGE, query_header("k", max_num=2)))) == 2


async def test_query_without_result(wire: Wire) -> None:
    await wire.send("T", properties="KEYS\x01k")
    for header in (query_header("absent"), query_header("k", end_timestamp=1), query_header("")):
        answer = await wire.call(RequestCode.QUERY_MESSAGE, header)
        assert (answer.code, answer.remark) == (
            ResponseCode.QUERY_NOT_FOUND,
            "can not find message, maybe time range not correct",
        )
