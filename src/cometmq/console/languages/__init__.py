"""The console's languages. Texts are written in English; each other language has one catalogue per page family."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

ENGLISH: Final = "en"
LANGUAGES: Final = {ENGLISH: "English", "zh": "中文"}
"""Language code → the language's own name."""


@cache
def catalogue(language: str) -> Mapping[str, str]:
    """Return the catalogue of a language: English text → translated text, or empty for English."""
    if language == ENGLISH:
        return {}
    found: dict[str, str] = {}
    for file in sorted(files(__name__).joinpath(language).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".json"):
            found.update(json.loads(file.read_text(encoding="utf-8")))
    return found


def translated(language: str, text: str, /, **values: object) -> str:
    """Return a text in a language, with values inserted. If the catalogue lacks the text, English is used."""
    found = catalogue(language).get(text, text)
    return found.format(**values) if values else found


def preferred(accepted: str) -> str:
    """Return the first known language in an ``Accept-Language`` header, or English if no language is known."""
    for part in accepted[:200].split(","):
        code = part.partition(";")[0].strip().lower().partition("-")[0]
        if code in LANGUAGES:
            return code
    return ENGLISH
