"""Listeners and hooks that raise what is no ``Exception``, or return what is no verdict: nothing stands still."""

from __future__ import annotations

import asyncio
import functools
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from tests.helpers.waiting import until

from cometmq.client import (
    ClientInstance,
    ClientRpcHook,
    ConsumeFromWhere,
    ConsumeMessageHook,
    ConsumeResult,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
    Retry,
    Rollback,
    SendMessageHook,
    Suspend,
    TransactionProducer,
    TransactionState,
)
from cometmq.client.errors import ClientError
from cometmq.client.hooks import SendForbiddenError
from cometmq.client.sync import SyncProducer, SyncPushConsumer
from cometmq.errors import CometMQError
from cometmq.remoting.headers import CheckTransactionStateRequestHeader
from cometmq.testing import Cluster, SyncCluster

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
COUNT = 41


class OwnError(BaseException):
    """An error of an application that ``except Exception`` does not catch."""


BASE_ERRORS = [asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit, OwnError]
WRONG_RETURNS = [
    True,
    "SUCCESS",
    [],
    0,
    object(),
    Retry(first="2"),  # type: ignore[arg-type]
    Retry(first=-1),
    Retry(delay_level=2**40),
    Suspend(seconds=float("nan")),
    Suspend(seconds=-1.0),
    ConsumeResult.COMMIT,
    ConsumeResult.ROLLBACK,
    Rollback(),
]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        await cluster.create_topic("orders", queues=1)
        yield cluster


async def fill(cluster: Cluster) -> None:
    async with Producer("application", instance=cluster.client_instance()) as producer:
        for number in range(COUNT):
            await producer.send(Message("orders", b"%d" % number))


class Worker:
    """Fails on the first message of all, twice, as it is told."""

    def __init__(self, fail: Callable[[], Any]) -> None:
        self.fail = fail
        self.failures = 0
        self.seen: list[int] = []

    def __call__(self, messages: Sequence[MessageExt]) -> Any:
        number = int(messages[0].body)
        if number == 0 and self.failures < 2:
            self.failures += 1
            return self.fail()
        self.seen.append(number)
        return None

    async def call_async(self, messages: Sequence[MessageExt]) -> Any:
        await asyncio.sleep(0)
        return self(messages)


def config_of(orderly: bool) -> PushConfig:
    return PushConfig(
        consume_from_where=FIRST,
        orderly=orderly,
        pull_span_for_queue=8,
        pull_batch_size=4,
        consume_concurrency=2,
        suspend_current_queue_s=0.01,
        handover_wait_s=1.0,
    )


async def consume_beside_failures(
    cluster: Cluster, worker: Worker, *, orderly: bool, is_async: bool, config: PushConfig | None = None
) -> None:
    """All but the failed message are consumed, it comes again, and the offset goes on."""
    await fill(cluster)
    listener: Any = worker.call_async if is_async else worker
    instance = cluster.client_instance()
    consumer = PushConsumer("workers", listener, config=config or config_of(orderly), instance=instance)
    await consumer.subscribe("orders")
    async with consumer, asyncio.timeout(30):
        await until(lambda: len(worker.seen) >= (COUNT if orderly else COUNT - 1))
        if orderly:
            assert worker.seen == list(range(COUNT)), worker.seen
            assert worker.failures == 2
        else:
            assert sorted(worker.seen) == list(range(1, COUNT))
            assert worker.failures == 1
            retried = cluster.broker(0).store.queue("SCHEDULE_TOPIC_XXXX", 2)
            await until(lambda: retried.max_offset() == 1)
        await until(lambda: not consumer.cached_count)
    assert cluster.broker(0).offsets.query("workers", "orders", 0) == COUNT


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "threads"])
@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize("kind", BASE_ERRORS)
async def test_what_is_no_exception_is_a_failure_all_the_same(
    cluster: Cluster,
    caplog: pytest.LogCaptureFixture,
    kind: type[BaseException],
    orderly: bool,
    is_async: bool,
) -> None:
    def fail() -> None:
        raise kind("no")

    worker = Worker(fail)
    with caplog.at_level(logging.ERROR, "cometmq.client"):
        await consume_beside_failures(cluster, worker, orderly=orderly, is_async=is_async)
    logged = [record for record in caplog.records if "the listener failed on message" in record.getMessage()]
    assert len(logged) == worker.failures
    assert logged[0].exc_info is not None
    assert logged[0].exc_info[0] is kind


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_listener_that_cancels_the_task_which_calls_it_fails_alone(cluster: Cluster, orderly: bool) -> None:
    worker = Worker(lambda: None)

    async def listener(messages: Sequence[MessageExt]) -> None:
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        if int(messages[0].body) == 0 and worker.failures < 2:
            worker.failures += 1
            task.cancel()
            await asyncio.Event().wait()
        worker.seen.append(int(messages[0].body))

    worker.call_async = listener  # type: ignore[method-assign]
    await consume_beside_failures(cluster, worker, orderly=orderly, is_async=True)


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_listener_whose_own_time_is_up_fails_alone(cluster: Cluster, orderly: bool) -> None:
    worker = Worker(lambda: None)

    async def listener(messages: Sequence[MessageExt]) -> None:
        if int(messages[0].body) == 0 and worker.failures < 2:
            worker.failures += 1
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        worker.seen.append(int(messages[0].body))

    worker.call_async = listener  # type: ignore[method-assign]
    await consume_beside_failures(cluster, worker, orderly=orderly, is_async=True)


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize("at", range(len(WRONG_RETURNS)), ids=lambda at: type(WRONG_RETURNS[at]).__name__)
async def test_what_is_no_verdict_is_an_error_that_names_what_may_be_returned(
    cluster: Cluster,
    caplog: pytest.LogCaptureFixture,
    at: int,
    orderly: bool,
) -> None:
    worker = Worker(lambda: WRONG_RETURNS[at])
    is_async = at % 2 == 0
    with caplog.at_level(logging.ERROR, "cometmq.client"):
        await consume_beside_failures(cluster, worker, orderly=orderly, is_async=is_async)
    logged = [record.getMessage() for record in caplog.records if "the listener returned" in record.getMessage()]
    assert len(logged) == worker.failures
    assert "ConsumeResult.SUCCESS, ConsumeResult.RECONSUME_LATER, Retry(" in logged[0]
    assert "of topic orders, queue broker-0/0, offset 0, key none, attempt 1 failed" in logged[0]


async def test_a_plain_listener_that_returns_an_awaitable_is_told_to_be_async(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(lambda: asyncio.sleep(0))
    await consume_beside_failures(cluster, worker, orderly=False, is_async=False)
    assert "write the listener as `async def`" in caplog.text


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_listener_that_returns_none_is_done(cluster: Cluster, orderly: bool) -> None:
    await fill(cluster)
    seen: list[int] = []

    async def listener(messages: Sequence[MessageExt]) -> None:
        seen.append(int(messages[0].body))

    consumer = PushConsumer("workers", listener, config=config_of(orderly), instance=cluster.client_instance())
    await consumer.subscribe("orders")
    async with consumer:
        await until(lambda: len(seen) == COUNT and not consumer.cached_count)
    assert cluster.broker(0).offsets.query("workers", "orders", 0) == COUNT


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_listener_may_empty_the_list_that_it_gets(cluster: Cluster, orderly: bool) -> None:
    await fill(cluster)
    seen: list[int] = []

    async def listener(messages: Sequence[MessageExt]) -> None:
        assert isinstance(messages, list)
        while messages:
            seen.append(int(messages.pop(0).body))
        if len(seen) <= 4:
            raise ValueError("after all were taken out")

    config = PushConfig(
        consume_from_where=FIRST,
        orderly=orderly,
        consume_batch_size=4,
        pull_batch_size=4,
        pull_threshold_for_queue=8,
        suspend_current_queue_s=0.01,
    )
    consumer = PushConsumer("workers", listener, config=config, instance=cluster.client_instance())
    await consumer.subscribe("orders")
    async with consumer, asyncio.timeout(30):
        await until(lambda: len(seen) == COUNT + (4 if orderly else 0) and not consumer.cached_count)
    assert cluster.broker(0).offsets.query("workers", "orders", 0) == COUNT
    if not orderly:
        assert cluster.broker(0).store.queue("SCHEDULE_TOPIC_XXXX", 2).max_offset() == 4


@pytest.mark.parametrize("kind", BASE_ERRORS)
async def test_hooks_that_raise_what_is_no_exception_stop_nothing(cluster: Cluster, kind: type[BaseException]) -> None:
    def fail(*_: object) -> Any:
        raise kind("no")

    seen: list[int] = []

    async def listener(messages: Sequence[MessageExt]) -> None:
        seen.append(int(messages[0].body))

    rpc_hook = ClientRpcHook(after=fail)
    consumer = PushConsumer(
        "workers",
        listener,
        config=config_of(False),
        instance=ClientInstance(cluster.namesrv_address, hooks=(rpc_hook,)),
        consume_hooks=[ConsumeMessageHook(fail, fail)],
    )
    await consumer.subscribe("orders")
    async with consumer:
        async with Producer(
            "p", instance=cluster.client_instance(), send_hooks=[SendMessageHook(fail, fail)], trace_context=fail
        ) as producer:
            for number in range(COUNT):
                await producer.send(Message("orders", b"%d" % number))
        await until(lambda: len(seen) == COUNT)
        async with Producer("p", instance=cluster.client_instance(), check_forbidden_hooks=[fail]) as producer:
            with pytest.raises(SendForbiddenError) as caught:
                await producer.send(Message("orders", b"x"))
            assert isinstance(caught.value.__cause__, kind)


@pytest.mark.parametrize("kind", [*BASE_ERRORS, StopIteration, ValueError])
async def test_a_selector_that_raises_fails_its_own_message_alone(cluster: Cluster, kind: type[BaseException]) -> None:
    def select(*_: object) -> Any:
        raise kind("no")

    async with asyncio.timeout(20), Producer("p", instance=cluster.client_instance()) as producer:
        for _ in range(2):  # first with an unknown route, then with a known one
            with pytest.raises((kind, CometMQError)):
                await producer.send(Message("orders", b"x"), selector=select)
        with pytest.raises(ClientError) as partly:
            await producer.send_many([Message("orders", b"x")] * 3, selector=select)
        assert len(partly.value.outcomes) == 3  # type: ignore[attr-defined]
        assert not producer._sender.in_flight
        await producer.send(Message("orders", b"x"))


@pytest.mark.parametrize("kind", [*BASE_ERRORS, StopIteration])
def test_a_synchronous_client_outlives_what_selectors_and_listeners_raise(kind: type[BaseException]) -> None:
    def select(*_: object) -> Any:
        raise kind("no")

    with SyncCluster() as cluster:
        cluster.create_topic("orders", queues=1)
        seen: list[bytes] = []
        enough = threading.Event()

        def listener(messages: Sequence[MessageExt]) -> None:
            seen.append(messages[0].body)
            if messages[0].body == b"poison":
                raise kind("no")
            enough.set()

        consumer = SyncPushConsumer("workers", listener, cluster.namesrv_address, config=config_of(False))
        consumer.subscribe("orders")
        with SyncProducer("p", cluster.namesrv_address) as producer, consumer:
            for send in (producer.send, producer.send_oneway):
                with pytest.raises((kind, CometMQError, RuntimeError)):
                    send(Message("orders", b"x"), selector=select)
            producer.send(Message("orders", b"poison"))
            producer.send(Message("orders", b"good"))
            assert enough.wait(20)


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "threads"])
@pytest.mark.parametrize("kind", [*BASE_ERRORS, ValueError, StopIteration])
async def test_local_work_and_checkers_that_raise_leave_the_transaction_open(
    cluster: Cluster, kind: type[BaseException], is_async: bool
) -> None:
    asked: list[str] = []

    def execute(*_: object) -> TransactionState:
        raise kind("no")

    def check(message: MessageExt) -> TransactionState:
        asked.append(message.msg_id)
        if len(asked) == 1:
            raise kind("no")
        return TransactionState.COMMIT

    async def execute_async(*_: object) -> TransactionState:
        return execute()

    async def check_async(message: MessageExt) -> TransactionState:
        return check(message)

    functions: Any = (execute_async, check_async) if is_async else (execute, check)
    async with TransactionProducer("bank", *functions, instance=cluster.client_instance()) as producer:
        sent = await producer.send_in_transaction(Message("orders", b"x"))
        assert sent.state is TransactionState.UNKNOWN
        assert isinstance(sent.error, RuntimeError if kind is StopIteration else kind)
        half = cluster.broker(0).store.queue("RMQ_SYS_TRANS_HALF_TOPIC", 0)
        assert half.max_offset() == 1
        for _ in range(2):
            message = await _half_message(cluster)
            header = CheckTransactionStateRequestHeader(0, message.commit_log_offset, message.msg_id)
            producer._checks.ask(cluster.broker(0).address, header, message)
            await until(lambda: not producer._checks._workers)
        assert len(asked) == 2
        await until(lambda: cluster.broker(0).store.queue("orders", 0).max_offset() == 1)


async def _half_message(cluster: Cluster) -> MessageExt:
    async with PullConsumer("reader", instance=cluster.client_instance()) as puller:
        pulled = await puller.pull(MessageQueue("RMQ_SYS_TRANS_HALF_TOPIC", "broker-0", 0), 0)
        return pulled.messages[0]


@pytest.mark.parametrize("how", ["partial", "callable object"])
async def test_async_listeners_are_known_in_every_form(cluster: Cluster, how: str) -> None:
    await fill(cluster)
    seen: list[int] = []

    async def listener(note: str, messages: Sequence[MessageExt]) -> None:
        seen.append(int(messages[0].body))

    class Listening:
        async def __call__(self, messages: Sequence[MessageExt]) -> None:
            await listener("x", messages)

    chosen: Any = functools.partial(listener, "x") if how == "partial" else Listening()
    consumer = PushConsumer("workers", chosen, config=config_of(False), instance=cluster.client_instance())
    await consumer.subscribe("orders")
    async with consumer:
        await until(lambda: len(seen) == COUNT)


async def test_closing_ends_a_listener_that_waits_and_its_message_comes_again(cluster: Cluster) -> None:
    await fill(cluster)
    began = asyncio.Event()
    ended: list[str] = []

    async def listener(messages: Sequence[MessageExt]) -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    config = PushConfig(consume_from_where=FIRST, consume_concurrency=1, handover_wait_s=0.05)
    consumer = PushConsumer("workers", listener, config=config, instance=cluster.client_instance())
    await consumer.subscribe("orders")
    async with asyncio.timeout(5), consumer:
        await began.wait()
    await until(lambda: ended == ["cancelled"])
    assert cluster.broker(0).offsets.query("workers", "orders", 0) == 0
    assert cluster.broker(0).store.queue("SCHEDULE_TOPIC_XXXX", 2).max_offset() == 0


LOOP_THAT_ENDS = """
import asyncio, logging
from cometmq.client import ConsumeFromWhere, Message, Producer, PushConfig, PushConsumer
from cometmq.testing import Cluster

async def main():
    cluster = Cluster()
    await cluster.start()
    await cluster.create_topic("orders", queues=1)
    async with Producer("application", instance=cluster.client_instance()) as producer:
        await producer.send_many([Message("orders", b"x")] * 5)
    begun = []
    enough = asyncio.Event()
    async def listener(messages):
        begun.append(1)
        if len(begun) == 6:
            enough.set()
        await asyncio.Event().wait()
    for orderly in (False, True):
        config = PushConfig(orderly=orderly, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        consumer = PushConsumer(f"workers-{orderly}", listener, config=config, instance=cluster.client_instance())
        await consumer.subscribe("orders")
        await consumer.start()
    await enough.wait()

logging.basicConfig(level=logging.WARNING)
asyncio.run(main())
print("ended")
"""


def test_a_loop_that_ends_without_close_ends_at_once() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LOOP_THAT_ENDS], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout == "ended\n", ran.stderr
    assert "the listener failed" not in ran.stderr
    assert "was destroyed but it is pending" not in ran.stderr
