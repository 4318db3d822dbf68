"""SQL92 filters at the broker over raw sockets: pulls, waiting pulls, heartbeats, the check of a client's config."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.pull.holding import held
from tests.broker.wire import Wire, pull_header, records, send_header

from cometmq.broker.controller import Broker
from cometmq.broker.limits import MAX_HEARTBEAT_FILTER_CHARS
from cometmq.remoting.bodies import (
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    encode_body,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import UnregisterClientRequestHeader
from cometmq.testing import VirtualClock

BY_HEARTBEAT = 0
"""Pull flags of Java's push consumer: the subscription is not in the header."""
RETRIES = "%RETRY%consumers"


@pytest.fixture
async def broker(start_broker: StartBroker) -> Broker:
    return await start_broker(enable_property_filter=True)


def text_of(properties: dict[str, str]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


async def send_numbered(wire: Wire, count: int, topic: str = "T") -> None:
    for number in range(count):
        kind = "even" if number % 2 == 0 else "odd"
        await wire.send(topic, b"%d" % number, properties=text_of({"n": str(number), "kind": kind}))


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [record.body for record in records(answer)]


def sql(topic: str, expression: str, version: int = 1, kind: str = "SQL92") -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=expression, expression_type=kind, sub_version=version)


async def heartbeat(wire: Wire, subscriptions: Iterable[SubscriptionData], group: str = "consumers") -> RemotingCommand:
    data = ConsumerData(group_name=group, subscription_data_set=list(subscriptions))
    return await wire.call(
        RequestCode.HEART_BEAT, body=encode_body(HeartbeatData(client_id="c@1", consumer_data_set=[data]))
    )


async def check(wire: Wire, subscription: SubscriptionData) -> RemotingCommand:
    body = CheckClientRequestBody(client_id="c@1", group="consumers", subscription_data=subscription)
    return await wire.call(RequestCode.CHECK_CLIENT_CONFIG, body=encode_body(body))


# --- pulls with the expression in their header ----------------------------------------------------
async def test_a_pull_gets_what_its_expression_wants(wire: Wire) -> None:
    await send_numbered(wire, 12)
    answer = await wire.pull("T", subscription="n >= 5 AND kind = 'even'", expression_type="SQL92")
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
    assert bodies(answer) == [b"6", b"8", b"10"]
    assert answer.ext_fields["nextBeginOffset"] == "12"


async def test_a_pull_goes_on_behind_its_last_match(wire: Wire) -> None:
    await send_numbered(wire, 10)
    answer = await wire.pull("T", subscription="kind = 'odd'", expression_type="SQL92", max_msg_nums=2)
    assert bodies(answer) == [b"1", b"3"]
    following = int(answer.ext_fields["nextBeginOffset"])
    assert following in (4, 5)
    answer = await wire.pull("T", subscription="kind = 'odd'", expression_type="SQL92", queue_offset=following)
    assert bodies(answer) == [b"5", b"7", b"9"]


async def test_nothing_matches(wire: Wire) -> None:
    await send_numbered(wire, 3)
    answer = await wire.pull("T", subscription="n > 100", expression_type="SQL92")
    assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert answer.ext_fields["nextBeginOffset"] == "3"


async def test_a_message_that_cannot_be_evaluated_is_left_out(wire: Wire) -> None:
    await wire.send("T", b"word", properties="n\x01x\x02kind\x01y")
    await wire.send("T", b"number", properties="n\x017\x02kind\x01y")
    answer = await wire.pull("T", subscription="n = 7 OR kind = 'y'", expression_type="SQL92")
    assert bodies(answer) == [b"number"]


@pytest.mark.parametrize(
    ("expression", "expression_type", "words"),
    [
        ("a > > 3", "SQL92", "not '>', at character 5"),
        ("a != 3", "SQL92", "at character 3 (write <> for not equal)"),
        ("", "SQL92", "parse the consumer's subscription failed"),
        ("(" * 51 + "a = 1" + ")" * 51, "SQL92", "nested more than 50 deep"),
        (" AND ".join(["a = 1"] * 129), "SQL92", "more than 256 names and values"),
        ("a = 1" + " " * 20_000, "SQL92", "the maximum is 16384"),
        ("a > 3", "GROOVY", "unknown expression type 'GROOVY'"),
    ],
    ids=["malformed", "no token", "empty", "deep", "many terms", "long", "unknown type"],
)
async def test_an_expression_that_cannot_be_used_is_refused(
    wire: Wire, expression: str, expression_type: str, words: str
) -> None:
    await wire.send("T")
    answer = await wire.pull("T", subscription=expression, expression_type=expression_type)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert answer.remark is not None
    assert answer.remark.startswith("parse the consumer's subscription failed")
    assert words in answer.remark


async def test_while_the_filter_is_off_everything_but_tags_is_refused(
    start_broker: StartBroker, connect_to: ConnectTo
) -> None:
    wire = await connect_to(await start_broker())
    await wire.send("T")
    for expression_type in ("SQL92", "GROOVY"):
        words = f"The broker does not support consumer to filter message by {expression_type}"
        answer = await wire.pull("T", subscription="a > 3", expression_type=expression_type)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, words)
        answer = await check(wire, sql("T", "a > 3", kind=expression_type))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, words)


async def test_the_filter_is_turned_on_while_the_broker_runs(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    wire = await connect_to(await start_broker())
    await send_numbered(wire, 2)
    await wire.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"enablePropertyFilter=true")
    assert bodies(await wire.pull("T", subscription="n = 1", expression_type="SQL92")) == [b"1"]


# --- pulls that wait ------------------------------------------------------------------------------
async def test_a_waiting_pull_is_woken_by_a_match_only(broker: Broker, wire: Wire, connect_to: ConnectTo) -> None:
    await send_numbered(wire, 1)
    waiting = wire.command(
        RequestCode.PULL_MESSAGE,
        pull_header("T", queue_offset=1, wait_ms=15_000, subscription="n > 5", expression_type="SQL92"),
    )
    wire.post(waiting)
    producer = await connect_to(broker)
    await held(broker)
    await producer.send("T", b"4", properties="n\x014")
    await producer.send("T", b"none", properties="TAGS\x01x")
    assert len(broker.hold) == 1
    await producer.send("T", b"6", properties="n\x016")
    assert bodies(await wire.answer(waiting.opaque)) == [b"6"]


async def test_a_waiting_pull_finds_its_match_in_a_burst_that_is_much_work(
    broker: Broker, wire: Wire, connect_to: ConnectTo
) -> None:
    await send_numbered(wire, 1)
    heavy = "n = 99 OR " + " OR ".join(f"q{number} = 'x'" for number in range(100))
    header = pull_header("T", queue_offset=1, wait_ms=15_000, subscription=heavy, expression_type="SQL92")
    waiting = wire.command(RequestCode.PULL_MESSAGE, header)
    wire.post(waiting)
    producer = await connect_to(broker)
    await held(broker)
    much = "\x02".join(f"p{number}\x01{number}" for number in range(2_000))
    burst = [
        producer.command(RequestCode.SEND_MESSAGE_V2, send_header("T", properties=f"{much}\x02n\x01{number}"), b"x")
        for number in range(100)
    ]
    producer.writer.write(b"".join(command.encode() for command in burst))
    answer = await wire.answer(waiting.opaque)
    pulls = 0
    while answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
        header.queue_offset = int(answer.ext_fields["nextBeginOffset"])
        answer = await wire.call(RequestCode.PULL_MESSAGE, header)
        pulls += 1
    assert bodies(answer) == [b"x"]
    assert answer.ext_fields["nextBeginOffset"] == "101"
    assert 10 < pulls <= 100


async def test_a_pull_that_waits_in_vain_is_told_how_far_it_was_looked(
    broker: Broker, wire: Wire, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    await wire.send("T")
    waiting = wire.command(
        RequestCode.PULL_MESSAGE,
        pull_header("T", queue_offset=1, wait_ms=3_000, subscription="n > 5", expression_type="SQL92"),
    )
    wire.post(waiting)
    producer = await connect_to(broker)
    await held(broker)
    await producer.send("T", properties="n\x011")
    clock.advance(4)
    answer = await wire.answer(waiting.opaque)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.ext_fields["nextBeginOffset"] == "2"


# --- pulls that rely on the heartbeat -------------------------------------------------------------
async def test_the_expression_of_the_heartbeat_counts(wire: Wire) -> None:
    await send_numbered(wire, 4)
    await heartbeat(wire, [sql("T", "n = 2")])
    answer = await wire.pull("T", sys_flag=BY_HEARTBEAT, sub_version=1, subscription=None, expression_type=None)
    assert bodies(answer) == [b"2"]


async def test_a_newer_expression_replaces_the_old_one_and_an_older_does_not(wire: Wire) -> None:
    await send_numbered(wire, 4)
    for version, expression in ((5, "n = 1"), (9, "n = 2"), (7, "n = 3")):
        await heartbeat(wire, [sql("T", expression, version)])
    assert bodies(await wire.pull("T", sys_flag=BY_HEARTBEAT, sub_version=9)) == [b"2"]


async def test_a_stale_subscription_is_told(wire: Wire) -> None:
    await wire.send("T")
    await heartbeat(wire, [sql("T", "n = 1", 5)])
    answer = await wire.pull("T", sys_flag=BY_HEARTBEAT, sub_version=6)
    assert (answer.code, answer.remark) == (
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        "the consumer's subscription not latest",
    )


async def test_filter_data_behind_its_subscription_is_told(broker: Broker, wire: Wire) -> None:
    """Another member said, by tags, that it has a newer subscription, and then a newer one by SQL is on its way."""
    await wire.send("T")
    await heartbeat(wire, [sql("T", "n = 1", 5)])
    group = broker.clients.consumers.get("consumers")
    assert group is not None
    group.subscribe([sql("T", "n = 1", 6)])
    answer = await wire.pull("T", sys_flag=BY_HEARTBEAT, sub_version=6)
    assert (answer.code, answer.remark) == (
        ResponseCode.FILTER_DATA_NOT_LATEST,
        "the consumer's consumer filter data not latest",
    )


async def test_an_expression_that_does_not_compile_has_no_filter_data(wire: Wire) -> None:
    await wire.send("T")
    await heartbeat(wire, [sql("T", "n = 1", 5)])
    await heartbeat(wire, [sql("T", "n > > 1", 6)])
    answer = await wire.pull("T", sys_flag=BY_HEARTBEAT, sub_version=6)
    assert (answer.code, answer.remark) == (
        ResponseCode.FILTER_DATA_NOT_EXIST,
        "The broker's consumer filter data is not exist!Your expression may be wrong!",
    )


async def test_a_group_that_is_not_there_has_no_subscription(wire: Wire) -> None:
    await wire.send("T")
    await heartbeat(wire, [sql("T", "n = 1")])
    await wire.call(
        RequestCode.UNREGISTER_CLIENT, UnregisterClientRequestHeader(client_id="c@1", consumer_group="consumers")
    )
    answer = await wire.pull("T", sys_flag=BY_HEARTBEAT, sub_version=1)
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST


async def test_a_heartbeat_with_too_much_sql_is_refused(broker: Broker, wire: Wire) -> None:
    expression = "a IN ('" + "x" * 16_000 + "')"
    many = [sql(f"T{number}", expression) for number in range(MAX_HEARTBEAT_FILTER_CHARS // len(expression) + 1)]
    answer = await heartbeat(wire, many)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "the SQL92 expressions in a heartbeat may have at most 49152 characters"
    assert len(broker.filters) == 0
    assert (await heartbeat(wire, many[:-1])).code == ResponseCode.SUCCESS
    assert len(broker.filters) == len(many) - 1


# --- retry topics ---------------------------------------------------------------------------------
@pytest.mark.parametrize("support", [False, True])
async def test_retries_are_filtered_by_what_their_topic_is_subscribed_with(
    start_broker: StartBroker, connect_to: ConnectTo, support: bool
) -> None:
    wire = await connect_to(await start_broker(enable_property_filter=True, filter_support_retry=support))
    await heartbeat(wire, [sql("T", "n = 1")])
    for topic, number in (("T", 1), ("T", 2), ("Other", 2)):
        properties = text_of({"RETRY_TOPIC": topic, "n": str(number)})
        await wire.send(RETRIES, f"{topic} {number}".encode(), properties=properties)
    await wire.send(RETRIES, b"no topic", properties="n\x012")
    answer = await wire.pull(RETRIES, subscription="n = 2", expression_type="SQL92")
    found = bodies(answer)
    assert found == ([b"T 1", b"Other 2", b"no topic"] if support else [b"T 2", b"Other 2", b"no topic"])
    by_tag = await wire.pull(RETRIES, subscription="*", expression_type="TAG")
    assert len(records(by_tag)) == 4


# --- CHECK_CLIENT_CONFIG --------------------------------------------------------------------------
async def test_a_good_expression_passes_the_check(wire: Wire) -> None:
    for expression, kind in (("a > 3 AND b = 'x'", "SQL92"), ("a || b", "TAG"), ("x", "")):
        answer = await check(wire, sql("T", expression, kind=kind))
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)


@pytest.mark.parametrize(
    ("subscription", "words"),
    [
        (sql("T", "a > > 3"), "not '>', at character 5"),
        (sql("T", ""), "needs an expression"),
        (sql("T", "a" * 17_000), "the maximum is 16384"),
        (sql("T", "a > 3", kind="GROOVY"), "use TAG or SQL92"),
    ],
)
async def test_the_check_tells_what_is_wrong(wire: Wire, subscription: SubscriptionData, words: str) -> None:
    answer = await check(wire, subscription)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert answer.remark is not None
    assert words in answer.remark


async def test_the_check_of_nothing_and_of_nonsense(wire: Wire) -> None:
    assert (await wire.call(RequestCode.CHECK_CLIENT_CONFIG)).code == ResponseCode.SUCCESS
    assert (await wire.call(RequestCode.CHECK_CLIENT_CONFIG, body=b'{"group":"g"}')).code == ResponseCode.SUCCESS
    for body in (b"\x00\xff", b"[1]", b'{"subscriptionData":{"topic":7}}'):
        answer: Any = await wire.call(RequestCode.CHECK_CLIENT_CONFIG, body=body)
        assert answer.code == ResponseCode.SYSTEM_ERROR
