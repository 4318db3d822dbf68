"""The session that a job runs in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cometmq.spark.environment import driver_session


@pytest.mark.spark
def test_a_job_takes_the_session_that_it_is_given(spark: Any) -> None:
    with driver_session(spark, "local[1]", "job") as session:
        assert session is spark


@pytest.mark.spark
def test_a_session_of_ours_starts_without_a_word_and_its_jvm_can_still_be_heard() -> None:
    """In a process of its own, since a process has one JVM."""
    program = """
from cometmq.spark.environment import local_session
spark = local_session("local[1]", brief=True)
spark.sparkContext._jvm.System.err.println("heard")
spark.stop()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "heard\n")


@pytest.mark.spark
def test_an_interruption_while_spark_starts_leaves_no_jvm_behind(tmp_path: Path) -> None:
    """The program ends, and so do all that hold its standard output: else reading it would never end."""
    java = Path(shutil.which("java") or "java").resolve()
    (tmp_path / "bin").mkdir()
    begun = tmp_path / "bin" / "java"
    begun.write_text(f'#!/bin/sh\n[ "$PARENT" ] && kill -INT "$PARENT"\nexec "{java}" "$@"\n')
    begun.chmod(0o755)
    program = """
import os
os.environ["PARENT"] = str(os.getpid())
from cometmq.spark.environment import local_session
try:
    local_session("local[1]", brief=True)
except KeyboardInterrupt:
    print("interrupted")
"""
    environment = os.environ | {"JAVA_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False, env=environment
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n")


@pytest.mark.spark
def test_what_a_jvm_says_that_does_not_start_is_told(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho this is no Java >&2\nexit 1\n")
    java.chmod(0o755)
    program = "from cometmq.spark.environment import local_session; local_session('local[1]')"
    environment = os.environ | {"JAVA_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False, env=environment
    )
    assert done.returncode != 0
    assert "this is no Java" in done.stderr
