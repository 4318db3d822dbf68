"""The set-up of Spark in tests, whose drivers run for a few seconds: it starts and ends quickly.

Half of what such a driver works is loading classes. The JVM takes them ready-made from an archive that one run of
``first_run.py`` has written (AppCDS), kept beside the other builds. An archive suits one class path, so Spark's home
stands there too, whatever environment PySpark is installed in. Settings are given as a file of properties: a directory
of configuration stands on the class path and has to be empty. A JVM that an archive does not suit does without it.
Their Python is that of :mod:`tests.spark.forking`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.interop.builds import QUICK_JAVA, Build, built
from tests.spark.forking import forking_python

_SETTINGS = """
spark.driver.extraJavaOptions  {java}
"""
_BIG_JAVA = (
    "-XX:MetaspaceSize=256m",  # collects no garbage of the whole heap because classes have been loaded
    "-XX:ReservedCodeCacheSize=128m",
    "-XX:-UseCodeCacheFlushing",  # looks for no compiled code to give up
    "-Djdk.lang.Process.launchMechanism=VFORK",  # starts a program without a program that starts it
)
_ARCHIVE = "classes.jsa"
_FIRST_RUN = Path(__file__).with_name("first_run.py")
_LOCAL_FILES = Path(__file__).with_name("java") / "LocalFiles.java"
_SIGNATURE = re.compile(r"META-INF/[^/]+\.(SF|DSA|RSA|EC)")
_CORE_SITE = _LOCAL_FILES.with_name("core-site.xml")


FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.ui.explainMode": "simple",
}
"""Settings for queries of few rows: they run quicker than their code compiles, and nobody sees their plans, which Spark
writes for a web page at each step. The demo runs without these."""


def quick_drivers(directory: Path, java: str = "", more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of drivers: their settings, a file in this directory, and their Spark.

    :param java: more options of their JVMs.
    :param more: more settings.
    """
    settings = directory / "spark-defaults.conf"
    settings.write_text(_SETTINGS.format(java=f"{java_options()} {java}") + lines_of(more or {}))
    return {
        "PYSPARK_SUBMIT_ARGS": f"--properties-file {shlex.quote(str(settings))} pyspark-shell",
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": str(forking_python()),
        "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")])),
    }


def lines_of(settings: Mapping[str, str]) -> str:
    """Settings as a file has them."""
    return "".join(f"{name} {value}\n" for name, value in settings.items())


def java_options() -> str:
    """Options of every JVM of Spark."""
    return _java_options(f"-XX:SharedArchiveFile={spark_home() / _ARCHIVE}")


def _java_options(archive: str) -> str:
    return " ".join((*QUICK_JAVA, *_BIG_JAVA, archive, "-Xlog:cds=off", "-Xlog:cds+dynamic=off"))


def class_path() -> str:
    """The class path of Spark's own programs, as its scripts make it: an archive suits no other order."""
    (first,) = (spark_home() / "jars").glob("slf4j-api-*.jar")
    return f"{spark_home() / 'conf'}/:{first}:{spark_home() / 'jars'}/*"


@cache
def spark_home() -> Path:
    """Spark's home for this version of PySpark and of Java: its programs, its jars, the archive.

    It is without PySpark in a zip. Spark puts that zip before all else on the path of every Python process that it
    starts. It holds no byte code, so each of them compiles a few hundred modules again, which takes longer than what
    most do in a test. Without the zip they import the same modules from where PySpark is installed.
    """
    import pyspark

    installed = Path(pyspark.__file__).parent
    java = java_command().resolve()
    release = java.parents[1] / "release"
    place = hashlib.sha256(str(java).encode()).hexdigest()[:12]
    own_sources = (Path(__file__), _FIRST_RUN, _LOCAL_FILES, _CORE_SITE)
    sources = (installed / "version.py", *([release] if release.exists() else ()), *own_sources)

    def make(home: Path) -> None:
        shutil.copytree(installed / "bin", home / "bin")
        (home / "jars").mkdir()
        for jar in (installed / "jars").glob("*.jar"):
            _bring(jar, home / "jars" / jar.name)
        if not java.exists():
            return  # all tests that start Spark are skipped
        if (compiler := java.with_name("javac")).exists():
            _add_local_files(compiler, home)
        options = _java_options(f"-XX:ArchiveClassesAtExit={home / _ARCHIVE}")
        own = {
            "SPARK_HOME": str(home),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": f"--driver-java-options {shlex.quote(options)} pyspark-shell",
        }
        environment = {name: value for name, value in os.environ.items() if name != "SPARK_CONF_DIR"} | own
        done = subprocess.run(
            [sys.executable, str(_FIRST_RUN)], env=environment, cwd=home, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]

    return built(Build(f"spark-{place}", sources, make))


def _bring(jar: Path, target: Path) -> None:
    """Link or copy a jar there; without its signature, if it has one."""
    with zipfile.ZipFile(jar) as signed:
        if not any(_SIGNATURE.fullmatch(name) for name in signed.namelist()):
            try:
                target.hardlink_to(jar)
            except OSError:  # another file system
                shutil.copy2(jar, target)
            return
        with zipfile.ZipFile(target, "w") as copy:
            for name in signed.namelist():
                if not _SIGNATURE.fullmatch(name):
                    copy.writestr(name, signed.read(name))


def _add_local_files(compiler: Path, home: Path) -> None:
    """Compile our local files into a jar; its ``core-site.xml`` names them to Hadoop in every JVM with these jars."""
    classes = home / "classes"
    (api,) = (home / "jars").glob("hadoop-client-api-*.jar")
    command = [str(compiler), "-proc:none", "-d", str(classes), "-cp", str(api), str(_LOCAL_FILES)]
    subprocess.run(command, check=True, capture_output=True)
    with zipfile.ZipFile(home / "jars" / "local-files.jar", "w") as jar:
        for file in (*sorted(classes.iterdir()), _CORE_SITE):
            jar.write(file, file.name)
    shutil.rmtree(classes)


def java_command() -> Path:
    """The Java that Spark's scripts take, which may not be there."""
    home = os.environ.get("JAVA_HOME")
    return Path(home, "bin", "java") if home else Path(shutil.which("java") or "/usr/bin/java")
