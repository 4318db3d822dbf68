"""The compiled core (``native/``): whether it is there, and why not.

Everything works without it, by the Python code that is its reference. ``COMETMQ_CORE=python`` leaves it out. A core
that was built from other sources than this package belongs to is not loaded.
"""

from __future__ import annotations

import importlib
import os
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from cometmq.core_sources import FILE, sources_hash

_PACKAGE: Final = Path(__file__).parent


NOT_BUILT: Final = "install Rust (https://rustup.rs), then: pip install ./native"


def _wanted() -> tuple[str | None, str]:
    """The hash of the core's sources that this package belongs to, and how to get a core of that hash."""
    native = _PACKAGE.parents[1] / "native"
    if _PACKAGE.parent.name == "src" and native.is_dir():
        return sources_hash(native), f"pip install --force-reinstall --no-deps {native}"
    anew = (
        "install cometmq and cometmq-core of one version: pip install --force-reinstall --no-deps cometmq cometmq-core"
    )
    try:
        return files("cometmq").joinpath(FILE).read_text(encoding="ascii").strip(), anew
    except OSError:
        return None, anew


def _load() -> tuple[Any, str, str]:
    if os.environ.get("COMETMQ_CORE") == "python":
        return None, "Python (COMETMQ_CORE=python)", "unset COMETMQ_CORE"
    try:
        core = importlib.import_module("cometmq_core")
    except ModuleNotFoundError:
        return None, "Python (cometmq-core is not installed)", NOT_BUILT
    except ImportError as error:
        return None, f"Python (cometmq-core: {error})", NOT_BUILT
    wanted, anew = _wanted()
    if wanted is None or getattr(core, "SOURCES", None) != wanted:
        return None, "Python (cometmq-core was built from other sources than these of cometmq)", anew
    return core, "compiled (cometmq-core)", ""


CORE, PATH, NEXT_STEP = _load()
"""The module ``cometmq_core``, or None; words that say which code runs; how to get the compiled core if it does not."""
