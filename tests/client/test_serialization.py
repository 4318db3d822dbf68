"""Values as bodies: JSON, pydantic and msgspec models, bytes; failures name the message."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pydantic
import pytest

from cometmq.client import (
    ConsumeFromWhere,
    DeserializationError,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    PushConfig,
    PushConsumer,
    SerializationError,
    from_json,
    to_json,
)
from cometmq.client.serialization import deserializer_of
from cometmq.errors import CometMQError
from cometmq.testing import Cluster, VirtualClock

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


class Plain(msgspec.Struct):
    id: int


@dataclasses.dataclass
class Data:
    id: int


class Model(pydantic.BaseModel):
    id: int
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "spec", "body"),
    [
        ({"id": 1}, dict, b'{"id":1}'),
        ({"id": 1}, json.loads, b'{"id":1}'),
        ([{"id": 1}], Any, b'[{"id":1}]'),
        (Plain(1), Plain, b'{"id":1}'),
        ([Plain(1)], list[Plain], b'[{"id":1}]'),
        (Data(1), Data, b'{"id":1}'),
        (Model(id=1), Model, b'{"id":1,"at":"2026-01-01T00:00:00Z"}'),
        ([Model(id=1)], pydantic.TypeAdapter(list[Model]), b'[{"id":1,"at":"2026-01-01T00:00:00Z"}]'),
        (b"\xff", bytes, b"\xff"),
        ("text", str, b'"text"'),
    ],
)
def test_a_value_comes_back_as_it_was(value: Any, spec: Any, body: bytes) -> None:
    assert to_json(value) == body
    assert deserializer_of(spec)(body) == value


def test_a_deserializer_that_cannot_read_anything_is_refused_when_the_consumer_is_made() -> None:
    class Own:
        pass

    for wrong in (Own, 5, "json"):
        with pytest.raises(TypeError, match=r"JSON cannot be decoded as|a type or a function of bytes"):
            PushConsumer("g", deserializer=wrong)
    with pytest.raises(TypeError):
        from_json(Own)


async def test_every_way_to_send_takes_values(cluster: Cluster) -> None:
    async with Producer("p", instance=cluster.client_instance()) as producer:
        await producer.send(Message("orders", value=Plain(1)))
        await producer.send(Message("orders", value=[{"id": 2}] * 30_000))
        await producer.send_many([Message("orders", value=Plain(3)), Message("orders", b"4")])
        await producer.send_batch([Message("orders", value=Plain(5)), Message("orders", value=Plain(6))])
        await producer.send_oneway(Message("orders", value=Plain(7)))
        with pytest.raises(
            SerializationError, match=r"topic orders \(key k\), of type object, .*cannot be encoded as JSON"
        ):
            await producer.send(Message("orders", value=object(), keys=["k"]))
        with pytest.raises(ValueError, match="a body and a value"):
            Message("orders", b"1", value=1)
    async with Producer("q", instance=cluster.client_instance(), serializer=str) as producer:  # type: ignore[arg-type]
        with pytest.raises(SerializationError, match="it returned str, not bytes"):
            await producer.send(Message("orders", value=1))
    config = LitePullConfig(consume_from_where=FIRST)
    lite = LitePullConsumer("g", instance=cluster.client_instance(), config=config, deserializer=Any)
    await lite.subscribe("orders")
    async with lite:
        values = []
        async for message in lite:
            values.append(message.value)
            if len(values) == 7:
                break
    assert values == [{"id": 1}, [{"id": 2}] * 30_000, {"id": 3}, 4, {"id": 5}, {"id": 6}, {"id": 7}]


@pytest.mark.parametrize("loop", [False, True], ids=["listener", "loop"])
async def test_a_body_that_cannot_be_decoded_is_named_and_goes_the_way_of_a_failure(
    cluster: Cluster, clock: VirtualClock, caplog: pytest.LogCaptureFixture, loop: bool
) -> None:
    seen: list[int] = []

    async def listener(messages: Sequence[MessageExt]) -> None:
        seen.extend(message.value.id for message in messages)

    async with Producer("p", instance=cluster.client_instance()) as producer:
        bad = await producer.send(Message("orders", b'{"id":"x"}', keys=["k7"]))
        await producer.send(Message("orders", value=Plain(2)))
    config = PushConfig(consume_from_where=FIRST, max_reconsume_times=1)
    consumer = PushConsumer(
        "workers",
        None if loop else listener,
        config=config,
        instance=cluster.client_instance(),
        deserializer=Plain,
    )
    await consumer.subscribe("orders")
    async with consumer:
        if loop:
            (message,) = await clock.run_until(consumer.receive(5), 5)
            seen.append(message.value.id)
            message.ack()
            with pytest.raises(TimeoutError):
                await clock.run_until(consumer.receive(), 30)
        else:
            await clock.run_for(30)
    assert seen == [2]
    first, second = [record for record in caplog.records if record.levelno == logging.ERROR]
    place = f"message {bad.msg_id} of topic orders, queue broker-0/0, offset 0, key k7, attempt 1"
    assert place in first.getMessage()
    assert "cannot be decoded: ValidationError: Expected `int`, got `str` - at `$.id`" in first.getMessage()
    assert "attempt 2" in second.getMessage()
    assert cluster.broker(0).store.queue("%DLQ%workers", 0).max_offset() == 1


async def test_a_value_without_a_deserializer_says_what_to_do(cluster: Cluster) -> None:
    async with Producer("p", instance=cluster.client_instance()) as producer:
        await producer.send(Message("orders", b"{"))
    for deserializer, error, text in (
        (None, CometMQError, "create the consumer with deserializer="),
        (dict, DeserializationError, "queue broker-0/0, offset 0"),
    ):
        config = LitePullConfig(consume_from_where=FIRST)
        group = f"g-{text[:4]}"
        lite = LitePullConsumer(group, instance=cluster.client_instance(), config=config, deserializer=deserializer)
        await lite.subscribe("orders")
        async with lite:
            (message,) = await lite.poll(5)
            with pytest.raises(error, match=text):
                _ = message.value
