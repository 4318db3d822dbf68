"""README and docs/cli.md: what is printed there runs, and what they link to exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import CommandLine

from cometmq.testing import ProcessCluster

ROOT = Path(__file__).parents[2]
READMES = ["README.md", "README.zh-CN.md"]


def blocks(readme: str, language: str) -> list[str]:
    text = (ROOT / readme).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("readme", READMES)
def test_the_example_runs_as_printed(readme: str, tmp_path: Path) -> None:
    example, expected = blocks(readme, "python")[0], blocks(readme, "text")[0]
    assert len([line for line in example.splitlines() if line]) <= 10
    with ProcessCluster(data=tmp_path) as cluster:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", example],
            env={**os.environ, "NAMESRV_ADDR": cluster.namesrv_address},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == expected


async def test_the_test_example_runs_as_printed() -> None:
    example = blocks("README.md", "python")[1]
    scope: dict[str, object] = {}
    exec(example, scope)
    test = scope["test_something"]
    assert callable(test)
    await test()


def test_both_readmes_show_the_same_code() -> None:
    for language in ("python", "console", "text"):
        english, chinese = ([_code_only(block) for block in blocks(readme, language)] for readme in READMES)
        assert english == chinese


def _code_only(block: str) -> str:
    """Without trailing comments, which are in the README's language."""
    return re.sub(r"\s+#.*", "", block)


@pytest.mark.parametrize("readme", READMES)
def test_the_tour_runs_as_printed(readme: str, cometmq: CommandLine) -> None:
    tour = next(block for block in blocks(readme, "console") if "topic create" in block)
    for line in re.findall(r"^\$ (.*)$", tour, re.MULTILINE):
        runnable = re.sub(r"\bcometmq\b", f"{sys.executable} -m cometmq", line)
        done = subprocess.run(
            runnable, shell=True, env=cometmq.environment, capture_output=True, text=True, timeout=240, check=False
        )
        missing = "doctor" in line
        assert done.returncode == 0 or (missing and done.returncode == 1), (line, done.stderr)
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("page", [*READMES, "docs/cli.md"])
def test_links_lead_somewhere(page: str) -> None:
    place = (ROOT / page).parent
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        assert (place / target).exists(), target


def test_docs_name_every_command(offline: CommandLine) -> None:
    names = re.findall(r"^  (\w+) {2,}", offline("--help").out.partition("Commands:")[2], re.MULTILINE)
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}" not in text] == []
