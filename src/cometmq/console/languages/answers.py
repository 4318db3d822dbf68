"""Translates findings and errors, which servers and the client report in English.

The console receives them as complete sentences. The catalogue uses placeholders in braces for values: ``disk of
{what}``. A value named ``reason`` is a sentence that is also translated, and an error may contain its next step in
brackets. A text without a match remains in English.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Final

from cometmq.console.languages import ENGLISH

_LONGEST: Final = 2_000
"""Maximum length of a text that is translated. Longer texts remain in English."""
_DEPTH: Final = 3
_REASON: Final = "reason"
_VALUE: Final = re.compile(r"\{(\w+)\}")


@cache
def sentences(language: str) -> Sequence[tuple[re.Pattern[str], str]]:
    """Return the English sentences as patterns, each with its translation. The result is empty for English.

    Patterns with more words of their own come first, since a short one may also match the sentences of others.
    """
    if language == ENGLISH:
        return ()
    text = files(__name__.rpartition(".")[0]).joinpath(f"answers_{language}.json").read_text(encoding="utf-8")
    found = sorted(json.loads(text).items(), key=lambda pair: len(_VALUE.sub("", pair[0])), reverse=True)
    return [(_pattern(english), other) for english, other in found]


def _pattern(english: str) -> re.Pattern[str]:
    pieces = _VALUE.split(english)
    parts = (f"(?P<{piece}>.+?)" if at % 2 else re.escape(piece) for at, piece in enumerate(pieces))
    return re.compile("".join(parts), re.DOTALL)


def answer_in(language: str, text: str, depth: int = _DEPTH) -> str:
    """Translate a sentence from a finding or an error. If there is no translation, return it unchanged."""
    if len(text) > _LONGEST:
        return text
    for pattern, other in sentences(language):
        found = pattern.fullmatch(text)
        if found is not None:
            values = found.groupdict()
            if depth and _REASON in values:
                values[_REASON] = answer_in(language, values[_REASON], depth - 1)
            return other.format(**values)
    head, bracket, step = text.removesuffix(")").rpartition(" (")
    if not depth or not bracket or not text.endswith(")"):
        return text
    said, todo = answer_in(language, head, 0), answer_in(language, step, 0)
    return text if (said, todo) == (head, step) else f"{said}（{todo}）"
