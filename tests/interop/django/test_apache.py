"""Tasks of Django over a broker of Apache RocketMQ 5.5: priorities, times, failures, a worker that dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.conftest import _deploy
from tests.interop.systems import Deployment, System

from cometmq.client import Admin

pytestmark = pytest.mark.interop
PATIENCE_S = 240.0
TASKS = """
import datetime, json, sys
import django
django.setup()
from django.core.management import call_command
from django.utils import timezone
from tests.integrations.django.project.tasks import add, die_once, fail, note

call_command("migrate", verbosity=0)
notes, deaths = sys.argv[1:]
tasks = {
    "low": note.using(priority=-100).enqueue(notes, "low"),
    "high": note.using(priority=100).enqueue(notes, "high"),
    "later": note.using(run_after=timezone.now() + datetime.timedelta(seconds=5)).enqueue(notes, "later"),
    "wrong": fail.enqueue("no luck"),
    "mail": add.using(queue_name="B\\u00fcro/nachts 1").enqueue(1, 2),
    "deadly": die_once.enqueue(deaths),
}
print(json.dumps({name: result.id for name, result in tasks.items()}))
"""
RESULTS = """
import json, sys
import django
django.setup()
from cometmq.integrations.django.models import StoredTask

rows = {row.id: row for row in StoredTask.objects.all()}
tasks = {name: rows[key] for name, key in json.loads(sys.argv[1]).items()}
print(json.dumps({name: [row.status, row.attempts, row.send_error] for name, row in tasks.items()}))
"""


@pytest.fixture
def apache(tmp_path: Path) -> Iterator[Deployment]:
    deployment = _deploy(System.APACHE55, tmp_path / "apache")
    yield deployment
    deployment.close()


async def test_tasks_run_over_apaches_broker(apache: Deployment, tmp_path: Path) -> None:
    notes, deaths = tmp_path / "notes", tmp_path / "deaths"
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.integrations.django.project.settings",
        "NAMESRV_ADDR": apache.address,
        "TASKS_DATABASE": str(tmp_path / "tasks.sqlite3"),
        "TASKS_OPTIONS": json.dumps({"invisible_s": 10}),
    }

    def python(*arguments: str, codes: tuple[int, ...] = (0,)) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode in codes, done.stdout + done.stderr
        return done.stdout

    ids = python("-c", TASKS, str(notes), str(deaths))
    worker = ("-m", "django", "cometmq_worker", "--max-tasks")
    assert "tasks of queue" in python(*worker, "6", codes=(-signal.SIGKILL,))
    while "RUNNING" in (found := python("-c", RESULTS, ids)) or "READY" in found:
        python(*worker, "1")
    assert json.loads(found) == {
        "low": ["SUCCESSFUL", 1, ""],
        "high": ["SUCCESSFUL", 1, ""],
        "later": ["SUCCESSFUL", 1, ""],
        "wrong": ["FAILED", 1, ""],
        "mail": ["SUCCESSFUL", 1, ""],
        "deadly": ["SUCCESSFUL", 2, ""],
    }
    order = notes.read_text().split()
    assert sorted(order) == ["high", "later", "low"]
    assert order.index("high") < order.index("low")
    async with Admin(apache.address) as admin:
        assert "%DLQ%django" in await admin.topics()
