"""Every code block of the pages runs as printed; a block that does not has a comment that says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.code_blocks import ROOT, Block, Runner, blocks_of

from cometmq.broker.config import BrokerConfig
from cometmq.namesrv.config import NamesrvConfig
from cometmq.options import spellings_of
from cometmq.properties_file import parse_properties
from cometmq.testing import SyncCluster

PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))]
RUN = ("console", "python")
SPARK = ("docs/archive.md", "docs/mask.md", "docs/spark", "docs/tables.md")


def of(kinds: tuple[str, ...], *, spark: bool) -> list[str]:
    """The pages with blocks of these languages, with or without those that need Spark."""
    pages = [page for page in PAGES if page.startswith(SPARK) == spark]
    return [page for page in pages if any(block.language in kinds for block in blocks_of(page))]


@pytest.mark.parametrize("page", of(RUN, spark=False))
def test_the_blocks_of_a_page_run_as_printed(page: str, tmp_path: Path) -> None:
    blocks = blocks_of(page)
    with SyncCluster() as cluster:
        runner = Runner(tmp_path, cluster.namesrv_address)
        for block in blocks:
            if block.language in RUN or block.file is not None:
                runner.run(block)
    if any(block.is_test for block in blocks):
        run_pytest(tmp_path)


def run_pytest(directory: Path) -> None:
    """Run the tests of a page, in a project of their own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "NAMESRV"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={directory}", "."]
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


@pytest.mark.parametrize("page", of(("properties",), spark=False))
def test_the_keys_of_configuration_files_are_known(page: str) -> None:
    known = {*spellings_of(BrokerConfig), *spellings_of(NamesrvConfig)}
    for block in blocks_of(page):
        if block.language == "properties":
            assert {key for _, key, _ in parse_properties(block.code)} <= known, block


def test_a_block_that_is_not_run_says_why() -> None:
    skipped = [block for page in PAGES for block in blocks_of(page) if block.marker == "not run"]
    assert all(len(block.said.split()) >= 3 for block in skipped), [str(block) for block in skipped]


TRANSLATED = {
    "README.zh-CN.md": "README.md",
    **{f"docs/zh-CN/{path.name}": f"docs/{path.name}" for path in sorted((ROOT / "docs/zh-CN").glob("*.md"))},
}


@pytest.mark.parametrize("chinese", TRANSLATED)
def test_a_chinese_page_has_the_blocks_of_the_english_one(chinese: str) -> None:
    def code(block: Block) -> Any:
        return block.language, block.marker, [line.partition("  #")[0] for line in block.code.splitlines()]

    def indented(page: str) -> list[str]:
        return [line for line in (ROOT / page).read_text(encoding="utf-8").splitlines() if line.startswith("    ")]

    english = TRANSLATED[chinese]
    assert list(map(code, blocks_of(chinese))) == list(map(code, blocks_of(english)))
    assert [line.partition("  #")[0] for line in indented(chinese)] == [
        line.partition("  #")[0] for line in indented(english)
    ]
