"""Queues that exist only as long as a process, together with others."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from queue import Empty

import pytest
from celery import Celery
from celery.events import EventDispatcher
from kombu import Connection, Consumer, Exchange, Producer, Queue
from tests.helpers.waiting import wait_for
from tests.integrations.kombu.conftest import Connect
from tests.integrations.kombu.test_channel import Received, drain, nothing_comes

from cometmq.client import PoppedMessage, RemotingConnectError
from cometmq.integrations.kombu import readers
from cometmq.integrations.kombu.mailbox import Mailbox
from cometmq.integrations.kombu.receiver import Receiver
from cometmq.testing import SyncCluster


def test_an_acknowledged_broadcast_lets_the_next_task_come(connection: Connection, name: str) -> None:
    received = Received(ack=False)
    exchange = Exchange(f"{name}-all", "fanout")
    queues = [Queue(name, routing_key=name), Queue(f"{name}-own", exchange, auto_delete=True)]
    with connection.channel() as channel, Consumer(channel, queues, callbacks=[received], prefetch_count=1):
        producer = Producer(channel)
        producer.publish("broadcast", exchange=exchange, declare=[exchange])
        drain(connection, received, 1)
        producer.publish("first", routing_key=name)  # asked for before the broadcast came
        drain(connection, received, 2)
        producer.publish("second", routing_key=name)
        received.messages[1].ack()
        nothing_comes(connection)
        received.messages[0].ack()
        drain(connection, received, 3)
        assert received.bodies == ["broadcast", "first", "second"]


def test_a_message_that_a_cancelled_consumer_did_not_get_waits_for_the_next(connection: Connection, name: str) -> None:
    received = Received()
    queue = Queue(name, exclusive=True)
    with connection.channel() as channel:
        bound = queue(channel)
        bound.declare()
        consumer = Consumer(channel, [bound], callbacks=[received])
        consumer.consume()
        Producer(channel).publish("m", routing_key=name)
        wait_for(lambda: connection.transport.mailbox._items, "the message")
        consumer.cancel()
        nothing_comes(connection)
        with Consumer(channel, [bound], callbacks=[received]):
            drain(connection, received, 1)
        assert received.bodies == ["m"]


def test_a_requeued_message_is_the_next(connection: Connection, name: str) -> None:
    with connection.channel() as channel:
        queue = Queue(name, exclusive=True)(channel)
        queue.declare()
        for body in "ab":
            Producer(channel).publish(body, routing_key=name)
        wait_for(lambda: (found := queue.get()) and (found.requeue() or True), "the first message")
        nothing_comes(connection)
        assert [queue.get().payload for _ in range(2)] == ["a", "b"]


def test_what_arrives_while_a_channel_closes_disturbs_no_other(connect: Connect, name: str) -> None:
    connection = connect()
    received = Received()
    with (
        connection.channel() as other,
        Consumer(other, [Queue(f"{name}-2", routing_key=f"{name}-2")], callbacks=[received]),
    ):
        channel = connection.channel()
        channel.close()
        channel._put_arrived((name, None, None))
        connection.transport.mailbox.put((channel, (name, {"properties": {}}, None)))
        Producer(other).publish("m", routing_key=f"{name}-2")
        drain(connection, received, 1)


def test_what_arrives_while_a_channel_closes_comes_again(
    connection: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = Received(ack=False)
    channel = connection.channel()
    Consumer(channel, [Queue(name, routing_key=name)], callbacks=[received]).consume()
    Producer(channel).publish("m", routing_key=name)
    drain(connection, received, 1)
    member, (held,) = channel._receivers[False], channel._held.values()
    close = member.close

    async def late(messages: Callable[[], list[PoppedMessage]]) -> None:
        channel._popped(member, [held[1]])
        await close(messages)

    monkeypatch.setattr(member, "close", late)
    channel.close()
    assert connection.transport.mailbox.take() is None


def test_what_another_thread_acknowledges_while_a_channel_closes_does_not_come_again(
    connection: Connection, connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = Received(ack=False)
    channel = connection.channel()
    Consumer(channel, [Queue(name, routing_key=name)], callbacks=[received]).consume()
    Producer(channel).publish("m", routing_key=name)
    drain(connection, received, 1)
    held_by: Callable[[Receiver], list[PoppedMessage]] = channel._all_of

    def late(member: Receiver) -> list[PoppedMessage]:
        received.messages[0].ack()
        return held_by(member)

    monkeypatch.setattr(channel, "_all_of", late)
    channel.close()
    with connect().SimpleQueue(name) as queue, pytest.raises(Empty):
        queue.get(timeout=1.5)  # a closed consumer's messages come again within a second


def test_bindings_of_a_queue_that_is_read_begin_and_end_at_once(connection: Connection, name: str) -> None:
    received = Received()
    exchange = Exchange(f"{name}-exchange", "direct")
    with connection.channel() as channel:
        queue = Queue(name, exclusive=True)(channel)
        queue.declare()
        exchange(channel).declare()
        producer = Producer(channel, exchange)
        with Consumer(channel, [queue], callbacks=[received]):
            queue.bind_to(exchange, routing_key="a")
            producer.publish("bound", routing_key="a")
            drain(connection, received, 1)
            queue.unbind_from(exchange, routing_key="a")
            producer.publish("unbound", routing_key="a")
            Producer(channel).publish("by name", routing_key=name)
            drain(connection, received, 2)
            nothing_comes(connection)
    assert received.bodies == ["bound", "by name"]


@pytest.mark.parametrize("is_same_channel", [True, False])
def test_the_end_of_a_consumer_leaves_the_queue_to_the_other(
    connection: Connection, name: str, is_same_channel: bool
) -> None:
    received, others = Received(), Received()
    queue = Queue(name, routing_key=name)
    with connection.channel() as channel, connection.channel() as other:
        Consumer(channel, [queue], callbacks=[received]).consume()
        with Consumer(channel if is_same_channel else other, [queue], callbacks=[others]):
            pass
        Producer(channel).publish("m", routing_key=name)
        drain(connection, received, 1)
    assert others.messages == []


def test_messages_older_than_a_queue_are_not_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_LOOK_S", 0.05)
    exchange, received = Exchange("all", "fanout"), Received()
    with SyncCluster(2) as cluster:
        url = f"cometmq://{cluster.namesrv_address}"
        with Connection(url, transport_options={"send_timeout": 5}) as first, first.channel() as channel:
            producer = Producer(channel, exchange)
            for number in range(8):
                producer.publish(f"old {number}", declare=[exchange])
        cluster.call(cluster.cluster.kill_broker(1))
        with Connection(url) as second, second.channel() as channel:
            queue = Queue("own", exchange, exclusive=True)
            with Consumer(channel, [queue], callbacks=[received]):
                cluster.call(cluster.cluster.start_broker(1))
                session = second.transport.session
                (source,) = (
                    one for one in session.inner.private["own"].sources.values() if one.topic == "all|exchange"
                )

                def finds_both() -> bool:
                    session.run(session.inner.instance.routes.refresh(source.topic))
                    return len(source.offsets) == 2

                wait_for(finds_both, "the queue of the second broker")
                nothing_comes(second, 0.5)


def test_a_queue_that_another_process_deleted_is_made_again() -> None:
    with SyncCluster(broker_keys={"autoCreateTopicEnable": "false"}) as cluster:
        url = f"cometmq://{cluster.namesrv_address}"
        with (
            Connection(url) as first,
            first.clone() as same,
            Connection(url, transport_options={"wait_time": 2}) as second,
        ):
            same.connect()
            producer = Producer(first.channel())
            producer.publish("old", routing_key="deleted", declare=[Queue("deleted")])
            with second.channel() as channel:
                Queue("deleted")(channel).delete()
            producer.publish("new", routing_key="deleted")
            with second.SimpleQueue("deleted") as again:
                assert again.get(timeout=10).payload == "new"


def test_a_binding_that_no_nameserver_took_is_written_later(connect: Connect, name: str) -> None:
    exchange = Exchange(f"{name}.exchange", "direct")
    connection = connect()
    with connection.channel() as channel, connect().channel() as sending:
        bindings = connection.transport.session.inner.bindings
        addresses, bindings._instance.routes.namesrv = bindings._instance.routes.namesrv, ("127.0.0.1:1",)
        with pytest.raises(RemotingConnectError):
            connection.transport.session.run(bindings.add(f"{name}%2Eexchange|exchange", name, "key"))
        bindings._instance.routes.namesrv = addresses
        queue = Queue(name, exchange, routing_key="key")(channel)
        queue.declare()
        exchange(sending).declare()
        Producer(sending, exchange).publish("m", routing_key="key")
        assert queue.get(no_ack=True).payload == "m"


def test_no_more_is_read_than_a_busy_consumer_can_take(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "MOST_WAITING", 40)
    connection, sending, received = connect(), connect(), Received()
    exchange = Exchange(name, "fanout")
    most = 40 + readers._BATCH - 1
    with (
        connection.channel() as reading,
        sending.channel() as other,
        Consumer(reading, [Queue(name, exchange, exclusive=True)], callbacks=[received]),
    ):
        for number in range(2 * most):
            Producer(other, exchange).publish(number)
        mailbox = connection.transport.mailbox
        wait_for(lambda: len(mailbox._items) >= 40, "the messages for which there is room")
        for count in range(1, 2 * most + 1):
            drain(connection, received, count)
            assert len(mailbox._items) <= most
    assert received.bodies == list(range(2 * most))


@pytest.mark.parametrize("end", [Consumer.cancel, lambda consumer: consumer.channel.close()])
def test_the_end_of_one_consumer_leaves_a_private_queue_to_the_other(
    connection: Connection, connect: Connect, name: str, end: Callable[[Consumer], object]
) -> None:
    """Threads of one process that have the same number one after the other share a queue of Celery's results."""
    received, others = Received(), Received()
    queue = Queue(name, exclusive=True, no_ack=True)
    other = connection.clone()
    with other, connection.channel() as channel:
        Consumer(channel, [queue], callbacks=[received]).consume()
        late = Consumer(other.channel(), [queue], callbacks=[others])
        late.consume()
        Producer(channel).publish("of both", routing_key=name)
        wait_for(lambda: other.transport.mailbox._items, "the message")
        end(late)
        Producer(channel).publish("of the first", routing_key=name)
        drain(connection, received, 2)
    assert received.bodies == ["of both", "of the first"]
    assert others.bodies == []


def test_a_consumer_gets_what_an_earlier_one_has_not_taken(connection: Connection, name: str) -> None:
    received = Received()
    queue = Queue(name, exclusive=True, no_ack=True)
    with connection.clone() as other, connection.channel() as channel:
        Consumer(other.channel(), [queue], callbacks=[Received()]).consume()
        Producer(channel).publish("m", routing_key=name)
        wait_for(lambda: other.transport.mailbox._items, "the message")
        Consumer(channel, [queue], callbacks=[received]).consume()
        drain(connection, received, 1)
        nothing_comes(other)
    assert received.bodies == ["m"]


def test_a_collected_consumer_takes_no_message(connection: Connection, name: str) -> None:
    received = Received()
    queue = Queue(name, exclusive=True, no_ack=True)

    def consume_once() -> weakref.ref[Mailbox]:
        gone = connection.clone()
        Consumer(gone.channel(), [queue], callbacks=[Received()]).consume()
        Producer(channel).publish("a", routing_key=name)
        wait_for(lambda: gone.transport.mailbox._items, "the message")
        return weakref.ref(gone.transport.mailbox)

    with connection.channel() as channel:
        mailbox = consume_once()
        with pytest.warns(ResourceWarning, match="was not closed"):
            gc.collect()
        assert mailbox() is None
        Producer(channel).publish("b", routing_key=name)
        with Consumer(channel, [queue], callbacks=[received]):
            drain(connection, received, 2)
    assert received.bodies == ["a", "b"]


def test_an_event_is_not_repeated_while_its_broker_is_away_and_is_sent_later(name: str) -> None:
    exchange = Exchange(name, type="topic")
    reader = Queue(f"{name}-reader", exchange, routing_key="#", exclusive=True, auto_delete=True)
    app = Celery(set_as_current=False)
    with (
        SyncCluster() as cluster,
        Connection(f"cometmq://{cluster.namesrv_address}", transport_options={"send_timeout": 1}) as connection,
        connection.channel() as channel,
    ):
        bound = reader(channel)
        bound.declare()
        events = EventDispatcher(connection, hostname="w@test", enabled=False, app=app)
        events.exchange = exchange
        events.enable()
        cluster.call(cluster.cluster.kill_broker(0))
        events.send("worker-heartbeat", retry=True)  # as a worker does, in the thread that does everything else
        cluster.call(cluster.cluster.start_broker(0))
        got: list[str] = []

        def arrives() -> bool:
            events.flush()
            message = bound.get(no_ack=True)
            got.extend([message.payload["type"]] if message is not None else [])
            return bool(got)

        wait_for(arrives, "the event")
        assert got == ["worker-heartbeat"]
