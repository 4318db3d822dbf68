"""Django's own test cases for task backends, with our backend, a worker and a broker."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.interop import builds
from tests.interop.django.applies import NOT_OURS

import cometmq
from cometmq.testing import SyncCluster

pytestmark = pytest.mark.interop
ROOT = Path(__file__).parents[3]
PLACE = "tests.interop.django"
SOURCE = Path(cometmq.__file__).parents[1]


def test_djangos_own_test_cases_pass(cometmq_sync_cluster: SyncCluster, tmp_path: Path) -> None:
    build = builds.django_six()
    places = (SOURCE, ROOT, build / "django-tests")
    environment = {
        **os.environ,
        "NAMESRV_ADDR": cometmq_sync_cluster.namesrv_address,
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "TASKS_DATABASE": str(tmp_path / "tasks.sqlite3"),
        "DJANGO_ALLOW_ASYNC_UNSAFE": "true",  # asynchronous tests of Django look at results without `await`
    }
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    command = [
        str(build / "bin/python"),
        "-m",
        "django",
        "test",
        f"{PLACE}.cases",
        f"--settings={PLACE}.project",
        "-v",
        "2",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-8000:]
    skipped = dict(re.findall(r"^(test_\w+) \([\w.]+\).* skipped '(.*)'$", done.stderr, re.MULTILINE))
    assert skipped == {name.split(".")[1]: reason for name, reason in NOT_OURS.items() if name.split(".")[1] in skipped}
    assert f"OK (skipped={len(NOT_OURS)})" in done.stderr
    ran = re.search(r"^Ran (\d+) tests", done.stderr, re.MULTILINE)
    assert ran is not None
    assert int(ran[1]) - len(NOT_OURS) > 60
