"""Tasks that are enqueued while no broker accepts them."""

from __future__ import annotations

import datetime
import logging
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone
from tests.integrations.django.project.tasks import add

from cometmq.broker.turn.targets import RefusedError
from cometmq.client import Credentials, Security
from cometmq.integrations import attempts
from cometmq.integrations.django import worker
from cometmq.integrations.django.backend import TaskNotSentError
from cometmq.integrations.django.connections import CONNECTIONS, SEND_ATTEMPTS
from cometmq.integrations.django.models import StoredTask
from cometmq.remoting.codes import ResponseCode
from cometmq.testing import SyncCluster
from cometmq.testing.link import Direction

AWAY = "127.0.0.1:1"


def tasks_with(**options: Any) -> Any:
    changed = {alias: dict(backend) for alias, backend in settings.TASKS.items()}
    for alias in ("default", "plain"):
        changed[alias]["OPTIONS"] = {**changed[alias]["OPTIONS"], **options}
    return override_settings(TASKS=changed)


def call(command: str, **options: Any) -> str:
    out = StringIO()
    call_command(command, stdout=out, **options)
    return out.getvalue()


def test_a_task_that_could_not_be_sent_is_sent_later(broker: SyncCluster, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "cometmq.django"), tasks_with(namesrv=AWAY, send_timeout_s=0.5):
        alone = add.enqueue(1, 2)
        with transaction.atomic():
            together = add.enqueue(3, 4)
        with pytest.raises(CommandError, match=f"task {alone.id} is not sent"):
            call("cometmq_tasks", send_unsent=True)
    assert "is stored but not sent; a worker sends it later" in caplog.text
    assert ["connection refused" in row.send_error for row in StoredTask.objects.all()] == [True, True]
    (shown,) = [line for line in call("cometmq_tasks").splitlines() if "  default (django-default)" in line]
    assert shown.split()[:5] == ["2", "0", "0", "0", "2"]
    assert call("cometmq_tasks", send_unsent=True).count("is sent") == 2
    call("cometmq_worker", burst=True)
    alone.refresh()
    together.refresh()
    assert (alone.return_value, together.return_value) == (3, 7)


def test_a_worker_sends_what_was_not_sent(broker: SyncCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "OUTBOX_AGE", datetime.timedelta())
    with tasks_with(namesrv=AWAY, send_timeout_s=0.5):
        result = add.enqueue(1, 2)
    call("cometmq_worker", burst=True)
    result.refresh()
    assert result.return_value == 3


def test_a_copy_of_a_task_has_an_id_of_its_own(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two messages with one ID would be one that comes again: both would run at the same time."""
    with SyncCluster(links=True) as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv_address)
        add.enqueue(1, 2)
        cluster.run(lambda running: running.link(0).cut_after(0, Direction.TO_CLIENT))
        add.enqueue(3, 4)  # the broker stores it, and its answer is lost
        assert [row.send_error for row in StoredTask.objects.all()] == ["", ""]
        with cluster.inbox("django-default") as inbox:
            assert len({message.msg_id for message in inbox.expect(3)}) == 3
        CONNECTIONS.close()


def test_a_task_is_sent_when_a_broker_accepts_messages_again(
    broker: SyncCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that is stopping, to start again, answers for a moment that its service is not available."""
    refusals: list[int] = []

    def forbid(reason: RefusedError | None) -> None:
        broker.run(lambda running: running.broker(0).turn.forbid(reason))

    def after(count: int) -> float:
        refusals.append(count)
        if count == 2 * SEND_ATTEMPTS:
            forbid(None)
        return 0.01

    plain = add.using(backend="plain")
    plain.enqueue(1, 2)
    monkeypatch.setattr(attempts, "PAUSES", SimpleNamespace(after=after))
    forbid(RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is shutting down"))
    with tasks_with(send_timeout_s=60):
        add.using(backend="plain").enqueue(3, 4)
    assert refusals == list(range(1, 2 * SEND_ATTEMPTS + 1))
    with broker.inbox("plain-default") as inbox:
        assert len(inbox.expect(2)) == 2


def test_without_a_table_the_error_is_raised(database: Path) -> None:
    with tasks_with(namesrv=AWAY, send_timeout_s=0.5):
        plain = add.using(backend="plain")
        with pytest.raises(TaskNotSentError, match="was not sent"):
            plain.enqueue(1, 2)
        with (
            pytest.raises(TaskNotSentError, match="the current transaction, if any, is committed"),
            transaction.atomic(),
        ):
            plain.enqueue(1, 2)


@pytest.mark.cometmq(
    accounts=[
        {
            "accessKey": "app-account",
            "secretKey": "secret-of-app",
            "topicPerms": ["other=PUB|SUB"],
            "groupPerms": ["django=SUB"],
        }
    ]
)
def test_a_right_that_an_account_does_not_have_is_named(broker: SyncCluster) -> None:
    with tasks_with(security=Security(Credentials("app-account", "secret-of-app"))):
        add.enqueue(1, 2)
    reason = StoredTask.objects.get().send_error
    assert "No default permission for topic:django-default, check the account's topicPerms" in reason


@pytest.mark.cometmq(
    accounts=[
        {
            "accessKey": "app-account",
            "secretKey": "secret-of-app",
            "topicPerms": ["django-default=PUB|SUB"],
            "groupPerms": ["django=SUB"],
        }
    ]
)
def test_a_task_that_is_refused_holds_up_no_other(broker: SyncCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.create_topic("django-default")
    with tasks_with(namesrv=AWAY, send_timeout_s=0.5):
        refused = add.using(queue_name="mails").enqueue(1, 2)
        first, second = add.enqueue(3, 4), add.enqueue(5, 6)
    monkeypatch.setattr(worker, "OUTBOX_AGE", datetime.timedelta())
    with tasks_with(security=Security(Credentials("app-account", "secret-of-app"))):
        StoredTask.objects.filter(pk=second.id).update(enqueued_at=timezone.now() + datetime.timedelta(days=1))
        call("cometmq_worker", burst=True, queue=["default"])
        first.refresh()
        assert first.return_value == 7
        StoredTask.objects.filter(pk=second.id).update(enqueued_at=timezone.now())
        with pytest.raises(CommandError, match="1 tasks are not sent"):
            call("cometmq_tasks", send_unsent=True)
    rows = {row.id: row for row in StoredTask.objects.all()}
    assert (rows[refused.id].sent_at, rows[second.id].send_error) == (None, "")
    assert "No default permission for topic:django-mails" in rows[refused.id].send_error
    assert rows[second.id].sent_at is not None


def test_a_database_that_fails_after_the_commit_fails_no_request(
    broker: SyncCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def hide(name: str, new: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {name} RENAME TO {new}")

    with caplog.at_level(logging.ERROR, "cometmq.django"):
        with transaction.atomic():
            transaction.on_commit(lambda: hide("cometmq_task", "away"))
            result = add.enqueue(1, 2)
        hide("away", "cometmq_task")
    assert "is stored; a worker sends it later, perhaps again" in caplog.text
    assert StoredTask.objects.get().sent_at is None
    call("cometmq_tasks", send_unsent=True)
    call("cometmq_worker", burst=True)
    result.refresh()
    assert (result.return_value, result.attempts) == (3, 1)


@pytest.mark.cometmq(
    accounts=[
        {
            "accessKey": "worker-account",
            "secretKey": "secret-of-worker",
            "topicPerms": ["django-default=PUB|SUB"],
            "groupPerms": ["other=SUB"],
        }
    ]
)
def test_a_worker_without_a_right_ends_and_names_it(broker: SyncCluster) -> None:
    broker.create_topic("django-default")
    with (
        tasks_with(security=Security(Credentials("worker-account", "secret-of-worker"))),
        pytest.raises(CommandError, match=r"django.*check the account's topicPerms and groupPerms"),
    ):
        call("cometmq_worker", burst=True, queue=["default"])
