"""Programs with synchronous clients end, however and whenever their clients are closed."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator

import pytest
from tests.helpers import forks

from cometmq.client import Message
from cometmq.testing import SyncCluster

PROLOGUE = """
import atexit, logging, os, sys, threading, time
from cometmq.client import ConsumeFromWhere, Message, MessageModel, PushConfig, LitePullConfig
from cometmq.client.errors import ForkedError
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
namesrv, group, *rest = sys.argv[1:]
clients = []

def begin(kind):
    from cometmq.client import sync
    if kind == "producer":
        client = sync.SyncProducer(group, namesrv)
        client.start()
        client.send(Message("exits", b"x"))
    elif kind == "transactions":
        from cometmq.client import TransactionState
        done = lambda *_: TransactionState.COMMIT
        client = sync.SyncTransactionProducer(group, done, done, namesrv)
        client.start()
        client.send_in_transaction(Message("exits", b"x"))
    elif kind == "lite":
        client = sync.SyncLitePullConsumer(group, namesrv, config=LitePullConfig(consume_from_where=FIRST))
        client.start()
        client.subscribe("exits")
        client.poll()
    elif kind == "pull":
        client = sync.SyncPullConsumer(group, namesrv)
        client.start()
        client.pull(client.queues("exits")[0], 0)
    elif kind == "admin":
        client = sync.SyncAdmin(namesrv)
        client.__enter__()
        client.close = client.__exit__
        client.topics()
    else:
        options = dict(orderly=kind == "orderly", consume_from_where=FIRST, handover_wait_s=0.5)
        if kind == "broadcast":
            options["message_model"] = MessageModel.BROADCASTING
            options["offset_store_dir"] = __import__("pathlib").Path(rest[0])
        begun = threading.Event()
        client = sync.SyncPushConsumer(group, lambda _: begun.set(), namesrv, config=PushConfig(**options))
        client.subscribe("exits")
        client.start()
        assert begun.wait(20)
    clients.append(client)
    return client
"""
KINDS = ["producer", "transactions", "push", "orderly", "broadcast", "lite", "pull", "admin"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SyncCluster]:
    with SyncCluster() as cluster:
        cluster.create_topic("exits", queues=1)
        for _ in range(5):
            cluster.send(Message("exits", b"x"))
        yield cluster


def ends(cluster: SyncCluster, group: str, code: str, *more: str, timeout_s: float = 30.0) -> str:
    """Return the output of a program, which must end by itself."""
    program = PROLOGUE + textwrap.dedent(code)
    command = [sys.executable, "-X", "dev", "-W", "ignore", "-c", program, cluster.namesrv_address, group, *more]
    ran = forks.run(command, timeout_s=timeout_s)  # cometmq.client.sync is not imported there
    said = ran.stderr.decode()
    assert ran.returncode == 0, said
    assert "Fatal Python error" not in said, said
    assert "Traceback" not in said, said
    return ran.stdout.decode()


@pytest.mark.parametrize("kind", KINDS)
def test_an_exit_handler_registered_before_the_first_client_closes_it(
    cluster: SyncCluster, kind: str, tmp_path: object
) -> None:
    code = f"""
    def close():
        for client in clients:
            client.close()
            client.close()
        print("closed")
    atexit.register(close)
    begin({kind!r})
    """
    assert ends(cluster, f"before-{kind}", code, str(tmp_path)) == "closed\n"
    assert not cluster.call(_members(cluster, f"before-{kind}"))


async def _members(cluster: SyncCluster, group: str) -> bool:
    return cluster.cluster.broker(0).clients.consumers.get(group) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_that_closes_nothing_ends(cluster: SyncCluster, kind: str, tmp_path: object) -> None:
    assert ends(cluster, f"without-{kind}", f"begin({kind!r}); print('end')", str(tmp_path)) == "end\n"


def test_exit_handlers_send_make_new_clients_and_close_them(cluster: SyncCluster) -> None:
    code = """
    def last():
        print(clients[0].send(Message("exits", b"x")).status.value)
        print(len(clients[0].send_many([Message("exits", b"x")] * 3)))
        begin("producer").close()
        clients[0].close()
        print("closed")
    atexit.register(last)
    begin("producer")
    """
    assert ends(cluster, "last", code) == "SEND_OK\n3\nclosed\n"


def test_the_first_client_may_be_made_by_an_exit_handler(cluster: SyncCluster) -> None:
    code = """
    @atexit.register
    def last():
        begin("producer").close()
        print("closed")
    import cometmq.client.sync
    """
    assert ends(cluster, "first-and-last", code) == "closed\n"


@pytest.mark.parametrize("kind", KINDS)
def test_clients_are_closed_twice_and_by_other_threads(cluster: SyncCluster, kind: str, tmp_path: object) -> None:
    code = f"""
    client = begin({kind!r})
    threads = [threading.Thread(target=client.close) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    print("closed")
    """
    assert ends(cluster, f"twice-{kind}", code, str(tmp_path)) == "closed\n"


@pytest.mark.parametrize("orderly", [False, True])
def test_a_listener_closes_its_own_consumer(cluster: SyncCluster, orderly: bool) -> None:
    code = f"""
    from cometmq.client.sync import SyncPushConsumer
    closed = threading.Event()
    def listener(messages):
        consumer.close()
        closed.set()
    config = PushConfig(orderly={orderly}, consume_from_where=FIRST, handover_wait_s=0.2)
    consumer = SyncPushConsumer(group, listener, namesrv, config=config)
    consumer.subscribe("exits")
    consumer.start()
    assert closed.wait(20)
    print("closed")
    """
    assert ends(cluster, f"from-listener-{orderly}", code) == "closed\n"


@pytest.mark.parametrize("orderly", [False, True])
def test_an_async_listener_closes_its_own_consumer(cluster: SyncCluster, orderly: bool) -> None:
    code = f"""
    import asyncio
    from cometmq.client import PushConsumer
    async def main():
        closed = asyncio.Event()
        async def listener(messages):
            await consumer.close()
            closed.set()
        config = PushConfig(orderly={orderly}, consume_from_where=FIRST, handover_wait_s=0.2)
        consumer = PushConsumer(group, listener, namesrv, config=config)
        await consumer.subscribe("exits")
        await consumer.start()
        await asyncio.wait_for(closed.wait(), 20)
    asyncio.run(main())
    print("closed")
    """
    assert ends(cluster, f"from-async-{orderly}", code) == "closed\n"


@pytest.mark.parametrize("orderly", [False, True])
def test_a_program_ends_although_more_messages_than_it_consumes_wait(cluster: SyncCluster, orderly: bool) -> None:
    code = f"""
    from cometmq.client.sync import SyncPushConsumer, SyncProducer
    with SyncProducer("p", namesrv) as producer:
        producer.send_batch([Message("exits", b"x")] * 2000)
    begun = threading.Event()
    def listener(messages):
        begun.set()
        time.sleep(0.05)
    config = PushConfig(orderly={orderly}, consume_from_where=FIRST, consume_concurrency=1)
    consumer = SyncPushConsumer(group, listener, namesrv, config=config)
    consumer.subscribe("exits")
    consumer.start()
    assert begun.wait(20)
    print("end")
    """
    assert ends(cluster, f"backlog-{orderly}", code, timeout_s=20) == "end\n"


@pytest.mark.parametrize("kind", KINDS)
def test_a_forked_child_is_refused_and_ends(cluster: SyncCluster, kind: str, tmp_path: object) -> None:
    code = f"""
    def close():
        for client in clients:
            try:
                client.close()
            except ForkedError:
                print("of the parent")
        sys.stdout.flush()
    atexit.register(close)
    begin({kind!r})
    child = os.fork()
    if child == 0:
        try:
            clients[0].close()
        except ForkedError:
            print("refused")
        clients.clear()
        begin("producer").close()
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    print("parent")
    """
    said = ends(cluster, f"fork-{kind}", code, str(tmp_path))
    assert said == "refused\nparent\n"
