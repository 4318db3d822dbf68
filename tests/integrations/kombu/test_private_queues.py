"""Queues that exist only as long as a process, together with others."""

from __future__ import annotations

from kombu import Connection, Consumer, Exchange, Producer, Queue
from tests.helpers.waiting import wait_for
from tests.integrations.kombu.conftest import Connect
from tests.integrations.kombu.test_channel import Received, drain, nothing_comes


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
        channel._put_arrived(name, None, None)
        connection.transport.mailbox.put((channel, (name, {"properties": {}}, None)))
        Producer(other).publish("m", routing_key=f"{name}-2")
        drain(connection, received, 1)
