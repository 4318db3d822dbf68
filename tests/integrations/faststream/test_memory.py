"""FastStream's provider without servers: what is sent, and to whom."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import SetupError
from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256

from cometmq.client import Credentials, Security, Tls, TransactionState
from cometmq.message.properties import SHARDING_KEY
from faststream_cometmq import RocketMQBroker, RocketMQResponse, RocketMQRouter, TestRocketMQBroker
from faststream_cometmq.annotations import RocketMQMessage
from faststream_cometmq.message import EMPTY_BODY
from faststream_cometmq.producer import message_of
from faststream_cometmq.response import RocketMQPublishCommand
from faststream_cometmq.security import security_of


def command(**options: Any) -> RocketMQPublishCommand:
    broker: Any = RocketMQBroker()
    made: RocketMQPublishCommand = broker._command(
        "hello", topic="orders", headers={"a": "1"}, correlation_id="7", options=options
    )
    return made


def test_a_message_has_what_the_options_say() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    cmd = command(tags="A", keys=["k"], priority=3, deliver_at=at, ttl=timedelta(days=1), message_group="g")
    cmd.reply_to = "answers"
    message = message_of(cmd, b"hello", "text/plain", cmd.headers, cmd.options, cmd.correlation_id)
    assert (message.topic, message.body, message.tags, message.keys) == ("orders", b"hello", "A", ["k"])
    assert (message.priority, message.deliver_at, message.ttl) == (3, at, timedelta(days=1))
    assert message.properties == {
        "content-type": "text/plain",
        "correlation_id": "7",
        "reply_to": "answers",
        "a": "1",
        SHARDING_KEY: "g",
    }


def test_rocketmq_keeps_no_empty_body_and_no_empty_header() -> None:
    message = message_of(command(), b"", None, {"empty": "", "none": None, "zero": 0}, {}, None)
    assert message.body == b"\0"
    assert message.properties == {EMPTY_BODY: "true", "zero": "0"}


async def test_tags_and_expressions_filter_as_in_a_broker() -> None:
    broker = RocketMQBroker()
    seen: list[tuple[str, str]] = []

    @broker.subscriber("orders", group="tagged", tags="A || B")
    async def tagged(body: str) -> None:
        seen.append(("tagged", body))

    @broker.subscriber("orders", group="large", sql="size > 10")
    async def large(body: str) -> None:
        seen.append(("large", body))

    async with TestRocketMQBroker(broker) as running:
        await running.publish("1", "orders", tags="A")
        await running.publish("2", "orders", tags="C", headers={"size": "11"})
        await running.publish("3", "orders", tags="C", headers={"size": "9"})
    assert seen == [("tagged", "1"), ("large", "2")]


async def test_one_subscriber_of_each_group_gets_a_message() -> None:
    broker = RocketMQBroker()
    seen: list[str] = []
    for group in ("one", "one", "two"):

        @broker.subscriber("orders", group=group)
        async def note(_body: str, name: str = group) -> None:
            seen.append(name)

    async with TestRocketMQBroker(broker) as running:
        await running.publish("1", "orders")
    assert sorted(seen) == ["one", "two"]


async def test_the_messages_of_a_batch_have_options_of_their_own() -> None:
    broker = RocketMQBroker()
    batches: list[Any] = []

    @broker.subscriber("orders", batch=True)
    async def note(bodies: list[int], message: RocketMQMessage) -> None:
        batches.append((bodies, [raw.tags for raw in message.messages], message.batch_headers[1]["x"]))

    async with TestRocketMQBroker(broker) as running:
        await running.publish_batch(1, RocketMQResponse(2, tags="B", headers={"x": "y"}), topic="orders", tags="A")
    assert batches == [([1, 2], ["A", "B"], "y")]


async def test_a_publisher_of_batches_publishes_each_result() -> None:
    broker = RocketMQBroker()
    seen: list[int] = []

    @broker.subscriber("orders")
    @broker.publisher("lines", batch=True, tags="line")
    async def split(body: list[int]) -> list[int]:
        return body

    @broker.subscriber("lines", tags="line")
    async def note(body: int) -> None:
        seen.append(body)

    async with TestRocketMQBroker(broker) as running:
        await running.publish([3, 4], "orders")
    assert seen == [3, 4]


@pytest.mark.parametrize(
    ("state", "delivered"),
    [(None, 1), (TransactionState.COMMIT, 1), (TransactionState.ROLLBACK, 0), (TransactionState.UNKNOWN, 0)],
)
async def test_a_message_in_a_transaction_is_delivered_if_the_work_succeeds(
    state: TransactionState | None, delivered: int
) -> None:
    broker = RocketMQBroker()
    seen: list[str] = []

    @broker.subscriber("orders")
    async def note(body: str) -> None:
        seen.append(body)

    async def work(transaction: str) -> TransactionState | None:
        assert len(transaction) == 32
        assert not seen
        return state

    async with TestRocketMQBroker(broker) as running:
        result = await running.publish_in_transaction("paid", "orders", work)
    assert (len(seen), result.state) == (delivered, TransactionState.COMMIT if state is None else state)


@pytest.mark.parametrize(
    ("security", "tls", "expected"),
    [
        (None, None, None),
        (None, Tls(check_host=False), Security(tls=Tls(check_host=False))),
        (BaseSecurity(use_ssl=True), None, Security(tls=Tls())),
        (SASLPlaintext("key", "secret"), None, Security(Credentials("key", "secret"))),
        (SASLPlaintext("key", "secret", use_ssl=True), Tls(), Security(Credentials("key", "secret"), Tls())),
    ],
)
def test_security_is_that_of_the_client(security: BaseSecurity | None, tls: Tls | None, expected: object) -> None:
    assert security_of(security, tls) == expected


@pytest.mark.parametrize(
    ("security", "text"),
    [(SASLScram256("key", "secret"), "use SASLPlaintext"), (BaseSecurity(ssl.create_default_context()), "pass tls=")],
)
def test_security_that_rocketmq_does_not_have_is_refused(security: BaseSecurity, text: str) -> None:
    with pytest.raises(SetupError, match=text):
        RocketMQBroker(security=security)


@pytest.mark.parametrize(
    ("topics", "options", "text"),
    [
        ([], {}, "needs a topic"),
        (["orders"], {"tags": "A", "sql": "a = 1"}, "not by both"),
        (["orders"], {"max_records": 33}, "from 1 to 32"),
        (["orders"], {"max_workers": 0}, "1 or more"),
        (["orders"], {"invisible_s": -1.0}, "invisible_s"),
    ],
)
def test_options_out_of_their_range_are_refused(topics: list[str], options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        RocketMQBroker().subscriber(*topics, **options)


def test_a_group_is_named_after_the_first_topic_with_its_prefix() -> None:
    broker, router = RocketMQBroker(group="shop"), RocketMQRouter(prefix="eu_")
    subscriber = router.subscriber("orders", "returns", ack_policy=AckPolicy.ACK)
    broker.include_router(router)
    assert (subscriber.reads.group, subscriber.reads.topics) == ("shop-eu_orders", ("eu_orders", "eu_returns"))


def test_a_group_whose_retry_topic_has_no_name_is_refused() -> None:
    subscriber = RocketMQBroker().subscriber("o" * 60)
    with pytest.raises(SetupError, match="pass a shorter group="):
        subscriber.reads.check()
    RocketMQBroker().subscriber("o" * 60, group="g").reads.check()


def test_a_router_of_another_provider_is_refused() -> None:
    with pytest.raises(TypeError, match="RocketMQRouter"):
        RocketMQBroker().include_router(object())


def test_an_unknown_option_is_refused() -> None:
    broker: Any = RocketMQBroker()
    for call in (
        lambda: broker.subscriber("orders", tag="A"),
        lambda: broker.publisher("orders", tag="A"),
        lambda: RocketMQBroker(middleware=()),  # type: ignore[call-arg]
        lambda: RocketMQRouter(middleware=()),  # type: ignore[call-arg]
    ):
        with pytest.raises(TypeError, match="there is no option"):
            call()


async def test_the_real_connection_is_back_after_a_test() -> None:
    broker = RocketMQBroker(logger=None)
    async with broker:
        real = broker.config.broker_config.connection
        async with TestRocketMQBroker(broker):
            assert broker.config.broker_config.connection is not real
        assert broker.config.broker_config.connection is real


def test_transactions_need_a_group_of_their_own() -> None:
    async def check(_message: object) -> TransactionState:
        return TransactionState.COMMIT

    with pytest.raises(SetupError, match="pass group="):
        RocketMQBroker(check=check)
