"""Parses tag expressions (``FilterAPI.buildSubscriptionData``)."""

from __future__ import annotations

from typing import Final

from cometmq.java_values import TRIMMED

_SEPARATOR: Final = "||"


def split_tags(expression: str) -> list[str]:
    """Split a tag expression at ``||`` and strip the tags as Java's ``trim`` does."""
    return [tag for part in expression.split(_SEPARATOR) if (tag := part.strip(TRIMMED))]
