"""A Django project with a database of its own for each test, and a cluster."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import django
import pytest
from django.core.management import call_command
from django.db import connection

from cometmq.testing import SyncCluster

SETTINGS = "tests.integrations.django.project.settings"
zone = os.environ.get("TZ")
with pytest.MonkeyPatch.context() as patch:  # Celery in other tests of the process would look for the project
    patch.setenv("DJANGO_SETTINGS_MODULE", SETTINGS)
    django.setup()
os.environ.pop("TZ")  # Django changes the time zone of the process, which other tests share
if zone is not None:
    os.environ["TZ"] = zone
time.tzset()

from cometmq.integrations.django import worker  # noqa: E402
from cometmq.integrations.django.connections import CONNECTIONS  # noqa: E402


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with all tables."""
    path = tmp_path_factory.mktemp("django") / "template.sqlite3"
    connection.settings_dict["NAME"] = str(path)
    call_command("migrate", verbosity=0)
    connection.close()
    return path


@pytest.fixture
def database(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The test's own database."""
    path = tmp_path / "tasks.sqlite3"
    shutil.copy(template, path)
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", SETTINGS)
    monkeypatch.setenv("TASKS_DATABASE", str(path))
    connection.close()
    connection.settings_dict["NAME"] = str(path)
    yield path
    connection.close()


@pytest.fixture
def broker(database: Path, cometmq_sync_cluster: SyncCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncCluster]:
    """The cluster to which the project connects."""
    monkeypatch.setenv("NAMESRV_ADDR", cometmq_sync_cluster.namesrv_address)
    monkeypatch.setattr(worker, "BURST_WAIT_S", 0.2)
    yield cometmq_sync_cluster
    CONNECTIONS.close()
