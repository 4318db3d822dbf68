"""A backup of a broker of one system under load, restored, is opened by a broker of the other one."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from tests.interop.clients import PATIENCE_S, Client, Series, queue_positions
from tests.interop.store.test_store_swap import LOAD_TOPIC, SMALL_FILES, TOPICS, check, send
from tests.interop.systems import BOTH, Deployment, System

from cometmq.backup.create import Options, create_backup
from cometmq.backup.directory import DirectoryBackup
from cometmq.backup.verify import restore_backup, verify_backup

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("first", BOTH, ids=lambda system: f"of-{system.value}")
def test_a_restored_backup_is_opened_by_the_other_system(
    deploy: Callable[..., Deployment], java: Client, first: System
) -> None:
    second = System.COMETMQ if first is System.APACHE else System.APACHE
    deployment = deploy(first, namesrv=System.APACHE, **SMALL_FILES)
    for topic in (*TOPICS, LOAD_TOPIC):
        java.create_topic(deployment.address, deployment.broker.address, topic)
    sent = send(java, deployment, 0)
    store = deployment.broker.directory / "store"
    backup = deployment.broker.directory / "backup"
    sending = java.start_producing(deployment.address, Series(LOAD_TOPIC, 20_000, body="load", keys="load{i}"))
    sending.wait_until(lambda: len(sending.named("sent")) >= 300, PATIENCE_S, "the producer is busy")
    before = [event["msgId"] for event in sending.named("sent")]
    create_backup(Options(store, DirectoryBackup(backup)))
    deployment.broker.kill()
    sending.wait_until(lambda: bool(sending.named("error")), PATIENCE_S, "the producer gives up")
    shutil.rmtree(store)
    restore_backup(DirectoryBackup(backup), store)
    deployment.start_again(second)
    stored = java.read_topic(deployment.address, LOAD_TOPIC, len(before))
    assert set(before) <= {message["msgId"] for message in stored}
    assert all(offsets == list(range(len(offsets))) for offsets in queue_positions(stored).values())
    check(java, deployment, sent + send(java, deployment, 1))
    verify_backup(DirectoryBackup(backup))
