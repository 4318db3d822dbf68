"""The Spark of tests: quicker than the installed one, and the same in what it does."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.spark
def test_local_files_get_their_permissions_without_a_process_for_each(spark: Any, tmp_path: Path) -> None:
    """By both of Hadoop's interfaces: that of data files, and that of checkpoints."""
    if shutil.which("javac") is None:
        pytest.skip("there is no javac: Hadoop starts a process for each file")
    fs, configuration = spark._jvm.org.apache.hadoop.fs, spark._jsc.hadoopConfiguration()
    place, at = tmp_path / "file", fs.Path((tmp_path / "file").as_uri())
    files = at.getFileSystem(configuration)
    context = fs.FileContext.getFileContext(at.toUri(), configuration)
    assert files.getClass().getName() == "LocalFiles"
    assert context.getDefaultFileSystem().getClass().getName() == "LocalFiles$OfContext"

    files.create(at).close()
    assert place.with_name(".file.crc").exists()
    for interface, mode in ((files, 0o640), (context, 0o604), (files, 0o755)):
        interface.setPermission(at, fs.permission.FsPermission(f"{mode:o}"))
        assert place.stat().st_mode & 0o7777 == mode
