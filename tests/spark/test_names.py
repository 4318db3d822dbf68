"""The public names of Spark's package load their modules when they are asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

import cometmq.archive
import cometmq.spark


@pytest.mark.parametrize("name", cometmq.spark.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(cometmq.spark, name) is not None


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'cometmq\.spark' has no attribute 'Nothing'"):
        cometmq.spark.Nothing  # noqa: B018


def test_the_package_alone_loads_neither_pyspark_nor_pyarrow() -> None:
    program = "import sys, cometmq.spark; print({'pyspark', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_errors_load_no_archive_and_its_names_are_there() -> None:
    program = """
import sys, cometmq.spark.errors, cometmq.archive
print(sorted(name for name in sys.modules if name.startswith("cometmq.archive.")))
assert all(getattr(cometmq.archive, name) for name in cometmq.archive.__all__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "['cometmq.archive.errors']\n"
    with pytest.raises(AttributeError, match=r"module 'cometmq\.archive' has no attribute 'Nothing'"):
        cometmq.archive.Nothing  # noqa: B018
