"""The compiled core (``native/``): whether it is there, and why not.

Everything works without it, by the Python code that is its reference. ``COMETMQ_CORE=python`` leaves it out.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Final

INTERFACE: Final = 10
"""The version of the core's interface that this package knows."""


def _load() -> tuple[Any, str]:
    if os.environ.get("COMETMQ_CORE") == "python":
        return None, "Python (COMETMQ_CORE=python)"
    try:
        core = importlib.import_module("cometmq_core")
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        return None, "Python (cometmq-core is not installed)" if missing else f"Python (cometmq-core: {error})"
    if core.INTERFACE != INTERFACE:
        return None, f"Python (cometmq-core has interface {core.INTERFACE}, not {INTERFACE}: install both anew)"
    return core, "compiled (cometmq-core)"


CORE, PATH = _load()
"""The module ``cometmq_core``, or None; and words that say which path runs."""
