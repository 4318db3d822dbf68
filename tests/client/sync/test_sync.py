from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.helpers.waiting import wait_for
from tests.interop.systems import Deployment

from cometmq.client import (
    Admin,
    ConsumeFromWhere,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
    TransactionProducer,
    sync,
)
from cometmq.client.errors import ClientStateError, ForkedError, RouteNotFoundError
from cometmq.client.sync import (
    SyncAdmin,
    SyncLitePullConsumer,
    SyncProducer,
    SyncPullConsumer,
    SyncPushConsumer,
)

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
CALLED_BY_OTHER_PARTS = {
    "send_then",
    "consume_directly",
    "running_info",
    "members_changed",
    "positions",
    "reset_offsets",
    "give_back",
}


def test_everything_works_without_await(server: Deployment, group: str) -> None:
    topic = f"Sync{os.getpid()}"
    with SyncAdmin(server.address) as admin, SyncProducer("p", server.address) as producer:
        admin.create_topic(topic, queues=2)
        sent = [producer.send(Message(topic, b"1")), *producer.send_batch([Message(topic, b"2"), Message(topic, b"3")])]
        sent += producer.send_many([Message(topic, b"4")])
        with ThreadPoolExecutor(4) as threads:
            sent += threads.map(lambda number: producer.send(Message(topic, b"%d" % number)), range(5, 21))
        assert len({result.msg_id for result in sent}) == 20
        with SyncPullConsumer(group, server.address) as puller:
            queues = puller.queues(topic)
            # Apache shows messages a moment after storing them.
            wait_for(lambda: sum(puller.max_offset(queue) for queue in queues) == 20, "20 messages are shown")
            found = [message for queue in queues for message in puller.pull(queue, 0).messages]
            puller.commit(queues[0], 1)
            assert puller.committed(queues[0]) == 1
            assert puller.min_offset(queues[0]) == puller.offset_at_time(queues[0], 0) == 0
        assert sorted(int(message.body) for message in found) == list(range(1, 21))
        config = LitePullConfig(consume_from_where=FIRST)
        with SyncLitePullConsumer(f"{group}-lite", server.address, config=config) as lite:
            lite.subscribe(topic)
            polled: list[MessageExt] = []
            while len(polled) < 20:
                polled += lite.poll(60)
            assert len(lite.assignment) == 2
        everything = threading.Event()
        seen: list[bytes] = []

        def listener(messages: Sequence[MessageExt]) -> None:
            seen.extend(message.body for message in messages)
            if len(seen) == 20:
                everything.set()

        push = SyncPushConsumer(f"{group}-push", listener, server.address, config=PushConfig(consume_from_where=FIRST))
        push.subscribe(topic)
        with push:
            assert everything.wait(60)
        assert admin.consume_progress(f"{group}-push", topic).lag == 0
        assert admin.run(lambda asynchronous: asynchronous.queues(topic)) == admin.queues(topic)
        with pytest.raises(RouteNotFoundError):
            admin.topic_route("NoSuchTopic")


@pytest.mark.parametrize("kind", [Admin, LitePullConsumer, Producer, PullConsumer, PushConsumer, TransactionProducer])
def test_every_class_has_a_face_with_the_same_methods(kind: type) -> None:
    face = getattr(sync, f"Sync{kind.__name__}")
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and name not in CALLED_BY_OTHER_PARTS:
            assert hasattr(face, name), name
            asked, offered = (list(inspect.signature(each).parameters) for each in (method, getattr(face, name)))
            assert offered == asked or "args" in offered, name


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_producer_used_after_a_fork_says_what_to_do(server: Deployment) -> None:
    with SyncProducer("p", server.address) as producer:
        producer.send(Message("AfterFork", b"x"))
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            said = "no error"
            try:
                producer.send(Message("AfterFork", b"y"))
            except ForkedError as error:
                said = str(error)
            except BaseException as error:
                said = repr(error)
            os.write(write, said.encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        with os.fdopen(read) as pipe:
            assert "create a new client after the fork" in pipe.read()
        producer.send(Message("AfterFork", b"z"))


def test_an_async_listener_cannot_wait_for_a_synchronous_client(server: Deployment, group: str) -> None:
    topic = f"SyncInAsync{os.getpid()}"
    caught: list[BaseException] = []
    done = threading.Event()
    with SyncProducer("p", server.address) as producer, SyncAdmin(server.address) as admin:
        admin.create_topic(topic)
        producer.send(Message(topic, b"x"))

        async def listener(messages: Sequence[MessageExt]) -> None:
            try:
                producer.send(Message(topic, b"y"))
            except ClientStateError as error:
                caught.append(error)
            done.set()

        consumer = SyncPushConsumer(group, listener, server.address, config=PushConfig(consume_from_where=FIRST))
        consumer.subscribe(topic)
        with consumer:
            assert done.wait(60)
    assert "wait for itself" in str(caught[0])
