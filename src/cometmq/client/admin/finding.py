"""The result of one check of ``cometmq doctor``."""

from __future__ import annotations

from typing import Final, NamedTuple

OK: Final = "ok"
ADVICE: Final = "advice"
PROBLEM: Final = "problem"


class Finding(NamedTuple):
    """The result of one check, and the recommended next step."""

    check: str
    state: str
    found: str
    todo: str = ""
