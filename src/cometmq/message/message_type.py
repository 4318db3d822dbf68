"""What kind of message it is, as hooks and traces name it (``MessageType``)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from cometmq.message.properties import DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS, TRAN_MSG

_DELAYS = (DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)


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
    return MessageType.DELAY if any(name in properties for name in _DELAYS) else MessageType.NORMAL
