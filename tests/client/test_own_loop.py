"""A client that is used on a second event loop says so; it does not wait for ever."""

from __future__ import annotations

import asyncio
import inspect
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

import cometmq.client
from cometmq.client import (
    ClientInstance,
    ClientStateError,
    LitePullConsumer,
    LiteTopicConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
)
from cometmq.client.admin import Admin
from cometmq.client.own_loop import OwnLoop
from cometmq.client.sync import SyncProducer
from cometmq.testing import Cluster

CLIENTS = [
    Producer,
    TransactionProducer,
    PushConsumer,
    LitePullConsumer,
    LiteTopicConsumer,
    SimpleConsumer,
    PullConsumer,
    Admin,
]
LIMIT_S = 20.0


def descendants(kind: type) -> Iterator[type]:
    children: list[type] = kind.__subclasses__()
    for child in children:
        yield child
        yield from descendants(child)


def coroutine_methods(kind: type) -> list[str]:
    found = inspect.getmembers(kind, inspect.iscoroutinefunction)
    return [name for name, _ in found if not name.startswith("_") or name in {"__aenter__", "__aexit__"}]


async def elsewhere(call: Callable[[], Awaitable[Any]]) -> Any:
    """Call on a second event loop, while the first one turns."""

    async def limited() -> Any:
        return await asyncio.wait_for(call(), LIMIT_S)

    return await asyncio.to_thread(asyncio.run, limited())


@pytest.fixture
async def clients() -> AsyncIterator[dict[type, Any]]:
    """A running client of each class."""
    async with Cluster() as cluster, AsyncExitStack() as stack:
        await cluster.create_topic("loops")
        at = cluster.namesrv_address
        async with Admin(at) as admin:
            await admin.create_lite_topic("parent")
            await admin.create_lite_group("sessions", "parent")
        push = PushConsumer("push", namesrv=at)
        await push.subscribe("loops")
        nothing = TransactionState.ROLLBACK
        made: list[Any] = [
            Producer("p", at),
            TransactionProducer("t", lambda *_: nothing, lambda _: nothing, namesrv=at),
            push,
            LitePullConsumer("lite", at),
            LiteTopicConsumer("sessions", "parent", namesrv=at),
            SimpleConsumer("workers", {}, at),
            PullConsumer("pull", at),
            Admin(at),
        ]
        yield {type(client): await stack.enter_async_context(client) for client in made}


def test_every_public_client_is_tested() -> None:
    public = {one for one in vars(cometmq.client).values() if isinstance(one, type) and issubclass(one, OwnLoop)}
    ours = {kind for kind in descendants(OwnLoop) if kind.__module__.startswith("cometmq.")}
    last = {kind for kind in ours if not kind.__subclasses__() and not kind.__name__.startswith("_")}
    assert public | last <= {*CLIENTS}


@pytest.mark.parametrize("kind", CLIENTS)
async def test_every_method_names_the_loop(kind: type, clients: dict[type, Any]) -> None:
    client = clients[kind]
    methods = coroutine_methods(kind)
    assert methods
    for name in methods:
        method = getattr(client, name)
        parameters = inspect.signature(method).parameters.values()
        needed = [one for one in parameters if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
        given = [Message("loops", b"x") if one.name == "message" else object() for one in needed]
        if name == "__aexit__":
            given = [None, None, None]
        with pytest.raises(ClientStateError, match=r"started on the event loop <.*, which runs elsewhere"):
            await elsewhere(partial(method, *given))


async def test_steps_of_an_iteration_name_the_loop(clients: dict[type, Any]) -> None:
    iterations = [
        aiter(clients[PushConsumer]),
        clients[PushConsumer].batches(),
        aiter(clients[LitePullConsumer]),
        clients[LitePullConsumer].batches(),
    ]
    for iteration in iterations:

        async def step(iteration: AsyncIterator[Any] = iteration) -> Any:
            return await anext(iteration)

        with pytest.raises(ClientStateError, match="started on the event loop"):
            await elsewhere(step)


async def test_connections_that_are_shared_are_of_one_loop(clients: dict[type, Any]) -> None:
    instance: ClientInstance = clients[Producer].instance

    async def start() -> None:
        await Producer("second", instance=instance).start()

    with pytest.raises(ClientStateError, match="started on the event loop"):
        await elsewhere(start)


def test_a_client_of_an_event_loop_that_is_closed_says_so() -> None:
    async def started() -> Producer:
        producer = Producer("p", "127.0.0.1:1")
        await producer.start()
        return producer

    producer = asyncio.run(started())
    with pytest.raises(ClientStateError, match="which is closed"):
        asyncio.run(producer.send(Message("T", b"x")))
    producer._use._finalizer.detach()


def test_a_synchronous_client_says_that_threads_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    import _thread

    def start_new_thread(*_: object) -> None:
        """Stand for the function that gevent and eventlet put here."""

    assert isinstance(_thread.start_new_thread, types.BuiltinFunctionType)
    monkeypatch.setattr(_thread, "start_new_thread", start_new_thread)
    with pytest.raises(ClientStateError, match="threads are replaced") as raised:
        SyncProducer("p", "127.0.0.1:1")
    assert "thread=False" in str(raised.value)
