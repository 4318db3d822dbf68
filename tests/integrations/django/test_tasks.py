"""Tasks from ``enqueue`` to their results, with a worker in the test's own process."""

from __future__ import annotations

import datetime
import json
import logging
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import call_command
from django.db import connection, transaction
from django.test import TestCase, override_settings
from django.utils import timezone
from tests.helpers.pace import Patience
from tests.integrations.damaged import send_damaged
from tests.integrations.django.project import tasks
from tests.integrations.django.project.tasks import (
    add,
    add_later,
    echo,
    fail,
    fail_until,
    hide_table,
    note,
    stop_autocommit,
)

from cometmq.client import IllegalMessageError, Message
from cometmq.client.sync import SyncAdmin, SyncProducer
from cometmq.integrations.django import results, running, worker
from cometmq.integrations.django.api import (
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from cometmq.integrations.django.backend import CometMQBackend
from cometmq.integrations.django.connections import logger
from cometmq.integrations.django.models import StoredTask
from cometmq.integrations.django.options import BackendOptions
from cometmq.integrations.django.orders import Order
from cometmq.integrations.django.results import Claim
from cometmq.integrations.django.running import Delivery, Running, What
from cometmq.integrations.django.worker import Worker, WorkerSettings
from cometmq.testing import SyncCluster


@pytest.fixture(autouse=True)
def project(broker: SyncCluster) -> SyncCluster:
    return broker


def work(**options: Any) -> list[str]:
    """Run a worker until its queues are empty; return the lines of its log."""
    out = StringIO()
    handler = logging.StreamHandler(out)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        call_command("cometmq_worker", burst=True, **options)
    finally:
        logger.removeHandler(handler)
    return out.getvalue().splitlines()


def dead_letters(cluster: SyncCluster, group: str = "django") -> list[dict[str, Any]]:
    with cluster.inbox(f"%DLQ%{group}") as inbox:
        return [json.loads(message.body) for message in inbox.expect(1)]


def run_later(**after: float) -> datetime.datetime:
    return timezone.now() + datetime.timedelta(**after)


def test_a_task_runs_and_its_result_is_there() -> None:
    result = add.enqueue(1, two=2)
    assert (result.status, result.args, result.kwargs) == ("READY", [1], {"two": 2})
    assert add.get_result(result.id) == result
    lines = work()
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", 3, 1)
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert [line for line in lines if f"task {result.id} tests.integrations.django.project.tasks.add of queue" in line]


def test_asynchronous_tasks_and_calls() -> None:
    async def enqueue() -> Any:
        return await add_later.aenqueue(1, 2)

    result = async_to_sync(enqueue)()
    work()
    async_to_sync(result.arefresh)()
    assert result.return_value == 3
    assert async_to_sync(add_later.aget_result)(result.id).return_value == 3


def test_arguments_and_values_of_any_json(tmp_path: Path) -> None:
    value = {"nul": "\0", "half": "\ud800", "text": "Büro 🏢", "list": [1, 2.5, None, True], "deep": {"": {}}}
    result = echo.enqueue(value)
    work()
    result.refresh()
    assert result.return_value == value


def test_a_task_is_sent_when_its_transaction_commits(tmp_path: Path) -> None:
    """RealOrangeOne/django-tasks-rq#11, rq/django-rq#821: tasks that ran before the commit.

    RealOrangeOne/django-tasks-db#56: a worker that was called in a transaction closed its connection.
    """
    file = tmp_path / "notes"
    later = note.using(run_after=run_later(seconds=0.2))
    with transaction.atomic():
        result = note.enqueue(str(file), "one")
        also = later.enqueue(str(file), "two")
        work()
        assert not file.exists()
    work()
    result.refresh()
    also.refresh()
    assert result.status == also.status == "SUCCESSFUL"
    assert file.read_text().splitlines() == ["one", "two"]


def test_a_task_of_a_transaction_that_is_rolled_back_does_not_exist(tmp_path: Path) -> None:
    with transaction.atomic():
        result = note.enqueue(str(tmp_path / "notes"), "one")
        plain = note.using(backend="plain").enqueue(str(tmp_path / "notes"), "two")
        assert plain.status == "READY"
        transaction.set_rollback(True)
    work()
    work(backend="plain")
    assert not (tmp_path / "notes").exists()
    with pytest.raises(TaskResultDoesNotExist):
        note.get_result(result.id)


def test_urgent_tasks_run_first(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    for priority in (0, -100, 100, 10, -10):
        note.using(priority=priority).enqueue(str(file), str(priority))
    work()
    assert file.read_text().split() == ["100", "10", "0", "-10", "-100"]


def test_a_task_runs_after_its_time_and_keeps_its_priority(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    result = note.using(run_after=run_later(seconds=1.5), priority=50).enqueue(str(file), "later")
    patience = Patience(60)
    while not result.is_finished and not patience.is_over:
        work()
        result.refresh()
    assert result.status == "SUCCESSFUL"
    assert result.started_at >= result.task.run_after
    assert result.task.priority == 50


@pytest.mark.cometmq(real_time=False)
def test_a_broker_whose_clock_is_ahead_starts_no_task_early(project: SyncCluster, tmp_path: Path) -> None:
    file = tmp_path / "notes"
    result = note.using(run_after=run_later(days=30)).enqueue(str(file), "later")
    for _ in range(3):
        project.skip(3 * 86_400)  # longer than the longest delay of one message
        work()
    assert not file.exists()
    result.refresh()
    assert (result.status, result.attempts) == ("READY", 0)


@pytest.mark.parametrize("seconds", [30, 3600])
def test_a_task_without_a_row_that_is_early_uses_up_no_attempt(seconds: float) -> None:
    """The deliveries of its message are its attempts, so it needs a new message."""
    options = BackendOptions(results=False, max_attempts=1)
    runner = Running(CometMQBackend, "plain", options, "worker", lambda _: None)
    order = Order(id="i", path="x", args=[], kwargs={}, queue_name="q", run_after=run_later(seconds=seconds))
    assert runner.run(Delivery(order.body(), "message", 1)).what is What.DELAY_AGAIN


def test_a_name_of_a_queue_may_have_any_characters(tmp_path: Path) -> None:
    note.using(queue_name="Büro/nachts 1").enqueue(str(tmp_path / "notes"), "there")
    assert not any("SUCCESSFUL" in line for line in work(queue=["default"]))
    lines = work(queue=["Büro/nachts 1"])
    assert any("of queue Büro/nachts 1: SUCCESSFUL" in line for line in lines)
    out = StringIO()
    call_command("cometmq_tasks", stdout=out)
    assert "Büro/nachts 1 (django-B%C3%BCro%2Fnachts%201)" in out.getvalue()


def test_a_task_that_raises_has_failed_and_is_a_dead_letter(project: SyncCluster) -> None:
    result = fail.enqueue("no\0 luck")
    work()
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == ("FAILED", 1, 1)
    assert result.errors[0].exception_class is ValueError
    assert result.errors[0].traceback.endswith("ValueError: no\0 luck\n")
    assert [letter["id"] for letter in dead_letters(project)] == [result.id]


def test_a_line_of_the_log_stays_one_line() -> None:
    fail.enqueue("no\nluck \x1b[2J")
    assert [line for line in work() if "FAILED in" in line and r"ValueError: no\nluck \x1b[2J" in line]


@pytest.mark.parametrize("name", ["leave", "return_object"])
def test_a_task_that_exits_or_returns_no_json_ends_no_worker(name: str) -> None:
    bad, good = getattr(tasks, name).enqueue(), tasks.add.enqueue(1, 2)
    work()
    bad.refresh()
    good.refresh()
    assert (bad.status, good.status) == ("FAILED", "SUCCESSFUL")


def test_a_task_is_tried_again_as_often_as_configured() -> None:
    good = fail_until.using(backend="patient").enqueue(attempt=3)
    bad = fail.using(backend="patient").enqueue("always")
    for _ in range(3):
        work(backend="patient")
    good.refresh()
    bad.refresh()
    assert (good.status, good.return_value, len(good.errors), good.attempts) == ("SUCCESSFUL", 3, 2, 3)
    assert (bad.status, len(bad.errors), bad.attempts) == ("FAILED", 3, 3)


def test_a_task_without_a_row(tmp_path: Path) -> None:
    result = note.using(backend="plain").enqueue(str(tmp_path / "notes"), "one")
    work(backend="plain")
    assert (tmp_path / "notes").read_text() == "one\n"
    assert not StoredTask.objects.exists()
    with pytest.raises(NotImplementedError):
        result.refresh()


def test_copies_of_a_message_run_once(tmp_path: Path) -> None:
    """Koed00/django-q#614: a task that several workers ran."""
    result = note.enqueue(str(tmp_path / "notes"), "one")
    task_backends["default"].send(results.order_of(StoredTask.objects.get(pk=result.id)))
    work()
    assert (tmp_path / "notes").read_text() == "one\n"


def test_a_message_that_comes_again_after_its_task_has_ended_runs_nothing(tmp_path: Path) -> None:
    """A worker that dies between the result and the acknowledgement."""
    note.enqueue(str(tmp_path / "notes"), "one")
    runner = Running(CometMQBackend, "default", BackendOptions(), "worker", lambda _: None)
    delivery = Delivery(results.order_of(StoredTask.objects.get()).body(), "message", 1)
    assert [runner.run(delivery).what, runner.run(delivery).what] == [What.DONE, What.DONE]
    assert (tmp_path / "notes").read_text() == "one\n"


def test_a_worker_that_was_cut_off_overwrites_no_result() -> None:
    add.enqueue(1, 2)
    order = results.order_of(StoredTask.objects.get())
    options = BackendOptions()
    first, slow = results.claim(order, "message", "slow", options)
    other, _ = results.claim(order, "copy", "other", options)
    again, quick = results.claim(order, "message", "quick", options)
    assert (first, other, again) == (Claim.RUN, Claim.ELSEWHERE, Claim.RUN)
    assert (slow.worker_ids, quick.worker_ids) == (["slow"], ["slow", "quick"])
    result = results.get(order.id, "default", "default")
    object.__setattr__(result, "status", "SUCCESSFUL")
    assert results.save(result, quick.number, "default")
    assert not results.save(result, slow.number, "default")


def body_of(**fields: Any) -> bytes:
    usual = {"id": "i", "path": "x", "args": [], "kwargs": {}, "queue_name": "default"}
    return json.dumps({**usual, **fields}).encode()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"no JSON", "no task"),
        (b"\xff\xfe\x00", "no task"),
        (b"[" * 100_000, "no task"),
        (b'{"id": 5}', "no task"),
        (b'{"id": "\\u0000", "path": "x", "args": [], "kwargs": {}, "queue_name": "default"}', "letters and digits"),
        (body_of(path="os.system", args=["true"]), "no row"),
        (body_of(path="x" * 1_001), "more than 1,000 characters"),
        (body_of(queue_name="x" * 300, run_after="2040-01-01T00:00:00Z"), "is too long"),
    ],
)
def test_a_message_that_is_no_task_becomes_a_dead_letter(project: SyncCluster, body: bytes, reason: str) -> None:
    result = add.enqueue(1, 2)
    with SyncProducer("stranger") as producer:
        producer.send(Message("django-default", body))
    lines = work()
    result.refresh()
    assert result.status == "SUCCESSFUL"
    assert [line for line in lines if "becomes a dead letter" in line and reason in line]
    with project.inbox("%DLQ%django") as inbox:
        assert [letter.body for letter in inbox.expect(1)] == [body]


@pytest.mark.parametrize(
    "path", ["os.system", "tests.integrations.django.project.tasks.no_task", "a.b", "x", "", "ü.1"]
)
def test_a_task_whose_code_is_not_there_has_failed_and_the_worker_goes_on(path: str) -> None:
    """RealOrangeOne/django-tasks#190: the worker stood still after an ImportError."""
    order = Order(id="bad", path=path, args=[], kwargs={}, queue_name="default", enqueued_at=timezone.now())
    results.add(order, "default", "default")
    task_backends["default"].send(order)
    good = add.enqueue(1, 2)
    work()
    bad = StoredTask.objects.get(pk="bad")
    good.refresh()
    assert (bad.status, good.status) == ("FAILED", "SUCCESSFUL")
    assert "TaskPathError" in bad.errors


def test_a_task_whose_row_was_deleted_becomes_a_dead_letter(project: SyncCluster) -> None:
    result = add.enqueue(1, 2)
    StoredTask.objects.all().delete()
    assert any("it was deleted, or this worker has other settings" in line for line in work())
    assert dead_letters(project)[0]["id"] == result.id


def test_a_task_that_is_too_large_is_refused_before_anything_is_written() -> None:
    with pytest.raises(IllegalMessageError, match=r"10,000,\d{3} bytes, and max_message_bytes is 4,194,304"):
        echo.enqueue("x" * 10_000_000)
    assert not StoredTask.objects.exists()


def test_a_topic_of_a_new_queue_has_priorities() -> None:
    add.enqueue(1, 2)
    with SyncAdmin() as admin:
        assert list(admin.topic_types("django-default").values()) == ["PRIORITY"]


def test_signals(project: SyncCluster) -> None:
    seen: list[tuple[str, str]] = []
    signals = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
    receivers = {
        name: (lambda sender, task_result, name=name, **_: seen.append((name, task_result.status))) for name in signals
    }
    for name, signal in signals.items():
        signal.connect(receivers[name], sender=CometMQBackend)
    try:
        add.enqueue(1, 2)
        work()
        fail.enqueue("x")
        work()
    finally:
        for name, signal in signals.items():
            signal.disconnect(receivers[name], sender=CometMQBackend)
    begin = [("enqueued", "READY"), ("started", "RUNNING")]
    assert seen == [*begin, ("finished", "SUCCESSFUL"), *begin, ("finished", "FAILED")]


def sql(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def run_worker() -> None:
    Worker(task_backends["default"], WorkerSettings(queues=("default",), burst=True)).run()


@pytest.mark.cometmq(real_time=False)
def test_a_task_is_given_back_while_the_database_fails(project: SyncCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """django-background-tasks/django-background-tasks#138: workers ended when the database was away."""
    monkeypatch.setattr(worker, "PAUSES_S", (0.01,))
    result = add.enqueue(1, 2)
    sql("ALTER TABLE cometmq_task RENAME TO away")
    run_worker()
    sql("ALTER TABLE away RENAME TO cometmq_task")
    result.refresh()
    assert (result.status, result.attempts) == ("READY", 0)
    project.skip(11)
    run_worker()
    result.refresh()
    assert (result.return_value, result.attempts) == (3, 1)


def test_a_message_that_is_damaged_becomes_a_dead_letter(project: SyncCluster) -> None:
    add.enqueue(1, 2)
    project.call(send_damaged(project.cluster, "django-default"))
    (line,) = [line for line in work() if "becomes a dead letter" in line]
    assert "decompress" in line


@pytest.mark.cometmq(real_time=False)
def test_a_message_that_cannot_be_ended_comes_again_soon(project: SyncCluster) -> None:
    """It would be renewed for a day otherwise, as if its task ran."""
    add.enqueue(1, 2)
    numbers = ",".join(["1e5"] * 600_000)  # it is to be sent again later, but our numbers have more characters
    body = body_of(run_after=run_later(hours=1).isoformat()).replace(b"[]", f"[{numbers}]".encode())
    project.send(Message("django-default", body))
    first = work()
    project.skip(11)
    second = work()
    for lines in (first, second):
        assert len([line for line in lines if "the broker may deliver its task again" in line]) == 1, lines


@pytest.mark.cometmq(real_time=False)
def test_a_task_whose_result_cannot_be_stored_runs_again(project: SyncCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PAUSES_S", (0.01,))
    monkeypatch.setattr(running, "SAVE_PAUSES_S", (0.01, 0.01))
    result = hide_table.enqueue()
    run_worker()
    sql("ALTER TABLE away RENAME TO cometmq_task")
    result.refresh()
    assert (result.status, result.attempts) == ("RUNNING", 1)
    project.skip(11)
    run_worker()
    sql("ALTER TABLE away RENAME TO cometmq_task")
    result.refresh()
    assert (result.status, result.attempts) == ("RUNNING", 2)


def test_a_task_that_leaves_its_connection_without_autocommit_is_stored() -> None:
    result = stop_autocommit.enqueue()
    work()
    result.refresh()
    assert result.status == "SUCCESSFUL"


def test_a_project_without_time_zones(tmp_path: Path) -> None:
    with override_settings(USE_TZ=False):
        now = datetime.datetime.now()  # noqa: DTZ005
        result = note.using(run_after=now + datetime.timedelta(seconds=0.3)).enqueue(str(tmp_path / "notes"), "one")
        patience = Patience(60)
        while not result.is_finished and not patience.is_over:
            work()
            result.refresh()
        assert result.status == "SUCCESSFUL"
        assert result.started_at >= result.task.run_after


def test_a_test_case_of_django_runs_tasks_in_its_transaction() -> None:
    with transaction.atomic():
        with TestCase.captureOnCommitCallbacks(execute=True):
            result = add.enqueue(1, 2)
        work()
        result.refresh()
        assert result.return_value == 3
        transaction.set_rollback(True)
    assert not StoredTask.objects.exists()
