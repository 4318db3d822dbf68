"""References such as :meth:`…` in docstrings name things that exist."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.glob("cometmq/**/*.py"))}
ROOMS = sorted({path.relative_to(SOURCE / "cometmq").parts[0] for path in TREES})
REFERENCE = re.compile(r":(?:mod|class|func|meth|attr|data|exc|const|obj):`(?:[^`]*<)?~?([^`>]+)>?`")


@cache
def attributes() -> dict[str, set[str]]:
    """Names that the methods of each class set, or its body declares: they exist only in instances."""
    found: dict[str, set[str]] = defaultdict(set)
    for tree in TREES.values():
        for a_class in ast.walk(tree):
            if isinstance(a_class, ast.ClassDef):
                for node in ast.walk(a_class):
                    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                        found[a_class.name].add(node.attr)
                    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                        found[a_class.name].add(node.target.id)
    return found


def has(thing: object, path: list[str]) -> bool:
    for name in path:
        if not hasattr(thing, name):
            return isinstance(thing, type) and any(name in attributes()[base.__name__] for base in thing.__mro__)
        thing = getattr(thing, name)
    return True


@cache
def exists(name: str) -> bool:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        return has(module, parts[end:])
    return False


def docstrings(node: ast.AST, classes: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each docstring, and the classes around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant) and isinstance(child.value.value, str):
            yield child.value.value, classes
        else:
            yield from docstrings(child, (*classes, child.name) if isinstance(child, ast.ClassDef) else classes)


def unknown_references(path: Path) -> Iterator[str]:
    module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    package = module.rpartition(".")[0]
    module = module.removesuffix(".__init__")
    for text, classes in docstrings(TREES[path]):
        for found in REFERENCE.finditer(text):
            name = re.sub(r"\s", "", found[1])
            if name.startswith("."):
                names = [package + name]
            else:
                around = [".".join((module, *classes[:depth], name)) for depth in range(len(classes) + 1)]
                names = [name, *around, f"{package}.{name}"]
            if not (hasattr(builtins, name.split(".")[0]) or any(map(exists, names))):
                yield f"{path.relative_to(SOURCE)}: {found[0]}"


@pytest.mark.parametrize("room", ROOMS)
def test_a_reference_in_a_docstring_names_something_that_exists(room: str) -> None:
    paths = [path for path in TREES if path.relative_to(SOURCE / "cometmq").parts[0] == room]
    assert [unknown for path in paths for unknown in unknown_references(path)] == []
