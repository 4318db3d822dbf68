"""Results in PostgreSQL, which refuses some strings and ends connections."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.interop.builds import ToolMissingError
from tests.storage.servers.postgres import postgres

from cometmq.testing import SyncCluster

pytestmark = pytest.mark.interop
TASKS = """
import json
import django
django.setup()
from django.core.management import call_command
from django.db import transaction
from tests.integrations.django.project.tasks import add, echo, fail, lose_connection

call_command("migrate", verbosity=0)
text = "nul \\0, half \\ud800"
with transaction.atomic():
    tasks = {"strange": echo.enqueue(text), "wrong": fail.enqueue(text), "lost": lose_connection.enqueue()}
    tasks |= {f"add {number}": add.enqueue(number, 1) for number in range(40)}
call_command("cometmq_worker", burst=True, threads=4)
for result in tasks.values():
    result.refresh()
assert tasks["strange"].return_value == text
assert text in tasks["wrong"].errors[0].traceback
assert [tasks[f"add {number}"].return_value for number in range(40)] == list(range(1, 41))
print(json.dumps({name: [result.status, result.attempts] for name, result in tasks.items() if " " not in name}))
"""


def test_results_in_postgresql(cometmq_sync_cluster: SyncCluster, tmp_path: Path) -> None:
    """celery/django-celery-results#82: the character NUL in a traceback. celery/celery#621: connections that ended."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.integrations.django.project.settings",
        "NAMESRV_ADDR": cometmq_sync_cluster.namesrv_address,
    }
    try:
        with postgres() as url:
            environment["TASKS_DATABASE"] = url.removesuffix("/postgres")
            done = subprocess.run(
                [sys.executable, "-c", TASKS], env=environment, capture_output=True, text=True, timeout=120, check=False
            )
    except ToolMissingError as error:
        pytest.skip(str(error))
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "strange": ["SUCCESSFUL", 1],
        "wrong": ["FAILED", 1],
        "lost": ["FAILED", 1],
    }
