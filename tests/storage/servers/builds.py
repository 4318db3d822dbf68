"""Servers that npm and Maven bring, once, into the cache of the interop tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.interop.builds import Build, built, java, tool

HERE = Path(__file__).resolve().parent


def azurite() -> Path:
    """Microsoft's emulator of Azure's storage: ``node_modules``."""
    sources = (HERE / "azurite" / "package.json",)

    def make(target: Path) -> None:
        shutil.copy(sources[0], target)
        _run([tool("npm"), "install", "--ignore-scripts", "--no-audit", "--no-fund"], target)

    tool("node")
    return built(Build("azurite", sources, make))


def hadoop() -> Path:
    """The jars of HDFS in one process: ``lib``."""
    pom = HERE / "hadoop" / "pom.xml"

    def make(target: Path) -> None:
        options = ["-q", "-B", "-f", str(pom), f"-Doutput.directory={target}"]
        _run([tool("mvn"), *options, "dependency:copy-dependencies"], target)

    java()
    return built(Build("hadoop", (pom,), make))


def _run(command: list[str], directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
