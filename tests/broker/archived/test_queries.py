"""Offsets, times, ids and keys of messages that only the archive has."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.broker.access.test_access import ask as request
from tests.broker.archived.archiving import MESSAGES
from tests.broker.archived.conftest import Archived, MakeArchived
from tests.broker.send.retrying import RETRY, hand_back
from tests.broker.wire import pull_header, records
from tests.helpers.contents import stored

from cometmq.message.record import StoredRecord, decode_record
from cometmq.remoting.admin_headers import GetTopicStatsInfoRequestHeader, ResetOffsetRequestHeader
from cometmq.remoting.bodies import ConsumerData, HeartbeatData, SubscriptionData, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    LOWER,
    UPPER,
    GetEarliestMsgStoretimeRequestHeader,
    GetMinOffsetRequestHeader,
    Header,
    QueryMessageRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from cometmq.remoting.signing import Credentials

FOREVER = 2**62


def decoded(archived: Archived) -> list[StoredRecord]:
    return [decode_record(record) for record in archived.stored]


def times(archived: Archived) -> list[int]:
    return [record.store_timestamp for record in decoded(archived)]


def sampled(moments: Sequence[int]) -> list[int]:
    """Times before, at, between and after those of the messages."""
    some = sorted({*moments[::37], moments[0], moments[-1]})
    return [moment + step for moment in some for step in (-7, -3, 0, 3, 7)]


async def ask(archived: Archived, code: int, header: Any) -> dict[str, str]:
    answer = await archived.wire.call(code, header)
    assert answer.code == ResponseCode.SUCCESS, answer
    return dict(answer.ext_fields)


async def offset_of(archived: Archived, moment: int, boundary: str | None) -> int:
    header = SearchOffsetRequestHeader(topic="T", queue_id=0, timestamp=moment, boundary_type=boundary)
    return int((await ask(archived, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header))["offset"])


async def test_the_first_offset_and_time_are_the_archives(archived: Archived) -> None:
    first = await ask(archived, 31, GetMinOffsetRequestHeader(topic="T", queue_id=0))
    assert first == {"offset": "0"}
    earliest = await ask(archived, 32, GetEarliestMsgStoretimeRequestHeader(topic="T", queue_id=0))
    assert earliest == {"timestamp": str(times(archived)[0])}
    answer = await archived.wire.call(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic="T"))
    assert f'"maxOffset":{MESSAGES},"minOffset":0}}'.encode() in answer.body


async def test_clients_of_5_find_the_bounds_of_a_time(archived: Archived) -> None:
    moments = times(archived)
    for moment in sampled(moments):
        assert await offset_of(archived, moment, LOWER) == bisect_left(moments, moment)
        assert await offset_of(archived, moment, UPPER) == max(bisect_right(moments, moment) - 1, 0)


@pytest.mark.parametrize("moment", [-(2**63), -1, 0, 2**62, 2**63 - 1])
async def test_times_outside_the_messages_are_found_at_the_ends(archived: Archived, moment: int) -> None:
    first, last = (0, 0) if moment <= 0 else (MESSAGES, MESSAGES - 1)
    assert await offset_of(archived, moment, LOWER) == first
    assert await offset_of(archived, moment, UPPER) == last
    assert await offset_of(archived, moment, None) == last


async def test_clients_of_4_find_the_nearest_message(archived: Archived) -> None:
    moments = times(archived)
    for moment in sampled(moments):
        found = moments[await offset_of(archived, moment, None)]
        assert abs(found - moment) == min(abs(other - moment) for other in moments)


async def test_a_message_is_found_by_its_id(archived: Archived) -> None:
    for number in (0, 1, archived.low - 1, archived.low, MESSAGES - 1):
        header = ViewMessageRequestHeader(offset=decoded(archived)[number].physical_offset)
        assert (await archived.wire.call(RequestCode.VIEW_MESSAGE_BY_ID, header)).body == archived.stored[number]
    header = ViewMessageRequestHeader(offset=decoded(archived)[3].physical_offset + 1)
    answer = await archived.wire.call(RequestCode.VIEW_MESSAGE_BY_ID, header)
    assert (answer.code, answer.remark) == (1, f"can not find message by the offset, {header.offset}")


@pytest.mark.parametrize("number", [0, 5, -1])
async def test_a_message_is_found_by_its_key_and_its_unique_key(archived: Archived, number: int) -> None:
    number = number % archived.low
    for key, is_unique in ((f"key-{number}", False), (f"{number:032X}", True), (f"{number:032X}", False)):
        header = QueryMessageRequestHeader("T", key, 32, 0, FOREVER, is_unique)
        answer = await archived.wire.call(RequestCode.QUERY_MESSAGE, header)
        assert answer.body == archived.stored[number], key
    for key in ("key", f"key-{number} all", "tag-1"):
        answer = await archived.wire.call(
            RequestCode.QUERY_MESSAGE, QueryMessageRequestHeader("T", key, 32, 0, FOREVER)
        )
        assert answer.code == ResponseCode.QUERY_NOT_FOUND


async def test_the_newest_messages_of_a_key_come_from_store_and_archive(archived: Archived) -> None:
    wanted = MESSAGES - archived.low + 10
    answer = await archived.wire.call(
        RequestCode.QUERY_MESSAGE, QueryMessageRequestHeader("T", "all", wanted, 0, FOREVER)
    )
    assert [record.queue_offset for record in records(answer)] == list(range(MESSAGES - wanted, MESSAGES))


async def test_a_query_by_key_keeps_to_its_time(archived: Archived) -> None:
    moments = times(archived)
    header = QueryMessageRequestHeader("T", "all", 64, moments[8], moments[16])
    answer = await archived.wire.call(RequestCode.QUERY_MESSAGE, header)
    assert [record.queue_offset for record in records(answer)] == list(range(8, 20))


async def test_a_group_is_reset_to_a_time_that_only_the_archive_has(archived: Archived) -> None:
    wire, moments = archived.wire, times(archived)
    heartbeat = HeartbeatData(
        client_id="c",
        consumer_data_set=[
            ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="T", sub_string="*")])
        ],
    )
    await wire.call(RequestCode.HEART_BEAT, None, encode_body(heartbeat), ext={})
    for queue_id in range(4):
        await wire.call(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            UpdateConsumerOffsetRequestHeader("g", "T", queue_id, MESSAGES if not queue_id else 0),
        )
    answer = await wire.call(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        ResetOffsetRequestHeader(topic="T", group="g", timestamp=moments[100], is_force=True),
    )
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert f'"queueId":0,"topic":"T"}}:{bisect_left(moments, moments[100])}'.encode() in answer.body, answer.body


OPERATOR, READER = Credentials("operators", "secret-of-operators"), Credentials("reader-account", "secret-of-reader")


async def test_an_account_gets_only_what_the_broker_would_give_it(make_archived: MakeArchived, tmp_path: Path) -> None:
    rows = [
        {"accessKey": OPERATOR.access_key, "secretKey": OPERATOR.secret_key, "admin": True},
        {"accessKey": READER.access_key, "secretKey": READER.secret_key, "topicPerms": ["other=SUB"]},
    ]
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(json.dumps({"accounts": rows}))
    (tmp_path / "conf" / "plain_acl.yml").chmod(0o600)
    archived = await make_archived(acl_enable=True, acl_path=str(tmp_path / "conf"))
    position = decoded(archived)[0].physical_offset
    asked: list[tuple[int, Header]] = [
        (RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=position)),
        (RequestCode.QUERY_MESSAGE, QueryMessageRequestHeader("T", "key-0", 32, 0, FOREVER)),
        (RequestCode.PULL_MESSAGE, pull_header("T", queue_offset=0, max_msg_nums=1)),
    ]
    absent = await request(archived.wire, READER, asked[0][0], ViewMessageRequestHeader(offset=position + 1))
    for code, header in asked:
        assert (await request(archived.wire, OPERATOR, code, header)).body == archived.stored[0]
        answer = await request(archived.wire, READER, code, header)
        assert (answer.code == ResponseCode.SUCCESS, answer.body) == (False, b"")
        if code == RequestCode.VIEW_MESSAGE_BY_ID:  # as if there were no such message
            assert (answer.code, answer.remark) == (
                absent.code,
                (absent.remark or "").replace(str(position + 1), str(position)),
            )


async def test_a_consumer_sends_back_a_message_that_only_the_archive_has(archived: Archived) -> None:
    """It gets the message again after the delay of its first retry, as for a message in the store."""
    wire, broker = archived.wire, archived.broker
    await wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"workers"}')
    failed = decoded(archived)[7]
    assert (await hand_back(wire, failed.physical_offset)).code == ResponseCode.SUCCESS
    await archived.clock.run_for(11)
    (again,) = stored(broker, RETRY)
    assert (again.body, again.reconsume_times) == (failed.body, 1)
    assert again.properties["RETRY_TOPIC"] == "T"
    absent = await hand_back(wire, failed.physical_offset + 1)
    assert (absent.code, "look message by offset failed" in (absent.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
