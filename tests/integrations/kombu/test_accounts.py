"""Accounts: what is allowed works, and an error names what is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kombu import Connection
from kombu.exceptions import OperationalError

import cometmq.integrations.kombu  # noqa: F401
from cometmq.client import AccessDeniedError
from cometmq.client.sync import SyncAdmin
from cometmq.testing import SyncCluster

SENDER = {
    "accessKey": "sender-account",
    "secretKey": "secret-of-sender",
    "admin": False,
    "defaultTopicPerm": "DENY",
    "defaultGroupPerm": "DENY",
    "topicPerms": ["orders=PUB"],
}

WORKER = {
    "accessKey": "worker-account",
    "secretKey": "secret-of-worker",
    "admin": False,
    "defaultTopicPerm": "DENY",
    "defaultGroupPerm": "DENY",
    "topicPerms": ["orders=SUB", "closed=PUB", "|replies=PUB|SUB"],
    "groupPerms": ["celery=SUB"],
}
READER = {
    "accessKey": "reader-account",
    "secretKey": "secret-of-reader",
    "admin": False,
    "defaultTopicPerm": "DENY",
    "defaultGroupPerm": "DENY",
    "topicPerms": ["|replies=SUB"],
    "groupPerms": ["celery=SUB"],
}


@pytest.fixture(scope="module")
def secured() -> Iterator[SyncCluster]:
    with SyncCluster(accounts=[SENDER, WORKER, READER], tls=True) as cluster:
        with SyncAdmin(cluster.namesrv_address, security=cluster.cluster.security) as admin:
            admin.create_topic("orders", queues=10, message_type="PRIORITY")
            admin.create_topic("closed", queues=10, message_type="PRIORITY")
            admin.create_topic("|replies", queues=1)
        yield cluster


@contextmanager
def denied(reason: str) -> Iterator[pytest.ExceptionInfo[OperationalError]]:
    """Expect an error that Celery's users know, whose cause says what is missing."""
    with pytest.raises(OperationalError, match=reason) as raised:
        yield raised
    assert isinstance(raised.value.__cause__, AccessDeniedError)


def connection(cluster: SyncCluster, user: str, password: str) -> Connection:
    tls = cluster.cluster.security.tls
    assert tls is not None
    options = {"ca_certs": tls.trust_cert_path}
    return Connection(f"cometmq://{user}:{password}@{cluster.namesrv_address}", ssl=options)


def test_an_account_that_may_only_send(secured: SyncCluster) -> None:
    with connection(secured, "sender-account", "secret-of-sender") as sending, sending.channel() as channel:
        channel.basic_publish(channel.prepare_message("[]"), "", "orders")
        channel.exchange_declare("shop")
        channel.queue_bind("orders", "shop", "key")
        channel.basic_publish(channel.prepare_message("[]"), "shop", "key")
        with denied("topic:other"):
            channel.queue_declare("other")
        with denied("requesting messages of orders"):
            channel.basic_get("orders")
        with denied("requesting messages of orders"):
            channel.basic_consume("orders", False, print, "tag")
    credentials = secured.cluster.security.credentials
    assert credentials is not None
    with connection(secured, credentials.access_key, credentials.secret_key) as receiving:
        queue = receiving.SimpleQueue("orders")
        assert [queue.get(timeout=10).body for _ in range(2)] == [b"[]", b"[]"]


def test_a_right_on_the_first_of_several_queues_is_missing(secured: SyncCluster) -> None:
    """Kombu waits for the last of them only."""
    with connection(secured, "worker-account", "secret-of-worker") as working, working.channel() as channel:
        channel.basic_consume("closed", False, print, "1", nowait=True)
        with denied("requesting messages of closed"):
            channel.basic_consume("orders", False, print, "2", nowait=False)


def test_a_worker_sends_results_without_a_right_on_the_name_of_their_queue(secured: SyncCluster) -> None:
    with connection(secured, "reader-account", "secret-of-reader") as reading, reading.channel() as results:
        results.queue_declare("results-of-sender", exclusive=True)
        with connection(secured, "worker-account", "secret-of-worker") as working, working.channel() as channel:
            channel.basic_publish(channel.prepare_message("[3]"), "", "results-of-sender")
        found = results.basic_get("results-of-sender", no_ack=True)
        assert found is not None
        assert found.body == b"[3]"


def test_a_wrong_password_is_not_shown(secured: SyncCluster) -> None:
    with connection(secured, "sender-account", "wrong-password") as sending:
        with denied("secret key does not belong") as raised:
            sending.SimpleQueue("orders").put([])
        assert "wrong-password" not in str(raised.value)


def test_without_an_account_the_error_says_where_it_belongs(secured: SyncCluster) -> None:
    tls = secured.cluster.security.tls
    assert tls is not None
    with (
        Connection(f"cometmq://{secured.namesrv_address}", ssl={"ca_certs": tls.trust_cert_path}) as sending,
        denied("into broker_url, as in cometmq://ACCESS_KEY:SECRET_KEY@HOST"),
    ):
        sending.SimpleQueue("orders").put([])


def test_an_unknown_authority_is_named_as_celery_s_settings_are(secured: SyncCluster) -> None:
    with (
        Connection(f"cometmqs://{secured.namesrv_address}") as sending,
        pytest.raises(OperationalError, match=r"set ca_certs in broker_use_ssl .*check_hostname=False"),
    ):
        sending.ensure_connection(max_retries=1, interval_start=0, interval_step=0)


def test_a_file_of_tls_that_does_not_exist_is_named(secured: SyncCluster) -> None:
    with (
        Connection(f"cometmq://{secured.namesrv_address}", ssl={"ca_certs": "/nowhere/ca.pem"}) as sending,
        pytest.raises(OperationalError, match=r"/nowhere/ca\.pem: no such file"),
    ):
        sending.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
