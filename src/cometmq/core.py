"""Loads the compiled core (``native/``) and reports which code is used.

Everything works without the core, with the Python reference code. ``COMETMQ_CORE=python`` disables it. A core that was
built from sources other than this package's is not loaded.
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
    """Return the hash of the core sources that this package needs, and how to get such a core."""
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
"""The module ``cometmq_core``, or None; the code in use, as text; and how to get the compiled core if it is not in
use."""
