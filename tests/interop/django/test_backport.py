"""The test cases of ``django-tasks``, the package for Django before 6.0, with our backend, a worker and a broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.interop import builds
from tests.interop.django.applies import NOT_OURS_OF_BACKPORT

import cometmq
from cometmq.testing import SyncCluster

pytestmark = pytest.mark.interop
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def suite() -> Path:
    try:
        return builds.django_backport_cases()
    except (builds.ToolMissingError, subprocess.TimeoutExpired) as problem:
        pytest.skip(f"{problem}; they are in no package, so a machine that reaches package registries only lacks them")


def test_the_test_cases_of_the_backport_pass(suite: Path, cometmq_sync_cluster: SyncCluster, tmp_path: Path) -> None:
    places = (suite, HERE, HERE / "backport", Path(cometmq.__file__).parents[1])
    environment = {
        **os.environ,
        "NAMESRV_ADDR": cometmq_sync_cluster.namesrv_address,
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "TASKS_DATABASE": str(tmp_path / "tasks.sqlite3"),
        "DJANGO_ALLOW_ASYNC_UNSAFE": "true",  # asynchronous cases look at results without `await`
    }
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    command = [*(sys.executable, "-m", "django", "test", "backport_cases"), "--settings=backport_settings", "-v", "2"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-8000:]
    skipped = re.findall(r"^(test_\w+) \([\w.]+\).* skipped '(.*)'$", done.stderr, re.MULTILINE)
    assert {*skipped} <= {(name.split(".")[1], reason) for name, reason in NOT_OURS_OF_BACKPORT.items()}
    ran = re.search(r"^Ran (\d+) tests", done.stderr, re.MULTILINE)
    assert ran is not None
    assert int(ran[1]) - len(skipped) >= 69
