"""Kombu's connections, channels, queues and exchanges against a real cluster."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest
from amqp.exceptions import RecoverableConnectionError
from kombu import Connection, Consumer, Exchange, Message, Producer, Queue
from kombu.exceptions import ChannelError, OperationalError
from tests.helpers.waiting import block_for, wait_for
from tests.integrations.kombu.conftest import Connect

from cometmq.broker.turn.targets import RefusedError
from cometmq.client import (
    Admin,
    BrokerError,
    IllegalMessageError,
    MessageExt,
    RemotingConnectError,
    RemotingTimeoutError,
)
from cometmq.client import Message as RocketMessage
from cometmq.client.dead_letters import Ledger, Selection, read_dead_letters, resend
from cometmq.client.simple.consumer import SimpleConsumer
from cometmq.integrations import attempts
from cometmq.integrations.kombu import session
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.codes import ResponseCode
from cometmq.testing import Direction, SyncCluster

STRANGE = ["a.b", "späß/队列", "with blank", "%41", "x" * 250, "TBW102", "a|b"]


class Received:
    """Collects what a consumer gets."""

    def __init__(self, *, ack: bool = True) -> None:
        self.messages: list[Message] = []
        self._ack = ack

    def __call__(self, _body: Any, message: Message) -> None:
        self.messages.append(message)
        if self._ack:
            message.ack()

    @property
    def bodies(self) -> list[Any]:
        return [message.payload for message in self.messages]


def drain(connection: Connection, received: Received, count: int) -> None:
    while len(received.messages) < count:
        connection.drain_events(timeout=10)


def nothing_comes(connection: Connection, timeout: float = 0.2) -> None:
    with pytest.raises(socket.timeout):
        connection.drain_events(timeout=timeout)


@pytest.mark.parametrize("strange", STRANGE)
def test_queues_with_any_name(connect: Connect, strange: str) -> None:
    with connect().SimpleQueue(strange) as sender:
        sender.put({"n": 1})
    with connect().SimpleQueue(strange) as receiver:
        message = receiver.get(timeout=10)
        assert message.payload == {"n": 1}
        assert message.delivery_info["routing_key"] == strange
        message.ack()


def test_the_most_urgent_message_comes_first(connection: Connection, name: str) -> None:
    with connection.SimpleQueue(name) as queue:
        for priority in (0, 9, 5, None, 3):
            queue.put(priority, priority=priority)
        assert [queue.get(timeout=10).payload for _ in range(5)] == [9, 5, 3, 0, None]


def test_no_more_is_received_than_the_prefetch_limit_allows(connect: Connect, name: str) -> None:
    first, second = connect(), connect()
    received, others = Received(ack=False), Received(ack=False)
    queue = Queue(name, routing_key=name)
    with first.channel() as channel, second.channel() as other:
        queue(channel).declare()
        for number in range(6):
            Producer(channel).publish(number, routing_key=name)
        with Consumer(channel, [queue], callbacks=[received], prefetch_count=2):
            drain(first, received, 2)
            nothing_comes(first)
            with Consumer(other, [queue], callbacks=[others], prefetch_count=9):
                drain(second, others, 4)
                received.messages[0].ack()
                nothing_comes(first)
    assert sorted(received.bodies + others.bodies) == [0, 1, 2, 3, 4, 5]


def test_a_queue_that_is_consumed_later_raises_the_limit_for_no_moment(connect: Connect, name: str) -> None:
    connection, sending, received = connect(), connect(), Received(ack=False)
    first, second = (Queue(f"{name}-{number}", routing_key=f"{name}-{number}") for number in range(2))
    with connection.channel() as channel, sending.channel() as other:
        for number in range(2):
            Producer(other).publish(number, routing_key=second.name, declare=[second])
        with Consumer(channel, [first], callbacks=[received], prefetch_count=2) as consumer:
            nothing_comes(connection)  # a request for two messages waits
            consumer.add_queue(second)
            consumer.consume()
            drain(connection, received, 2)
            Producer(other).publish(2, routing_key=first.name)
            nothing_comes(connection)
            received.messages[0].ack()
            drain(connection, received, 3)
    assert received.bodies == [0, 1, 2]


def test_a_week_as_for_redis_is_an_allowed_visibility_timeout(connect: Connect, name: str) -> None:
    with connect(visibility_timeout=604_800).SimpleQueue(name) as queue:
        queue.put(1)
        assert queue.get(timeout=10).payload == 1


def test_a_busy_consumer_gathers_its_acknowledgements_and_requests(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, other, received = connect(), connect(), Received(ack=False)
    with connection.channel() as channel, other.channel() as sending:
        Queue(name, routing_key=name)(channel).declare()
        for number in range(96):
            Producer(sending).publish(number, routing_key=name)
        with Consumer(channel, [Queue(name, routing_key=name)], callbacks=[received], prefetch_count=32):
            counts = counted_requests(channel._receivers[False]._consumer, monkeypatch)
            for count in range(1, 97):
                drain(connection, received, count)
                received.messages[count - 1].ack()
            wait_for(lambda: counts["acknowledge"] == 96, "all acknowledgements")
    assert sorted(received.bodies) == list(range(96))
    assert counts["pop"] <= 24, "a request for each message"
    assert counts["requests"] <= 48, "a request for each acknowledgement"
    with connect().SimpleQueue(name) as queue, pytest.raises(Empty):
        queue.get_nowait()


def counted_requests(consumer: SimpleConsumer, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the pops of a consumer, its requests to acknowledge messages, and the messages in those."""
    requests, counts = consumer._requests, Counter[str]()
    pop, acknowledge = requests.pop, requests.acknowledge

    async def popped(*args: Any) -> Any:
        counts["pop"] += 1
        return await pop(*args)

    async def acknowledged(broker: str, messages: Sequence[Any]) -> None:
        await acknowledge(broker, messages)
        counts.update(acknowledge=len(messages), requests=1)

    monkeypatch.setattr(requests, "pop", popped)
    monkeypatch.setattr(requests, "acknowledge", acknowledged)
    return counts


def test_a_failed_acknowledgement_names_its_messages(
    connection: Connection, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    received = Received(ack=False)
    with connection.channel() as channel:
        queue = Queue(name, routing_key=name)
        with Consumer(channel, [queue], callbacks=[received], prefetch_count=32):
            for number in range(12):
                Producer(channel).publish(number, routing_key=name)
            drain(connection, received, 12)
            consumer = channel._receivers[False]._consumer
            acknowledge, ids = consumer._requests.acknowledge, [held[1].msg_id for held in channel._held.values()]

            async def refuse_some(broker: str, messages: Sequence[Any]) -> None:
                if any(message.msg_id != ids[0] for message in messages):
                    raise BrokerError("broker", 1, "refused", "acknowledging")
                await acknowledge(broker, messages)

            monkeypatch.setattr(consumer._requests, "acknowledge", refuse_some)
            for message in received.messages:
                message.ack()
            wait_for(lambda: "delivered again" in caplog.text, "the line in the log")
    (line,) = [record.message for record in caplog.records if "delivered again" in record.message]
    named = f"topic {name}: {', '.join(ids[1:11])}; and others"
    assert line.startswith(f"11 messages may be delivered again ({named}): acknowledging")


def test_a_single_acknowledgement_waits_for_no_other(
    connection: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = Received(ack=False)
    queue = Queue(name, routing_key=name)
    with connection.channel() as channel, Consumer(channel, [queue], callbacks=[received], prefetch_count=32):
        counts = counted_requests(channel._receivers[False]._consumer, monkeypatch)
        for number in range(2):
            Producer(channel).publish(number, routing_key=name)
            drain(connection, received, number + 1)
            received.messages[number].ack()
            wait_for(lambda: counts["acknowledge"] == len(received.messages), "the acknowledgement")


def test_an_interrupted_acknowledgement_goes_with_the_next(
    connection: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    received = Received(ack=False)
    queue = Queue(name, routing_key=name)
    with connection.channel() as channel, Consumer(channel, [queue], callbacks=[received], prefetch_count=1):
        receiver = channel._receivers[False]
        counts = counted_requests(receiver._consumer, monkeypatch)
        for number in range(2):
            Producer(channel).publish(number, routing_key=name)
        drain(connection, received, 1)
        with monkeypatch.context() as patched:
            patched.setattr(receiver, "_loop", SimpleNamespace(call_soon_threadsafe=interrupted, call_later=None))
            with pytest.raises(KeyboardInterrupt):
                receiver.ack_soon(received.messages[0].channel._held[received.messages[0].delivery_tag][1])
        received.messages[0].ack()
        drain(connection, received, 2)
        received.messages[1].ack()
        wait_for(lambda: counts["acknowledge"] >= 3, "the acknowledgements")


def test_what_a_closed_channel_held_comes_again_at_once(connect: Connect, name: str) -> None:
    first = connect()
    with first.channel() as channel:
        received = Received(ack=False)
        queue = Queue(name, routing_key=name)(channel)
        queue.declare()
        for number in range(3):
            Producer(channel).publish(number, routing_key=name)
        with Consumer(channel, [queue], callbacks=[received], prefetch_count=3):
            drain(first, received, 3)
        received.messages[0].ack()
    with connect().SimpleQueue(name) as again:
        found = [again.get(timeout=10) for _ in range(2)]
        assert sorted(message.payload for message in found) == [1, 2]
        assert [message.delivery_info["redelivered"] for message in found] == [True, True]


def test_an_acknowledged_message_does_not_come_again_and_a_requeued_one_does(connection: Connection, name: str) -> None:
    with connection.SimpleQueue(name) as queue:
        queue.put("first")
        queue.get_nowait().ack()
        with pytest.raises(Empty):
            queue.get_nowait()
        queue.put("second")
        first = queue.get_nowait()
        first.requeue()
        second = queue.get_nowait()
        assert (second.payload, second.delivery_tag != first.delivery_tag) == ("second", True)
        second.ack()
        with pytest.raises(Empty):
            queue.get_nowait()


async def dead_letters(namesrv: str, topic: str) -> list[MessageExt]:
    async with Admin(namesrv) as admin:
        return [letter async for letter in read_dead_letters(admin, "celery", Selection(origin_topic=topic))]


async def send_again(namesrv: str, topic: str, ledger: Path) -> None:
    async with Admin(namesrv) as admin:
        with Ledger(ledger) as opened:
            letters = read_dead_letters(admin, "celery", Selection(origin_topic=topic))
            await resend(admin, letters, opened, lambda *_: None)


def test_a_rejected_message_is_a_dead_letter_that_can_be_sent_again(
    cluster: SyncCluster, connection: Connection, name: str, tmp_path: Path
) -> None:
    namesrv = cluster.namesrv_address
    with connection.SimpleQueue(name) as queue:
        queue.put({"n": 1}, priority=4)
        queue.get(timeout=10).reject()
        wait_for(lambda: cluster.call(dead_letters(namesrv, name)), "a dead letter")
        cluster.call(send_again(namesrv, name, tmp_path / "ledger"))
        again = queue.get(timeout=10)
        assert (again.payload, again.properties["priority"]) == ({"n": 1}, 4)
        again.ack()


def test_messages_of_strangers_are_dead_letters(cluster: SyncCluster, connection: Connection, name: str) -> None:
    with connection.SimpleQueue(name) as queue:
        queue.put("ours")
        cluster.send(RocketMessage(name, b"theirs", priority=9))
        assert queue.get(timeout=10).payload == "ours"
    namesrv = cluster.namesrv_address
    wait_for(lambda: cluster.call(dead_letters(namesrv, name)), "a dead letter")
    assert [letter.body for letter in cluster.call(dead_letters(namesrv, name))] == [b"theirs"]


def test_a_message_that_is_delivered_too_often_is_a_dead_letter(
    cluster: SyncCluster, connect: Connect, name: str
) -> None:
    with connect(max_deliveries=3).SimpleQueue(name) as queue:
        queue.put("poison")
        for _ in range(3):
            queue.get(timeout=10).requeue()
        queue.put("next")
        assert queue.get(timeout=10).payload == "next"

        def is_dead() -> bool:
            with suppress(TimeoutError):  # the poison may have come after the other message
                queue.channel.connection.client.drain_events(timeout=0.01)
            return bool(cluster.call(dead_letters(cluster.namesrv_address, name)))

        wait_for(is_dead, "a dead letter")


@pytest.mark.parametrize("error", [RecursionError, ValueError, TypeError, KeyError, AttributeError, OverflowError])
def test_a_task_that_its_consumer_cannot_handle_is_a_dead_letter(
    cluster: SyncCluster, connect: Connect, name: str, error: type[Exception]
) -> None:
    connection = connect()

    def fail(_message: Message) -> None:
        raise error("from the headers of the task")

    with connection.channel() as channel:
        producer = Producer(channel, routing_key=name)
        with Consumer(channel, Queue(name, routing_key=name), on_message=fail):
            producer.publish([], headers={"task": "a", "id": "1"})
            with pytest.raises(error, match="from the headers"):
                connection.drain_events(timeout=10)
            assert len(cluster.call(dead_letters(cluster.namesrv_address, name))) == 1


@pytest.mark.parametrize(
    ("headers", "error"), [({}, ValueError), ({"task": "a", "id": "1"}, ConnectionError), ({"task": "a"}, MemoryError)]
)
def test_other_messages_come_again_when_their_consumer_fails(
    cluster: SyncCluster, connect: Connect, name: str, headers: dict[str, str], error: type[Exception]
) -> None:
    connection = connect()

    def fail(_message: Message) -> None:
        raise error("for the time being")

    with connection.channel() as channel, Consumer(channel, Queue(name, routing_key=name), on_message=fail):
        Producer(channel, routing_key=name).publish([1], headers=headers)
        with pytest.raises(error, match="for the time being"):
            connection.drain_events(timeout=10)
    assert connect().SimpleQueue(name).get(timeout=10).payload == [1]
    assert not cluster.call(dead_letters(cluster.namesrv_address, name))


def test_counting_purging_and_deleting(connect: Connect, name: str) -> None:
    connection = connect()
    with connection.channel() as channel:
        queue = Queue(name, routing_key=name)(channel)
        with pytest.raises(ChannelError, match="no queue"):
            queue.queue_declare(passive=True)
        queue.declare()
        for number in range(5):
            Producer(channel).publish(number, routing_key=name, priority=number)
        assert queue.queue_declare(passive=True).message_count == 5
        queue.get().requeue()
        assert queue.purge() == 5
        assert queue.get() is None
        assert queue.queue_declare(passive=True).message_count == 0
        Producer(channel).publish("later", routing_key=name)
        assert queue.get(no_ack=True).payload == "later"
        queue.delete()
        with pytest.raises(ChannelError, match="no queue"):
            queue.queue_declare(passive=True)


def test_a_purge_sets_no_worker_back(connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connection, worker = connect(), connect()
    queue, looked_at = Queue(name, routing_key=name), set[MessageQueue]()
    with connection.channel() as channel:
        queue(channel).declare()
        for priority in (0, 9):
            Producer(channel).publish("old", routing_key=name, priority=priority)
        offsets = connection.transport.session.inner.admin.offsets
        committed = offsets.committed

        def consume() -> None:
            with worker.channel() as other:
                Producer(other).publish("new", routing_key=name, priority=0)
                while (message := queue(other).get()) is not None:
                    message.ack()

        async def late(group: str, place: MessageQueue) -> Any:
            looked_at.add(place)
            if len(looked_at) == 2:
                await asyncio.to_thread(consume)
            return await committed(group, place)

        monkeypatch.setattr(offsets, "committed", late)
        assert queue(channel).purge() == 1
        assert len(looked_at) == 2
        assert queue(channel).get() is None


def test_a_message_lives_as_long_as_its_expiration(connection: Connection, name: str) -> None:
    with connection.SimpleQueue(name) as queue:
        queue.put("short", expiration=0.001)
        queue.put("long", expiration=60)
        block_for(0.05)
        assert queue.get(timeout=10).payload == "long"


@pytest.mark.parametrize(
    ("kind", "bound", "keys"), [("direct", "a.b", {"a.b"}), ("topic", "a.*", {"a.b", "a.c"}), ("topic", "#.b", {"a.b"})]
)
def test_bindings_are_those_of_all_processes(
    connect: Connect, name: str, kind: str, bound: str, keys: set[str]
) -> None:
    exchange = Exchange(f"{name}.exchange", kind)
    with connect().channel() as receiving, connect().channel() as sending:
        queue = Queue(name, exchange, routing_key=bound)(receiving)
        queue.declare()
        exchange(sending).declare()
        for key in ("a.b", "a.c", "b"):
            Producer(sending, exchange).publish(key, routing_key=key)
        found = set()
        while (message := queue.get(no_ack=True)) is not None:
            found.add(message.payload)
        assert found == keys
        queue.unbind_from(exchange, routing_key=bound)
    with connect().channel() as later:
        exchange(later).declare()
        Producer(later, exchange).publish("a.b", routing_key="a.b")
        assert Queue(name)(later).get() is None


def test_each_process_gets_each_message_of_a_fanout_exchange(connect: Connect, name: str) -> None:
    exchange = Exchange(f"{name}.exchange", "fanout")
    connections = [connect() for _ in range(3)]
    received = [Received() for _ in connections]
    with connect().channel() as sending:
        exchange(sending).declare()
        Producer(sending, exchange).publish("before anybody listens")
        for connection, into in zip(connections, received, strict=True):
            queue = Queue(f"{name}.{id(into)}", exchange, auto_delete=True)
            Consumer(connection.channel(), [queue], callbacks=[into]).consume()
        for number in range(3):
            Producer(sending, exchange).publish(number)
    for connection, into in zip(connections, received, strict=True):
        drain(connection, into, 3)
        nothing_comes(connection, 0.05)
        assert into.bodies == [0, 1, 2]


async def topics_of(namesrv: str) -> set[str]:
    async with Admin(namesrv) as admin:
        return set(await admin.topics())


def test_replies_leave_nothing_behind(cluster: SyncCluster, connect: Connect) -> None:
    asking, answering = connect(), connect()
    exchange = Exchange("reply.test", "direct")
    before: set[str] = set()
    with asking.channel() as channel, answering.channel() as other:
        for number in range(5):
            queue = Queue(f"reply-{number}", exchange, f"key-{number}", exclusive=True, auto_delete=True)(channel)
            queue.declare()
            Producer(other, exchange).publish(number, routing_key=f"key-{number}", declare=[exchange])
            Producer(other, exchange).publish("another", routing_key="another")
            wait_for(lambda: (message := queue.get()) and message.payload == number, "a reply")  # noqa: B023
            queue.delete()
            topics = cluster.call(topics_of(cluster.namesrv_address))
            before = before or topics
            assert topics == before


def test_a_message_that_is_too_large_is_not_sent(connection: Connection, name: str) -> None:
    with connection.SimpleQueue(name) as queue:
        with pytest.raises(OperationalError, match=r"limit of 4194304 .*max_message_bytes in broker_tr") as raised:
            queue.put("x" * 10_000_000)
        assert isinstance(raised.value.__cause__, IllegalMessageError)
        with pytest.raises(Empty):
            queue.get_nowait()


def test_without_a_nameserver_the_error_says_so() -> None:
    with (
        Connection("cometmq://127.0.0.1:1") as connection,
        pytest.raises(OperationalError, match=r"127\.0\.0\.1:1"),
    ):
        connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)


def test_without_a_broker_the_error_says_what_to_start() -> None:
    with SyncCluster() as cluster:
        cluster.call(cluster.cluster.stop_broker(0))
        with (
            Connection(f"cometmq://{cluster.namesrv_address}") as connection,
            pytest.raises(OperationalError, match=r"no broker is registered with the nameserver .*namesrvAddr"),
        ):
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)


def test_a_producer_waits_for_a_broker_that_restarts() -> None:
    with SyncCluster() as cluster, Connection(f"cometmq://{cluster.namesrv_address}") as connection:
        queue = connection.SimpleQueue("restarting")
        queue.put(0)
        channel = queue.producer.channel
        cluster.call(cluster.cluster.kill_broker(0))
        other = connection.clone()
        with pytest.raises(OperationalError, match="no broker answers"):
            other.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
        tries = []

        def failed(_error: BaseException, _interval: float) -> None:
            tries.append(1)
            if len(tries) == 3:
                cluster.call(cluster.cluster.start_broker(0))

        policy = {"max_retries": 100, "interval_start": 0.05, "interval_step": 0, "errback": failed}
        queue.producer.publish(1, retry=True, retry_policy=policy)
        assert len(tries) >= 3
        assert queue.producer.channel is not channel
        with pytest.raises(RecoverableConnectionError):
            channel.basic_get("restarting")
        again = connection.SimpleQueue("restarting")
        assert sorted(again.get(timeout=10).payload for _ in range(2)) == [0, 1]


def test_a_producer_tries_again_while_a_broker_is_stopping(cluster: SyncCluster, connect: Connect) -> None:
    queue = connect(send_timeout=0.2).SimpleQueue("stopping")
    queue.put(0)
    forbid(cluster, RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is shutting down"))
    with pytest.raises(OperationalError, match="the broker is shutting down"):
        queue.put(1)
    tries: list[BaseException] = []

    def failed(error: BaseException, _interval: float) -> None:
        tries.append(error)
        if len(tries) == 3:
            forbid(cluster, None)

    policy = {"max_retries": 100, "interval_start": 0, "interval_step": 0, "errback": failed}
    queue.producer.publish(2, retry=True, retry_policy=policy)
    assert len(tries) == 3
    again = connect().SimpleQueue("stopping")
    assert [again.get(timeout=10).payload for _ in range(2)] == [0, 2]


def test_a_send_waits_for_a_broker_that_is_stopping(
    cluster: SyncCluster, connection: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kombu repeats a publication, but waits only while it cannot connect."""
    failures: list[int] = []
    pauses = SimpleNamespace(after=lambda count: failures.append(count) or 0.01)  # type: ignore[func-returns-value]
    monkeypatch.setattr(attempts, "PAUSES", pauses)
    queue = connection.SimpleQueue(name)
    queue.put("before")
    forbid(cluster, RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is shutting down"))
    thread = threading.Thread(target=queue.put, args=("meanwhile",))
    thread.start()
    wait_for(lambda: failures, "a refusal")
    forbid(cluster, None)
    thread.join()
    assert [queue.get(timeout=10).payload for _ in range(2)] == ["before", "meanwhile"]


def forbid(cluster: SyncCluster, reason: RefusedError | None) -> None:
    """Let the broker refuse messages from now on, or accept them again."""
    cluster.run(lambda running: running.broker(0).turn.forbid(reason))


@pytest.mark.parametrize("is_delayed", [False, True])
def test_a_task_that_is_published_twice_is_stored_once(is_delayed: bool) -> None:
    with (
        SyncCluster(links=True) as cluster,
        Connection(f"cometmq://{cluster.namesrv_address}", transport_options={"send_timeout": 1}) as connection,
    ):
        queue = connection.SimpleQueue("twice")
        queue.put("first")
        eta = datetime.now(UTC) + timedelta(seconds=6 if is_delayed else -1)
        headers = {"id": "some-task", "task": "add", "retries": 0, "eta": eta.isoformat()}
        cluster.run(lambda running: running.link(0).drop(Direction.TO_CLIENT))
        with pytest.raises(RemotingTimeoutError):
            queue.put("task", headers=headers)
        cluster.run(lambda running: running.link(0).restore())
        queue.producer.publish("task", headers=headers, retry=True, retry_policy={"max_retries": 5})
        again = connection.SimpleQueue("twice")
        assert sorted(again.get(timeout=20).payload for _ in range(2)) == ["first", "task"]
        with pytest.raises(Empty):
            again.get(timeout=0.3)


def test_a_doubt_does_not_outlive_the_attempts_to_send(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        SyncCluster(links=True) as cluster,
        Connection(f"cometmq://{cluster.namesrv_address}", transport_options={"send_timeout": 1}) as connection,
    ):
        queue = connection.SimpleQueue("daily")
        queue.put("first")
        headers = {"id": "report", "task": "report", "retries": 0, "eta": None}
        cluster.run(lambda running: running.link(0).drop(Direction.TO_CLIENT))
        with pytest.raises(RemotingTimeoutError):
            queue.put("today", headers=headers)
        cluster.run(lambda running: running.link(0).restore())
        for body in ("first", "today"):
            message = queue.get(timeout=20)
            assert message.payload == body
            message.ack()
        monkeypatch.setattr(session, "DOUBT_S", 0.0)
        queue.put("today", headers=headers)  # the same task, on the next day
        assert queue.get(timeout=20).payload == "today"


def test_a_task_that_is_published_again_on_a_new_connection_is_stored_once() -> None:
    with (
        SyncCluster(links=True) as cluster,
        Connection(f"cometmq://{cluster.namesrv_address}", transport_options={"send_timeout": 1}) as connection,
    ):
        queue = connection.SimpleQueue("again")
        queue.put("first")
        session = connection.transport.session
        cluster.run(lambda running: running.link(0).cut_after(1, Direction.TO_CLIENT))

        def failed(_error: BaseException, _interval: float) -> None:
            cluster.run(lambda running: running.link(0).restore())

        policy = {"max_retries": 5, "errback": failed}
        headers = {"id": "some-task", "task": "add", "retries": 0, "eta": None}
        queue.producer.publish("task", headers=headers, retry=True, retry_policy=policy)
        assert connection.transport.session is not session
        again = connection.SimpleQueue("again")
        assert sorted(again.get(timeout=20).payload for _ in range(2)) == ["first", "task"]
        with pytest.raises(Empty):
            again.get(timeout=0.3)


def test_a_message_whose_rejection_fails_comes_again(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reject(_message: Any) -> None:
        raise RemotingConnectError("broker", "the broker is away")

    with connect(visibility_timeout=1).SimpleQueue(name) as queue:
        queue.put("m")
        message = queue.get(timeout=10)
        monkeypatch.setattr(queue.channel._receivers[False]._consumer, "reject", reject)
        message.reject()
        assert queue.get(timeout=10).payload == "m"


def test_messages_that_wait_are_given_back_together(
    connection: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []
    ended: list[int] = []
    with connection.channel() as channel:
        consumer = Consumer(channel, [Queue(name, routing_key=name)], callbacks=[Received()])
        consumer.consume()
        for number in range(5):
            Producer(channel).publish(number, routing_key=name)
        wait_for(lambda: len(connection.transport.mailbox._items) == 5, "the messages")
        member = channel._receivers[False]
        give_back = member.give_back

        async def counted(message: Any) -> None:
            begun.append(message)
            await give_back(message)
            ended.append(len(begun))

        monkeypatch.setattr(member, "give_back", counted)
        consumer.cancel()
    assert ended == [5] * 5
