"""Names of lite topics and of their queues (``LiteUtil``).

A lite topic belongs to a parent topic. RocketMQ calls its queue ``%LMQ%$parent$lite``.
"""

from __future__ import annotations

from typing import Final

LMQ_PREFIX: Final = "%LMQ%$"
_SEPARATOR: Final = "$"
MAX_LITE_TOPIC_BYTES: Final = 64
"""Maximum size of a lite topic's name in UTF-8, as in Apache's proxy."""


def lmq_name(parent: str, lite: str) -> str:
    """Return the name of a lite topic's queue."""
    return f"{LMQ_PREFIX}{parent}{_SEPARATOR}{lite}"


def split_lmq(name: str) -> tuple[str, str] | None:
    """Return the parent topic and the lite topic of a queue's name, or ``None`` for any other name."""
    if not name.startswith(LMQ_PREFIX):
        return None
    parent, separator, lite = name[len(LMQ_PREFIX) :].partition(_SEPARATOR)
    return (parent, lite) if separator and parent and lite else None


def check_lite_topic(name: str) -> str | None:
    """Return the reason why a lite topic cannot have a name, or ``None`` if it can."""
    if not name.strip():
        return "the lite topic is blank"
    if not name.isprintable():
        return "the lite topic contains a control character, a line break or half of a character"
    if "," in name or _SEPARATOR in name:
        return f"the lite topic {name[:MAX_LITE_TOPIC_BYTES]} contains $ or a comma"
    size = len(name.encode())
    if size > MAX_LITE_TOPIC_BYTES:
        return f"the lite topic has {size} bytes in UTF-8; the maximum is {MAX_LITE_TOPIC_BYTES}"
    return None
