"""The result of a single ``cometmq doctor`` check."""

from __future__ import annotations

from typing import Final, NamedTuple

OK: Final = "ok"
ADVICE: Final = "advice"
PROBLEM: Final = "problem"


class Finding(NamedTuple):
    """The result of a check and the recommended next step."""

    check: str
    state: str
    found: str
    todo: str = ""
