"""The harness itself: what is missing is named, what is built is built once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.interop import builds
from tests.interop.conftest import REQUIRE, unavailable


@pytest.fixture(autouse=True)
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_cache_is_where_the_environment_wants_it(cache_directory: Path) -> None:
    assert builds.cache_root().is_relative_to(cache_directory)


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(builds.ToolMissingError, match="go is not installed"):
        builds.go_client()


def test_a_missing_tool_skips_unless_nothing_may_be_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = builds.ToolMissingError("go is not installed")
    monkeypatch.delenv(REQUIRE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="go is not installed"):
        unavailable(problem)
    monkeypatch.setenv(REQUIRE, "1")
    with pytest.raises(pytest.fail.Exception, match="go is not installed"):
        unavailable(problem)


def test_a_build_is_made_once_by_many_and_again_when_its_sources_change(tmp_path: Path) -> None:
    source, made = tmp_path / "source", []
    source.write_text("one")

    def make(target: Path) -> None:
        made.append(target)
        (target / "product").write_text(source.read_text())

    def build() -> Path:
        return builds.built(builds.Build("thing", (source,), make))

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    first = build()
    source.write_text("two")
    assert build() != first
    assert (build() / "product").read_text() == "two"


def test_a_build_that_failed_is_made_anew(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("one")
    attempts = []

    def make(target: Path) -> None:
        attempts.append(target)
        (target / "half").touch(exist_ok=False)
        if len(attempts) == 1:
            raise RuntimeError("the registry is away")

    build = builds.Build("thing", (source,), make)
    with pytest.raises(RuntimeError, match="registry"):
        builds.built(build)
    assert (builds.built(build) / "half").exists()
