"""One word for what becomes of a selector and a message, in which implementations can be compared."""

from __future__ import annotations

from collections.abc import Mapping

from cometmq.filter import EvaluationError, FilterError, parse_selector

WORDS = {True: "TRUE", False: "FALSE", None: "NULL"}


def answer(text: str, properties: Mapping[str, str]) -> str:
    """TRUE, FALSE, NULL, RAISED (while evaluated) or REFUSED (when parsed)."""
    try:
        selector = parse_selector(text)
    except FilterError:
        return "REFUSED"
    try:
        truth = selector.evaluate(properties)
    except EvaluationError:
        return "RAISED"
    return WORDS[truth]
