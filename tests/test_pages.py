"""The pages as a reader uses them: links and anchors lead somewhere, names can be imported, nothing is left out."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cometmq.cli.main import root
from cometmq.errors import SERVER, SPARK, TESTING

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"
PAGES = [*(ROOT / name for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md")), *sorted(DOCS.rglob("*.md"))]
EXAMPLES = sorted(path.relative_to(ROOT / "examples").as_posix() for path in (ROOT / "examples").rglob("*.py"))


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_pages_and_headings_that_exist(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8")):
        place = (page.parent / target).resolve() if target else page
        assert place.exists(), target
        if anchor:
            assert anchor in anchors(place), f"{target}#{anchor}"


@pytest.mark.parametrize("chinese", sorted((DOCS / "zh-CN").glob("*.md")), ids=name_of)
def test_a_chinese_page_and_its_english_one_begin_with_links_to_each_other(chinese: Path) -> None:
    english = DOCS / chinese.name
    assert chinese.read_text(encoding="utf-8").startswith(f"[English](../{chinese.name})\n\n# ")
    assert english.read_text(encoding="utf-8").startswith(f"[简体中文](zh-CN/{chinese.name})\n\n# ")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_tests_that_a_page_names_exist(page: Path) -> None:
    """``folder/test_x.py::test_y``: the name of the folder may be left out."""
    missing = []
    for named, function in re.findall(r"`([\w/]*test_\w+\.py)(?:::(\w+))?`", page.read_text(encoding="utf-8")):
        files = [path for path in (ROOT / "tests").rglob(Path(named).name) if path.as_posix().endswith(f"/{named}")]
        if not any(f"def {function}(" in path.read_text(encoding="utf-8") or not function for path in files):
            missing.append(f"{named}::{function}")
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_page_imports_from_cometmq_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for statement in re.findall(r"^ *from cometmq[\w.]* import (?:\([^)]*\)|.*)$", text, re.MULTILINE):
        (imported,) = ast.parse(textwrap.dedent(statement)).body
        assert isinstance(imported, ast.ImportFrom)
        assert imported.module is not None
        module = importlib.import_module(imported.module)
        for alias in imported.names:
            assert hasattr(module, alias.name), statement


def test_the_index_has_every_page_and_every_example() -> None:
    linked = {(INDEX.parent / target).resolve() for target in re.findall(r"\]\(([^)#:]+)", INDEX.read_text("utf-8"))}
    assert {page for page in PAGES if page != INDEX} <= linked
    text = INDEX.read_text(encoding="utf-8")
    for example in EXAMPLES:
        assert f"`{example}`" in text or f"`{example.partition('/')[0]}/`" in text, example


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_run_by_a_test(example: str) -> None:
    name = re.escape(example.rpartition("/")[2])
    tests = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    folder = re.escape(example.rpartition("/")[0])
    whole = rf'"examples[/.]{folder}"' if folder else "nothing"
    assert any(re.search(f'"{name}"|{whole}', text) for text in tests)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_python_of_a_page_can_be_compiled(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        compile(block, name_of(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def calls(page: Path) -> Iterator[list[str]]:
    """The words of every call of ``cometmq`` that a page prints as a command line."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in re.findall(r"^(?: {4})?\$ (.*)$", text, re.MULTILINE):
        words = shlex.split(line, comments=True)
        if "cometmq" in words:
            after = words[words.index("cometmq") + 1 :]
            yield after[: next((place for place, word in enumerate(after) if word in ("<", ">", "|")), None)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_commands_of_a_page_have_the_options_that_they_are_given(page: Path) -> None:
    for words in calls(page):
        command: click.Command = root
        rest = list(words)
        while isinstance(command, click.Group) and rest:
            member = command.get_command(click.Context(command), rest[0])
            if member is None and command.invoke_without_command:
                break
            assert member is not None, words
            command = member
            rest.pop(0)
        known = {name for option in command.params if isinstance(option, click.Option) for name in option.opts}
        given = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        assert given <= known, words


def test_the_index_explains_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    install = INDEX.read_text(encoding="utf-8").partition("## Install")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", install, re.MULTILINE)
    explained = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(explained) == sorted(project["optional-dependencies"])
    assert {SERVER, SPARK, TESTING} <= set(explained)
    for page in PAGES:
        for extras in re.findall(r"(?:cometmq|'\.)\[([\w,]+)\]", page.read_text(encoding="utf-8")):
            assert set(extras.split(",")) <= set(explained), name_of(page)


MOST_WORDS = 35
"""Of a sentence: a reader with school English understands it at the first reading."""


def sentences(page: Path) -> Iterator[str]:
    """The sentences of a page's prose, without tables and code."""
    text = re.sub(r"^```.*?^```|<!--.*?-->|^ {4}.*?$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    text = re.sub(r"`[^`]*`", "code", text)
    for block in re.split(r"\n\s*\n|\n(?=[*\-|#\d])", text):
        if not block.startswith("|") and " · " not in block:
            yield from (" ".join(found.split()) for found in re.split(r"(?<=[.!?])\s+|: ", block))


@pytest.mark.parametrize("page", [page for page in PAGES if "zh-CN" not in str(page)], ids=name_of)
def test_no_sentence_is_long(page: Path) -> None:
    assert [found for found in sentences(page) if len(found.split()) > MOST_WORDS] == []
