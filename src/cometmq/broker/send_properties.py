"""What a broker reads from the properties of a message before it stores them (hot path).

One pass over the text finds the tag, the index keys and the properties that decide how a message is
stored, and writes the text that is stored: without WAIT, with CLUSTER (``SendMessageProcessor``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from cometmq.message.ids import tags_code
from cometmq.message.properties import (
    CLUSTER,
    DELAY,
    KEYS,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
)

DETOURS: Final = frozenset({DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, TRAN_MSG})
"""Properties that ask for the message to be parked before it is delivered."""

_DROPPED: Final = frozenset({WAIT, CLUSTER, ""})
"""Pieces with these names are not stored as they came; a piece without a name is none."""


class SendProperties(msgspec.Struct, gc=False):
    """The properties of one message, read and ready to be stored."""

    stored: bytes
    tags_code: int
    index_keys: tuple[str, ...]
    """The unique key and each of KEYS, as they go into the index."""
    wait: bool
    """Whether the producer waits for the flush (WAIT is not ``false``)."""
    detour: dict[str, str] | None
    """The properties of ``DETOURS`` that it has, and WAIT if there; ``None`` when there is none."""


def read_properties(text: str, tail: str) -> SendProperties:
    """Read the properties of one message; ``tail`` is the text of CLUSTER, to be appended.

    Where a name stands twice the last one counts, as in RocketMQ. Empty pieces are dropped.
    """
    keys = unique = tag = wait = wait_piece = ""
    untidy = False
    detour: dict[str, str] | None = None
    pieces = text.split("\x02")
    if not pieces[-1]:
        pieces.pop()  # behind the last separator, which Java and Spark's sink write
    for piece in pieces:
        name, _, value = piece.partition("\x01")
        if name == KEYS:
            keys = value or keys
        elif name == UNIQ_KEY:
            unique = value or unique
        elif name == TAGS:
            tag = value or tag
        elif name == WAIT:
            untidy = untidy or wait_piece != ""
            wait = value or wait
            wait_piece = piece
        elif name in DETOURS:
            if value:
                detour = detour or {}
                detour[name] = value
        elif name in _DROPPED:
            untidy = True
    if detour is not None and wait:
        detour[WAIT] = wait
    if untidy:
        pieces = [piece for piece in pieces if piece.partition("\x01")[0] not in _DROPPED]
    elif wait_piece:
        pieces.remove(wait_piece)
    pieces.append(tail)
    index_keys: tuple[str, ...]
    if not keys:
        index_keys = (unique,) if unique else ()
    elif " " in keys:
        index_keys = tuple([key for key in (unique, *keys.split(" ")) if key])
    else:
        index_keys = (unique, keys) if unique else (keys,)
    return SendProperties(
        "\x02".join(pieces).encode(),
        tags_code(tag) if tag else 0,
        index_keys,
        wait != "false",
        detour,
    )


def from_map(text: str, properties: Mapping[str, str]) -> SendProperties:
    """The same of properties that were read already, to be stored as ``text``; without WAIT and detours."""
    unique = properties.get(UNIQ_KEY)
    keys = properties.get(KEYS)
    index_keys: tuple[str, ...] = (unique,) if unique else ()
    if keys:
        index_keys += tuple([key for key in keys.split(" ") if key])
    tag = properties.get(TAGS)
    return SendProperties(text.encode(), tags_code(tag) if tag else 0, index_keys, True, None)
