"""A Spark home for tests: programs and jars as installed, without PySpark in a zip.

Spark puts that zip before all else on the path of every Python process that it starts. It holds no byte code, so each
of them compiles a few hundred modules again, which takes longer than what most do in a test. Without the zip they
import the same modules from where PySpark is installed.
"""

from __future__ import annotations

from pathlib import Path


def spark_home(directory: Path) -> Path:
    """Make one in a directory; what ``SPARK_HOME`` is to be."""
    import pyspark

    installed, home = Path(pyspark.__file__).parent, directory / "spark-home"
    home.mkdir()
    for name in ("bin", "jars"):
        (home / name).symlink_to(installed / name)
    return home
