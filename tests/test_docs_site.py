"""The site of ``make docs``: every page and every public name is in it, and no link leads nowhere."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it; a link or an anchor that leads nowhere, or a page without a place in the navigation, is an error."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def test_a_page_stands_in_its_own_section(site: Path) -> None:
    """Extras of *Install* also link to pages of other sections."""
    for page, section in (("client", "Send"), ("operations", "Run"), ("performance", "Run"), ("spark", "Spark")):
        html = (site / f"{page}.html").read_text(encoding="utf-8")
        active = re.search(r'md-tabs__item--active">\s*<a[^>]*>(.*?)</a>', html, re.DOTALL)
        assert active is not None
        assert re.sub(r"<[^>]+>", "", active[1]).split() == [section]


def test_the_reference_has_every_name_that_programs_import(site: Path) -> None:
    for page in sorted((site / "api").glob("cometmq*.html")):
        module = importlib.import_module(page.stem)
        ids = set(re.findall(r'id="([^"]+)"', page.read_text(encoding="utf-8")))
        assert {f"{page.stem}.{name}" for name in module.__all__} <= ids
    assert len(list((site / "api").glob("cometmq*.html"))) >= 4


def test_pages_of_both_languages_can_be_searched(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        place = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix().replace("README", "index")
        assert f'"location":"{place}' in index, place


def test_links_to_sources_lead_to_copies(site: Path) -> None:
    page = (site / "contributing.html").read_text(encoding="utf-8")
    places = re.findall(r'href="(source/[^"#]+)"', page)
    assert len(places) > 100
    assert all((site / place).is_file() for place in places)
