"""A log handler of the application that raises, as one that sends records by a client may, stops no other client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.helpers.waiting import until

from cometmq.client import ConsumeFromWhere, LitePullConfig, LitePullConsumer, Message, PushConfig, PushConsumer
from cometmq.client.sync import SyncLitePullConsumer, SyncProducer
from cometmq.testing import Cluster, SyncCluster

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


class Raising(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.records += 1
        raise ConnectionError("the log server is away")


@contextmanager
def raising(logger: logging.Logger) -> Iterator[Raising]:
    handler, level = Raising(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def test_synchronous_clients_go_on(capfd: pytest.CaptureFixture[str]) -> None:
    with SyncCluster() as cluster, SyncProducer("p", cluster.namesrv_address) as producer:
        cluster.create_topic("orders", queues=1)
        producer.send(Message("orders", b"1"))
        config = LitePullConfig(consume_from_where=FIRST)
        with raising(logging.getLogger("asyncio")), raising(logging.getLogger("cometmq.client")):
            consumer = SyncLitePullConsumer("g", cluster.namesrv_address, config=config)
            consumer.subscribe("orders")
            consumer.start()
            while "the log server is away" not in capfd.readouterr().err:
                consumer.poll(0.01)
        assert producer.send(Message("orders", b"2")).queue_offset == 1
        consumer.close()


@pytest.mark.parametrize("kind", ["lite pull", "push"])
async def test_a_queue_whose_reader_failed_is_read_again_after_a_rebalance(cluster: Cluster, kind: str) -> None:
    await cluster.create_topic("orders", queues=1)
    await cluster.send(Message("orders", b"1"))
    instance = cluster.client_instance()
    consumer: LitePullConsumer | PushConsumer
    if kind == "lite pull":
        consumer = LitePullConsumer("g", config=LitePullConfig(consume_from_where=FIRST), instance=instance)
    else:
        consumer = PushConsumer("g", config=PushConfig(consume_from_where=FIRST), instance=instance)
    await consumer.subscribe("orders")
    with raising(logging.getLogger("cometmq.client.consumer.pulling")) as handler:
        await consumer.start()
        await until(lambda: handler.records > 0)
    await asyncio.sleep(0)
    consumer.members_changed()
    async with asyncio.timeout(20):
        assert (await anext(aiter(consumer))).body == b"1"
    await consumer.close()
