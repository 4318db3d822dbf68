"""What kind of message it is, as hooks and traces name it (``MessageType``)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from cometmq.message.properties import DELAY, TIMER_NAMES, TRAN_MSG

_DELAYS: Final = TIMER_NAMES | {DELAY}


class MessageType(IntEnum):
    """The kinds with the numbers that traces carry."""

    NORMAL = 0
    TRANS_HALF = 1
    TRANS_COMMIT = 2
    DELAY = 3


def message_type(properties: Mapping[str, str]) -> MessageType:
    """The kind of a message that is sent with these properties."""
    if properties.get(TRAN_MSG) == "true":
        return MessageType.TRANS_HALF
    return MessageType.NORMAL if _DELAYS.isdisjoint(properties) else MessageType.DELAY
