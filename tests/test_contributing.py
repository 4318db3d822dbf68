"""CONTRIBUTING.md: its paths exist (links: ``test_pages.py``), and each file names its classes of RocketMQ."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([A-Za-z, ]+) \| (\[`.*) \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("path", sorted({*re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", PAGE)} - {"spark/jobs/tally.py"}))
def test_a_path_below_the_source_exists(path: str) -> None:
    assert (ROOT / "src" / "cometmq" / path).is_file()


@pytest.mark.parametrize(("concepts", "files"), ROWS, ids=[concepts for concepts, _ in ROWS])
def test_a_file_names_the_concept_that_it_stands_for(concepts: str, files: str) -> None:
    texts = [(ROOT / path).read_text(encoding="utf-8") for path in re.findall(r"\(([^)]+)\)", files)]
    for concept in concepts.split(", "):
        assert any(re.search(rf"\b{concept}\b", text) for text in texts), concept


def test_the_table_has_the_concepts_of_every_part() -> None:
    assert len(ROWS) >= 60


@pytest.mark.parametrize("page", ["README.md", "docs/README.md"])
def test_pages_lead_there(page: str) -> None:
    assert "CONTRIBUTING.md)" in (ROOT / page).read_text(encoding="utf-8")
