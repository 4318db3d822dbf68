"""Apache's broker opens a store of a failover set, with markers of epochs, whose log was cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.interop.clients import Client
from tests.interop.store.stored import contents
from tests.interop.store.test_store_swap import LOAD_TOPIC, SMALL_FILES, TOPICS, check, send
from tests.interop.systems import Deployment, System

from cometmq.broker.failover.epochs import EpochLog
from cometmq.store.config import StoreConfig
from cometmq.store.cut import cut_log
from cometmq.store.message_store import MessageStore

pytestmark = pytest.mark.interop


def config_of(deployment: Deployment) -> StoreConfig:
    """The configuration of the stopped broker's store."""
    return StoreConfig(store_path_root_dir=str(Path(deployment.broker.directory) / "store"))


def begin_epoch(deployment: Deployment, epoch: int) -> int:
    """Append a marker, as a new master does, and return the log offset after it."""

    async def begin() -> int:
        store = MessageStore.open(config_of(deployment))
        end = await EpochLog(store).begin(epoch)
        await store.close()
        return end

    return asyncio.run(begin())


def epochs(deployment: Deployment) -> list[int]:
    """The epochs in the stopped broker's log."""
    store = MessageStore.open(config_of(deployment))
    found = [epoch for epoch, _ in EpochLog(store).history().epochs]
    store.close_now()
    return found


def test_apache_goes_on_with_a_cut_store_that_has_epochs(deploy: Callable[..., Deployment], java: Client) -> None:
    deployment = deploy(System.COMETMQ, namesrv=System.APACHE, **SMALL_FILES)
    for topic in (*TOPICS, LOAD_TOPIC):
        java.create_topic(deployment.address, deployment.broker.address, topic)
    sent = send(java, deployment, 0)
    deployment.broker.stop()
    begin_epoch(deployment, 1)
    deployment.start_again(System.COMETMQ)
    sent += send(java, deployment, 1)
    truth = contents(java, deployment.address, TOPICS)
    deployment.broker.stop()
    offset = begin_epoch(deployment, 2)
    deployment.start_again(System.COMETMQ)
    send(java, deployment, 2)
    deployment.broker.stop()
    copy = cut_log(config_of(deployment), offset, 3)
    assert copy is not None

    deployment.start_again(System.APACHE)
    assert contents(java, deployment.address, TOPICS) == truth
    check(java, deployment, sent)
    sent += send(java, deployment, 3)
    check(java, deployment, sent)
    deployment.broker.stop()
    assert epochs(deployment) == [1, 2]
    assert begin_epoch(deployment, 5) > offset
    deployment.start_again(System.COMETMQ)
    check(java, deployment, sent)
    deployment.broker.stop()
    assert epochs(deployment) == [1, 2, 5]
