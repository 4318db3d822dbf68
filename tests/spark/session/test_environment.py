"""The session that a job runs in."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.spark.topics import Topics

from cometmq.cli.contexts import NAMESRV_VARIABLE
from cometmq.spark.errors import SparkSourceError
from cometmq.spark.session import environment as environment_module
from cometmq.spark.session.environment import SparkMissingError, driver_session, local_session


@pytest.mark.spark
def test_a_job_takes_the_session_that_it_is_given(spark: Any) -> None:
    with driver_session(spark, "local[1]", "job") as session:
        assert session is spark


@pytest.mark.spark
def test_a_session_of_ours_starts_without_a_word_and_its_jvm_can_still_be_heard() -> None:
    """In a process of its own, since a process has one JVM. Its workers take PySpark from where it is installed."""
    program = """
from cometmq.spark.session.environment import local_session
spark = local_session("local[1]", brief=True)
spark.sparkContext._jvm.System.err.println("heard")
import os, pyspark, sys
def worker(_):
    import pyspark
    return [(pyspark.__file__, sys.executable, [p for p in os.environ["PYTHONPATH"].split(":") if "given" in p])]
[found] = spark.sparkContext.parallelize([0], 1).mapPartitions(worker).collect()
assert found == (pyspark.__file__, sys.executable, ["/given"]), found
spark.stop()
"""
    environment = {name: value for name, value in os.environ.items() if name not in {"PYSPARK_PYTHON", "SPARK_HOME"}}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, ("/given", os.environ.get("PYTHONPATH"))))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "heard\n")


_FORMATS = """
from cometmq.spark.session.environment import local_session
spark = local_session("local[1]", brief=True)
for name in ("rocketmq", "rocketmq_store"):
    try:
        spark.read.format(name).option("nonsense", "1").load()
    except Exception as error:
        print("OptionError" in str(error))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.parametrize("folder", ["my projects", "it's größer (2)"])
def test_the_formats_are_found_by_a_python_whose_path_has_spaces(folder: str, tmp_path: Path) -> None:
    """Spark itself asks a shell for the workers' Python, does not find it there, and then looks for no formats."""
    python = tmp_path / folder / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    environment = os.environ | {"PYSPARK_PYTHON": str(python)}
    done = subprocess.run([sys.executable, "-c", _FORMATS], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "True\n" * 2


_PARQUET = """
import sys
from cometmq.spark.session.environment import local_session
spark = local_session("local[1]", brief=True)
rows = spark.range(1000).selectExpr(
    "uuid() AS msgId", "'a' AS tags", "map('UNIQ_KEY', uuid()) AS properties", "current_timestamp() AS storeTimestamp"
)
rows.write.parquet(sys.argv[1])
spark.stop()
"""


@pytest.mark.spark
def test_parquet_files_have_times_in_microseconds_and_no_dictionaries_of_unique_values(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _PARQUET, tmp_path / "rows"], check=True, stderr=subprocess.DEVNULL)
    [path] = (tmp_path / "rows").glob("*.parquet")
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = {column.path_in_schema: column for column in map(group.column, range(group.num_columns))}
    assert columns["storeTimestamp"].physical_type == "INT64"
    found = {name for name, column in columns.items() if column.has_dictionary_page}
    assert found == {"tags", "storeTimestamp", "properties.key_value.key"}


_SHOWN = """
from pathlib import Path
from cometmq.spark.session.environment import local_session

def wait(rows):
    Path("seen").read_bytes()
    return rows

spark = local_session("local[1]", brief=True)
spark.sparkContext.parallelize([1], 1).mapPartitions(wait).count()
spark.stop()
"""


@pytest.mark.spark
def test_a_terminal_shows_how_far_a_step_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "seen")  # which cannot be read before it is written
    ours, its = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", _SHOWN], cwd=tmp_path, stderr=its) as program:
        os.close(its)
        shown = b""
        while b"(0 + 1) / 1]" not in shown:  # none of its tasks done, one under way
            shown += os.read(ours, 1000)
        (tmp_path / "seen").write_bytes(b"")
        assert program.wait() == 0, shown
    os.close(ours)


def test_only_the_zips_of_spark_are_taken_from_the_path_of_its_workers() -> None:
    """Wherever they stand: before all else for tasks, behind a jar for what plans a stream."""
    worker_python = Path(environment_module.__file__).with_name("worker-python")
    lib = "/spark home/python/lib"
    given = ["/a b/core.jar", f"{lib}/pyspark.zip", f"{lib}/py4j-1-src.zip", "/*", "/z.zip"]
    environment = {"SPARK_HOME": "/spark home", "COMETMQ_WORKER_PYTHON": sys.executable}
    program = ["-c", "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1:])", "an argument", "*"]
    for path in (given, given[1:], given[1:3] * 2, []):
        done = subprocess.run(
            [worker_python, *program],
            env=environment | {"PYTHONPATH": ":".join(path)},
            capture_output=True,
            text=True,
            check=True,
        )
        left = [entry for entry in path if not entry.startswith(lib)]
        assert done.stdout == f"{':'.join(left)} ['an argument', '*']\n"


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
from cometmq.spark.session.environment import local_session
try:
    local_session("local[1]", brief=True)
except KeyboardInterrupt:
    print("interrupted")
"""
    environment = os.environ | {"JAVA_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, "interrupted\n")


_MASTERS = """
import sys
from cometmq.cli.main import main
for master in ("locl[1]", "local[one]"):
    try:
        main(["pipeline", "skew", "--topic", sys.argv[1], "--master", master])
    except SystemExit as end:
        print(end.code)
"""


@pytest.mark.spark
def test_a_master_that_is_none_is_told_in_one_sentence(topics: Topics) -> None:
    there = os.environ | {NAMESRV_VARIABLE: topics.namesrv}
    program = [sys.executable, "-c", _MASTERS, topics.create(1)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, env=there)
    assert (done.returncode, done.stdout) == (0, "1\n1\n"), done.stderr
    for master in ("locl[1]", "local[one]"):
        assert f"cometmq: Spark does not start on {master}: " in done.stderr


def test_a_wrong_java_home_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkMissingError, match=rf"JAVA_HOME is {tmp_path}, which has no bin/java"):
        local_session("local[1]")


def test_a_java_that_does_not_start_is_named(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    program = "from cometmq.spark.session.environment import driver_session as of\nwith of(None, 'local', 'x'): pass"
    environment = os.environ | {"JAVA_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    java = f"{tmp_path}/bin/java"
    assert f"Spark's JVM does not start with {java} (check that {java} -version prints 17 or later" in done.stderr


@pytest.mark.parametrize(
    ("master", "cause"),
    [("spark://127.0.0.1:1", "connection refused"), ("spark://127.0.0.1:x", "port could not be cast")],
)
def test_a_standalone_master_that_is_not_there_is_told_at_once(master: str, cause: str) -> None:
    """Spark would try for a minute, and then hang."""
    with (
        pytest.raises(SparkSourceError, match=f"no Spark master listens at {master}: {cause}.*start-master.sh"),
        driver_session(None, master, "job"),
    ):
        pass


_KILLED = """
import os, signal
from pyspark import SparkContext
from cometmq.spark.errors import SparkSourceError
from cometmq.spark.session.environment import SparkMissingError, driver_session, local_session
from cometmq.spark.session.lost import SessionLostError

try:
    with driver_session(None, "local[1]", "killed") as session:
        os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
        session.range(1).count()
except SessionLostError as error:
    print(error)
try:
    with driver_session(session, "", ""):
        pass
except SessionLostError as error:
    print(error.message)
"""


@pytest.mark.spark
def test_a_session_whose_jvm_is_killed_is_told_in_one_sentence() -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED], capture_output=True, text=True, check=False)
    first, second = done.stdout.splitlines()
    assert first.startswith("Spark's JVM was killed by SIGKILL (check the system's log (dmesg) for a lack of memory")
    assert second == "the Spark session is stopped"
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


_INTERRUPTED = """
import os, signal, threading
from cometmq.spark.errors import SparkSourceError
from cometmq.spark.session.environment import SparkMissingError, driver_session, local_session

signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
try:
    with driver_session(None, "local[1]", "interrupted") as session:
        java = session._jvm.java
        gate = java.util.concurrent.Semaphore(0, True)
        waiting = threading.Thread(target=gate.acquireUninterruptibly)
        waiting.start()
        while not gate.hasQueuedThreads():
            pass
        over = java.lang.System.currentTimeMillis() + 1000
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            java.lang.Thread.sleep(500)
        except KeyboardInterrupt:
            while java.lang.System.currentTimeMillis() < over:
                pass
            print(gate.getQueueLength(), "waiting")
            gate.release(2)
            waiting.join()
            raise ValueError("what PySpark makes of it")
except KeyboardInterrupt as interruption:
    print(repr(interruption.__cause__))
"""


@pytest.mark.spark
def test_an_interruption_of_one_call_leaves_other_calls_of_the_jvm_alone() -> None:
    """A call that loses its connection is made again by py4j: two would wait."""
    words = [sys.executable, "-c", _INTERRUPTED]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    printed = "1 waiting\nValueError('what PySpark makes of it')\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


@pytest.mark.spark
def test_what_a_jvm_says_that_does_not_start_is_told(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho this is no Java >&2\nexit 1\n")
    java.chmod(0o755)
    program = "from cometmq.spark.session.environment import local_session; local_session('local[1]')"
    environment = os.environ | {"JAVA_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode != 0
    assert "this is no Java" in done.stderr
