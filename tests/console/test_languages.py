"""Every text of the console is in every catalogue, and no catalogue has texts that nobody uses."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from string import Formatter

import pytest

import cometmq.console
from cometmq.console.languages import ENGLISH, LANGUAGES, catalogue, preferred, translated

ROOM = Path(cometmq.console.__file__).parent
_IN_TEMPLATES = re.compile(r"""\b_\(\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")


def texts() -> set[str]:
    found = {
        ast.literal_eval(text)
        for file in ROOM.rglob("*.html")
        for text in _IN_TEMPLATES.findall(file.read_text(encoding="utf-8"))
    }
    for file in ROOM.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "t":
                assert isinstance(node.args[0], ast.Constant), f"{file.name}:{node.lineno}: the text must stand there"
                found.add(node.args[0].value)
    return found


@pytest.mark.parametrize("language", sorted(set(LANGUAGES) - {ENGLISH}))
def test_a_catalogue_has_all_texts_and_no_others_with_the_same_values(language: str) -> None:
    known = catalogue(language)
    assert sorted(texts() - known.keys()) == []
    assert sorted(known.keys() - texts()) == []
    assert [text for text, other in known.items() if _values(text) != _values(other)] == []


def _values(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def test_the_language_of_a_first_visit_is_that_of_the_browser() -> None:
    assert preferred("fr-FR,zh-CN;q=0.8,en;q=0.5") == "zh"
    assert preferred("fr") == "en"
    assert translated("zh", "Log out {name}", name="{x}") == "退出 {x}"
