"""All that users hold can be copied and pickled, for other processes; what has connections says that it cannot.

The classes are found, not listed: a new public one without an example here fails a test.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import json
import pickle
import pkgutil
import typing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from typing import Any

import msgspec
import pytest

import cometmq
import cometmq.client as public
from cometmq.client import (
    Batch,
    BrokerError,
    ClientStateError,
    ConsumeFromWhere,
    DeserializationError,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
    ReceivedMessage,
    RemotingTimeoutError,
    SendFailedError,
    SendResult,
    SendStatus,
)
from cometmq.client import sync as public_sync
from cometmq.errors import CometMQError
from cometmq.testing import Cluster

OF_A_HOST = ("cometmq.integrations.airflow", "cometmq.integrations.django")
"""Rooms that only a program of Airflow or Django can import."""
HAND_ON: Sequence[Callable[[Any], Any]] = (
    copy.copy,
    copy.deepcopy,
    *(lambda given, protocol=protocol: pickle.loads(pickle.dumps(given, protocol)) for protocol in range(6)),
)
QUEUE = MessageQueue("orders", "broker-0", 1)
RESULT = SendResult(SendStatus.SEND_OK, "AC1100", "0A00", QUEUE, 7)
MESSAGE = Message("orders", b"body", tags="new", keys=["k"], properties={"a": "b"}, delay=timedelta(seconds=1))
EXAMPLES_BY_TYPE: dict[Any, object] = {
    str: "text",
    int: 7,
    float: 1.5,
    bytes: b"bytes",
    bool: True,
    object: "anything",
    Any: {"any": 1},
    BaseException: ValueError("cause"),
    CometMQError: BrokerError("10.0.0.1:10911", 2, "busy", "send"),
    MessageExt: None,
    Message: MESSAGE,
    MessageQueue: QUEUE,
    SendResult: RESULT,
    timedelta: timedelta(seconds=1),
}
CLIENTS = ("Admin", "ClientInstance", "Consumer", "Producer")
"""How names of classes with connections end."""


def example(kind: Any) -> Any:
    """Make a value of a type, or an object of a class by the types of its arguments."""
    if kind in EXAMPLES_BY_TYPE:
        return EXAMPLES_BY_TYPE[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return tuple(example(one) for one in arguments if one is not ...)
    if origin in (Sequence, list):
        return [example(arguments[0])]
    if origin is dict:
        return {}
    if arguments:  # a union: the last one that is not None
        return example([one for one in arguments if one is not type(None)][-1])
    if isinstance(kind, type) and hasattr(kind, "__members__"):
        return next(iter(kind))  # type: ignore[call-overload]
    return example_of_class(kind)


def example_of_class(kind: Any) -> Any:
    hints = typing.get_type_hints(kind.__init__ if issubclass(kind, BaseException) else kind)
    hints.pop("return", None)
    if issubclass(kind, BaseException) and kind.__init__ is Exception.__init__:
        return kind("text")
    if issubclass(kind, msgspec.Struct):
        hints = {field.name: hints[field.name] for field in msgspec.structs.fields(kind) if field.required}
    elif dataclasses.is_dataclass(kind):
        needed = [field for field in dataclasses.fields(kind) if field.default is field.default_factory]
        hints = {field.name: hints[field.name] for field in needed}
    return kind(**{name: example(hint) for name, hint in hints.items()})


def every_error() -> list[type[CometMQError]]:
    for module in pkgutil.walk_packages(cometmq.__path__, "cometmq."):
        if not module.name.endswith("__main__") and not module.name.startswith(OF_A_HOST):
            importlib.import_module(module.name)

    def below(kind: type[CometMQError]) -> Iterator[type[CometMQError]]:
        yield kind
        for one in kind.__subclasses__():
            yield from below(one)

    found = {kind for kind in below(CometMQError) if kind.__module__.startswith("cometmq")}
    return sorted(found, key=lambda kind: (kind.__module__, kind.__name__))


def told(error: BaseException) -> tuple[object, ...]:
    """All that an error says, with those that it holds."""

    def plain(value: object) -> object:
        if isinstance(value, BaseException):
            return told(value)
        return [plain(one) for one in value] if isinstance(value, list | tuple) else value

    attributes = {name: plain(value) for name, value in vars(error).items()}
    return type(error), str(error), attributes, error.__cause__ and told(error.__cause__)


def test_every_error_arrives_whole() -> None:
    kinds = every_error()
    assert len(kinds) > 100
    for kind in kinds:
        error = example_of_class(kind)
        error.__cause__ = OSError(111, "refused")
        error.add_note("a note")
        for hand_on in HAND_ON:
            assert told(hand_on(error)) == told(error), kind


def test_an_error_arrives_whose_cause_cannot() -> None:
    class LocalError(Exception):
        """No other process has this class."""

    error = BrokerError("10.0.0.1:10911", 2, "busy", "send")
    error.__cause__ = LocalError("of the application")
    arrived = pickle.loads(pickle.dumps(error))
    assert str(arrived.cause) == "LocalError: of the application"


@pytest.fixture(scope="module")
def other_process() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


def fail() -> None:
    raise SendFailedError("orders", (("broker-0", RemotingTimeoutError("10.0.0.1:10911", "no answer")),), 3.0)


def test_an_error_of_a_worker_reaches_the_pool_and_breaks_nothing(other_process: ProcessPoolExecutor) -> None:
    with pytest.raises(SendFailedError, match="no answer") as caught:
        other_process.submit(fail).result(30)
    assert isinstance(caught.value.attempts[0][1], RemotingTimeoutError)
    assert other_process.submit(len, "abc").result(30) == 3


def public_classes() -> list[Any]:
    named = [getattr(package, name) for package in (public, public_sync) for name in package.__all__]
    kinds = [kind for kind in named if isinstance(kind, type) and not issubclass(kind, BaseException)]
    return [kind for kind in kinds if not issubclass(kind, MessageExt | Batch)]  # below, from a real pull


@pytest.mark.parametrize(
    "kind", [kind for kind in public_classes() if not kind.__name__.endswith(CLIENTS)], ids=lambda kind: kind.__name__
)
def test_every_value_arrives_equal(kind: Any) -> None:
    given = example(kind)
    for hand_on in HAND_ON:
        handed = hand_on(given)
        assert type(handed) is type(given)
        assert handed == given
        assert repr(handed) == repr(given)


@pytest.mark.parametrize(
    "kind", [kind for kind in public_classes() if kind.__name__.endswith(CLIENTS)], ids=lambda kind: kind.__name__
)
def test_every_client_says_that_it_belongs_to_its_process(kind: Any) -> None:
    client = kind.__new__(kind)
    for hand_on in HAND_ON:
        with pytest.raises(TypeError, match=f"a {kind.__name__} has open connections.*create one in each process"):
            hand_on(client)


def same_message(one: MessageExt, other: MessageExt) -> bool:
    names = ("body", "properties", "topic", "queue_offset", "msg_id", "offset_msg_id", "broker_name", "born_host")
    return all(getattr(one, name) == getattr(other, name) for name in names) and repr(one) == repr(other)


async def send(cluster: Cluster, *bodies: bytes) -> None:
    async with Producer("senders", instance=cluster.client_instance()) as producer:
        await producer.send_many([Message("orders", body, keys=["k"]) for body in bodies])


async def test_a_message_is_handed_on_without_the_others_of_its_pull(cluster: Cluster) -> None:
    await send(cluster, *(b"x" * 500 for _ in range(100)))
    consumer = PullConsumer("readers", instance=cluster.client_instance())
    async with consumer:
        (queue,) = await consumer.queues("orders")
        pulled = await consumer.pull(queue, 0, 100)
    assert len(pulled.messages) == 100
    for message in pulled.messages[::33]:
        assert len(pickle.dumps(message)) < message.store_size + 200
        for hand_on in HAND_ON:
            assert same_message(hand_on(message), message)
    for hand_on in HAND_ON:
        handed = hand_on(pulled)
        assert handed.next_offset == 100
        assert all(map(same_message, handed.messages, pulled.messages))


def parsed(body: bytes) -> Any:
    return json.loads(body)


@pytest.mark.parametrize("deserializer", [parsed, lambda body: json.loads(body), dict[str, int], None])
async def test_a_message_of_a_loop_is_handed_on_with_its_value(
    cluster: Cluster, other_process: ProcessPoolExecutor, deserializer: Any
) -> None:
    await send(cluster, b'{"a": 1}', b'{"a": 2}')
    config = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer = PushConsumer("workers", config=config, instance=cluster.client_instance(), deserializer=deserializer)
    await consumer.subscribe("orders")
    async with consumer:
        batch = await consumer.receive(2)
        for hand_on in HAND_ON:
            handed = hand_on(batch)
            assert type(handed) is Batch
            for one, other in zip(handed, batch, strict=True):
                assert type(one) is ReceivedMessage
                assert same_message(one, other)
                assert deserializer is None or one.value == other.value
        assert list(other_process.map(body_of, batch)) == [b'{"a": 1}', b'{"a": 2}']


def body_of(message: ReceivedMessage) -> bytes:
    with pytest.raises(ClientStateError, match="in another process"):
        message.ack()
    return message.body


async def test_a_body_that_cannot_be_read_fails_where_its_value_is_asked_for(cluster: Cluster) -> None:
    await send(cluster, b"no json")
    consumer = LitePullConsumer("workers", instance=cluster.client_instance(), deserializer=dict)
    async with consumer:
        await consumer.assign(await consumer.queues("orders"))
        (message,) = await consumer.poll()
    handed = pickle.loads(pickle.dumps(message))
    with pytest.raises(DeserializationError) as expected:
        _ = message.value
    with pytest.raises(DeserializationError) as found:
        _ = handed.value
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
async def test_a_copy_of_a_message_settles_it_like_the_message_itself(cluster: Cluster, copied: Any) -> None:
    await send(cluster, b"1", b"2", b"3")
    config = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer = PushConsumer("workers", config=config, instance=cluster.client_instance())
    await consumer.subscribe("orders")
    async with consumer:
        for message in await consumer.receive(3):
            copied(message).ack()
            message.retry()
    assert cluster.broker(0).offsets.query("workers", "orders", 0) == 3
    assert cluster.broker(0).store.extent("%RETRY%workers", 0) == (0, 0), "nothing comes again"
