"""How Spark is set up in tests, whose drivers live for a few seconds: what starts and ends quickly."""

from __future__ import annotations

import os
from pathlib import Path

JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # compiles quickly rather than well
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"  # takes the jars' classes for what they are
)
_SETTINGS = f"""
spark.driver.extraJavaOptions  {JAVA} {{java}}
spark.python.daemon.module     tests.spark.daemon
"""
"""Python workers are forked from a process that has imported what they need."""


def quick_drivers(directory: Path, java: str = "") -> dict[str, str]:
    """Environment of drivers: their defaults and their Spark, which are in this directory.

    :param java: more options of their JVMs.
    """
    (directory / "spark-defaults.conf").write_text(_SETTINGS.format(java=java))
    return {
        "SPARK_CONF_DIR": str(directory),
        "SPARK_HOME": str(spark_home(directory)),
        "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")])),
    }


def spark_home(directory: Path) -> Path:
    """Make a Spark home in a directory: programs and jars as installed, without PySpark in a zip.

    Spark puts that zip before all else on the path of every Python process that it starts. It holds no byte code, so
    each of them compiles a few hundred modules again, which takes longer than what most do in a test. Without the zip
    they import the same modules from where PySpark is installed.
    """
    import pyspark

    installed, home = Path(pyspark.__file__).parent, directory / "spark-home"
    home.mkdir()
    for name in ("bin", "jars"):
        (home / name).symlink_to(installed / name)
    return home
