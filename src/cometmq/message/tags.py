"""Expressions of tags (``FilterAPI.buildSubscriptionData``)."""

from __future__ import annotations

from typing import Final

from cometmq.java_values import TRIMMED

_SEPARATOR: Final = "||"


def split_tags(expression: str) -> list[str]:
    """Return the tags that an expression joins by ``||``, without the blanks that Java's ``trim`` takes away."""
    return [tag for part in expression.split(_SEPARATOR) if (tag := part.strip(TRIMMED))]
