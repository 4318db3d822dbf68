"""Environments with CometMQ's wheel, some of its extras, and nothing else, as pip installs them, in less than a second.

The packages that the wheel requires are those of the environment that runs the tests, as links; a package
that is not required is not there; one in a version that is not allowed fails the test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, PathDistribution, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROMISES = ROOT / "tests" / "deploy" / "promises.py"


def build_wheel(place: Path) -> Path:
    """Build the wheel of this checkout into ``place``."""
    pytest.importorskip("hatchling", reason="hatchling is not installed (--group dev)")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(words, cwd=ROOT, capture_output=True, check=True)
    [wheel] = place.glob("*.whl")
    return wheel


class FreshEnvironment:
    """A virtual environment with the wheel, some of its extras and other packages by name."""

    def __init__(self, place: Path, wheel: Path, extras: set[str], others: tuple[str, ...] = ()) -> None:
        venv.create(place, symlinks=True)
        self.python = place / "bin" / "python"
        [self._packages] = place.glob("lib/python*/site-packages")
        for unpacked in _unpacked(wheel).iterdir():
            (self._packages / unpacked.name).symlink_to(unpacked)
        [metadata] = self._packages.glob("cometmq-*.dist-info")
        self._there: set[tuple[str, str]] = set()
        self._take(PathDistribution(metadata), {"", *extras})
        for name in others:
            self._take_required(Requirement(name))

    def _take(self, package: Distribution, extras: set[str]) -> None:
        """Link what a package requires with these extras, of which ``""`` stands for none."""
        for requirement in map(Requirement, package.requires or ()):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                self._take_required(requirement)

    def _take_required(self, requirement: Requirement) -> None:
        name = canonicalize_name(requirement.name)
        new = {"", *requirement.extras} - {extra for there, extra in self._there if there == name}
        if not new:
            return
        self._there |= {(name, extra) for extra in new}
        if name == "cometmq":
            [metadata] = self._packages.glob("cometmq-*.dist-info")
            self._take(PathDistribution(metadata), new)
            return
        try:
            package = distribution(name)
        except PackageNotFoundError:
            pytest.skip(f"{name} is not installed here (scripts/setup test)")
        assert requirement.specifier.contains(package.version, prereleases=True), f"{requirement}: {package.version}"
        if "" in new:
            self._link(package)
        self._take(package, new)

    def _link(self, package: Distribution) -> None:
        """Link the folders that are the package's alone, and its files in folders that it shares."""
        paths = {path if _owners()[path.parts[0]] > 1 else Path(path.parts[0]) for path in package.files or ()}
        for path in paths:
            if path.parts[0] == "..":  # a command, a page of the manual
                continue
            link = self._packages / path
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                link.symlink_to(Path(str(package.locate_file(path))))

    @property
    def packages(self) -> set[str]:
        """The names of what was installed beside CometMQ."""
        return {name for name, _ in self._there} - {"cometmq"}

    def run(self, *words: str, place: Path) -> subprocess.CompletedProcess[str]:
        """Run Python in the directory ``place`` with these arguments, without the tests' own path and options."""
        return subprocess.run(
            [str(self.python), *words],
            cwd=place,
            env=dict(_environment()),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )


@cache
def _unpacked(wheel: Path) -> Path:
    """A directory with what is in the wheel: its environments share one, and so the byte code of its modules."""
    place = wheel.parent / "unpacked"
    zipfile.ZipFile(wheel).extractall(place)
    return place


@cache
def _owners() -> Counter[str]:
    """The number of packages that have something in each folder of ``site-packages``."""
    return Counter(folder for package in distributions() for folder in {path.parts[0] for path in package.files or ()})


def _environment() -> Iterator[tuple[str, str]]:
    for name, value in os.environ.items():
        if not name.startswith(("PYTHON", "PYTEST", "PYSPARK", "COMETMQ")):
            yield name, value


def keep_promise(place: Path, wheel: Path, extra: str, *words: str, name: str | None = None) -> FreshEnvironment:
    """Run the promise of an extra (``tests/deploy/promises.py``) where only it is installed; ``""`` stands for none."""
    environment = FreshEnvironment(place / "environment", wheel, {extra})
    (place / "work").mkdir()
    done = environment.run("-W", "error::ImportWarning", str(PROMISES), name or extra, *words, place=place / "work")
    assert done.returncode == 0, done.stdout + done.stderr
    return environment
