"""The sources of the compiled core: constants of the layouts, and modules that import only downwards."""

from __future__ import annotations

import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def imports(crate: Path) -> dict[str, set[str]]:
    """The modules of a crate that each of its modules uses outside its tests."""
    used = {}
    for source in crate.glob("*.rs"):
        text = source.read_text(encoding="utf-8").partition("#[cfg(test)]")[0]
        used[source.stem] = set(re.findall(r"\b(?:crate|super)::(\w+)", text))
    return used


def test_the_constants_of_the_core_are_those_of_the_layouts() -> None:
    """After a change of the layouts: scripts/core_constants, and build the core."""
    script = ROOT / "scripts" / "core_constants"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("crate", ["native/src", "native/codec/src"])
def test_no_module_of_the_core_imports_itself_through_others(crate: str) -> None:
    used = imports(ROOT / crate)
    assert any(used.values())
    try:
        graphlib.TopologicalSorter(used).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" uses ".join(reversed(error.args[1])))
