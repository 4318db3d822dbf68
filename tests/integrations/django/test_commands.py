"""Commands, checks, migrations and the admin's page."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.test import Client, modify_settings, override_settings
from tests.integrations.django.project.tasks import add, echo, fail

from cometmq.integrations.django.backend import CometMQBackend
from cometmq.integrations.django.models import StoredTask
from cometmq.testing import SyncCluster


def call(command: str, *arguments: str, **options: Any) -> str:
    out = StringIO()
    call_command(command, *arguments, stdout=out, **options)
    return out.getvalue()


def test_the_migrations_make_the_table(database: Path) -> None:
    call("makemigrations", "--check", "--dry-run", "cometmq")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"queue": ["other"]}, "no queue of the backend: 'other'. Its QUEUES are"),
        ({"threads": 0}, "--threads must be at least 1"),
        ({"max_tasks": -1}, "--max-tasks must be at least 1"),
        ({"reload": True, "burst": True}, "--reload is for one process that stays"),
    ],
)
def test_wrong_options_of_the_worker(database: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(CommandError, match=words):
        call("cometmq_worker", **given)


def test_a_worker_without_a_table_says_what_to_do(database: Path) -> None:
    connection.cursor().execute("DROP TABLE cometmq_task")
    with pytest.raises(CommandError, match=r"Run manage\.py migrate"):
        call("cometmq_worker", burst=True)


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        ({"OPTIONS": {"name": 1}}, "cometmq.E001", "unknown options: name"),
        ({"OPTIONS": {"max_attempts": 0}}, "cometmq.E001", "max_attempts must be a whole number from 1"),
        ({"OPTIONS": {"max_attempts": True}}, "cometmq.E001", "max_attempts"),
        ({"OPTIONS": {"max_attempts": 17}}, "cometmq.E001", "a whole number from 1 to 16"),
        ({"OPTIONS": {"namesrv": "localhost"}}, "cometmq.E001", "the option namesrv is wrong"),
        ({"OPTIONS": {"results": "no"}}, "cometmq.E001", "results must be a bool"),
        ({"OPTIONS": {"console": "javascript:alert(1)"}}, "cometmq.E001", "the option console must be an address"),
        ({"OPTIONS": {"security": "key"}}, "cometmq.E001", "security must be a Security"),
        ({"OPTIONS": {"prefix": "a b"}}, "cometmq.E001", "prefix 'a b'"),
        ({"OPTIONS": {"database": "orders"}}, "cometmq.E004", "no database 'orders'"),
        ({"QUEUES": ["x" * 200]}, "cometmq.E003", "is too long"),
    ],
)
def test_checks_name_what_is_wrong(template: Path, changed: dict[str, Any], code: str, words: str) -> None:
    found = list(CometMQBackend("default", changed).check())
    assert [message.id for message in found] == [code]
    assert words in found[0].msg
    assert "TASKS['default']" in found[0].msg
    assert found[0].hint


def test_a_project_without_the_application_is_told(template: Path) -> None:
    with modify_settings(INSTALLED_APPS={"remove": "cometmq.integrations.django"}):
        assert [message.id for message in CometMQBackend("default", {}).check()] == ["cometmq.E002"]
    assert list(CometMQBackend("default", {}).check()) == []


def test_old_tasks_are_deleted(broker: SyncCluster) -> None:
    """celery/django-celery-results#117: one statement for all old rows took too long."""
    add.enqueue(1, 2)
    call("cometmq_worker", burst=True)
    add.enqueue(3, 4)
    assert "0 tasks are deleted" in call("cometmq_tasks", delete_finished=1.0)
    assert "1 tasks are deleted" in call("cometmq_tasks", delete_finished=0.0)
    assert StoredTask.objects.get().status == "READY"


def test_the_admins_page_shows_tasks_and_sends_them_again(broker: SyncCluster) -> None:
    add.enqueue(1, 2)
    bad = fail.enqueue("<script>no luck</script>")
    call("cometmq_worker", burst=True)
    browser = Client(SERVER_NAME="localhost")
    browser.force_login(User.objects.create_superuser("admin"))
    page = browser.get("/admin/cometmq/storedtask/")
    assert page.status_code == 200
    assert bad.id in page.content.decode()
    page = browser.get(f"/admin/cometmq/storedtask/{bad.id}/change/")
    assert page.status_code == 200
    assert "ValueError" in page.content.decode()
    assert "<script>no luck" not in page.content.decode()
    shown = page.content.decode()
    assert "<pre" in shown
    assert "\nValueError: " in shown, "a traceback in lines"
    assert 'name="_save"' not in shown
    assert browser.get("/admin/cometmq/storedtask/add/").status_code == 403
    again = {"action": "send_again", "_selected_action": [bad.id]}
    page = browser.post("/admin/cometmq/storedtask/", again, follow=True)
    assert "1 task is sent again" in page.content.decode()
    call("cometmq_worker", burst=True)
    bad.refresh()
    assert (bad.status, len(bad.errors)) == ("FAILED", 2)


def test_the_admins_page_has_a_link_to_the_console(broker: SyncCluster) -> None:
    result = echo.using(queue_name="Büro/nachts 1").enqueue("<script>")
    browser = Client(SERVER_NAME="localhost")
    browser.force_login(User.objects.create_superuser("admin"))
    address = f"/admin/cometmq/storedtask/{result.id}/change/"
    assert "in the console" not in browser.get(address).content.decode()
    default = settings.TASKS["default"]
    with override_settings(
        TASKS={"default": {**default, "OPTIONS": {"console": "https://console.example.com/cometmq/"}}}
    ):
        page = browser.get(address).content.decode()
    link = (
        f"https://console.example.com/cometmq/messages?topic=django-B%25C3%25BCro%252Fnachts%25201&amp;key={result.id}"
    )
    assert f'<a href="{link}">in the console</a>' in page
    assert "&lt;script&gt;" in page


def test_the_admin_survives_a_task_of_a_backend_that_is_gone(broker: SyncCluster) -> None:
    result = echo.enqueue(1)
    StoredTask.objects.update(backend="gone")
    browser = Client(SERVER_NAME="localhost")
    browser.force_login(User.objects.create_superuser("admin"))
    assert browser.get(f"/admin/cometmq/storedtask/{result.id}/change/").status_code == 200
    again = {"action": "send_again", "_selected_action": [result.id]}
    page = browser.post("/admin/cometmq/storedtask/", again, follow=True)
    assert "belongs to no backend in TASKS: gone" in page.content.decode()
