"""Delay levels: a message with DELAY waits in SCHEDULE_TOPIC_XXXX, in its level's queue (``CommitLog.putMessage``).

Its own topic and queue go into REAL_TOPIC and REAL_QID; when it is due,
:mod:`cometmq.broker.deliver_delayed` stores it there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from cometmq.broker.inner_message import InnerMessage
from cometmq.broker.send_targets import SendRefusedError
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.message.properties import DELAY, REAL_QID, REAL_TOPIC, WAIT, decode_properties, join_properties
from cometmq.remoting.codes import ResponseCode

_JAVA_INT: Final = re.compile(r"([+-]?)0*([0-9]{1,10})")
_JAVA_INT_MAX: Final = 2**31 - 1
_SHOWN_CHARS: Final = 64
"""Of a text that is no number so much is shown."""


def delay_level(text: str) -> int:
    """The level that a DELAY property asks for, read as Java reads numbers; 0 and below ask for none.

    :raises SendRefusedError: it is no number of 32 bits.
    """
    matched = _JAVA_INT.fullmatch(text)
    level = int(matched[1] + matched[2]) if matched is not None else None
    if level is not None and -_JAVA_INT_MAX - 1 <= level <= _JAVA_INT_MAX:
        return level
    raise SendRefusedError(
        ResponseCode.SYSTEM_ERROR, f'java.lang.NumberFormatException: For input string: "{text[:_SHOWN_CHARS]}"'
    )


class DelayLevels:
    """The levels of ``messageDelayLevel``, and how a message is parked in one.

    :param delays_ms: the delay of each level; level 1 comes first.
    :param on_parked: told of each level that gets a message, before it is stored.
    """

    def __init__(self, delays_ms: tuple[int, ...], on_parked: Callable[[int], None]) -> None:
        self.delays_ms: Final = delays_ms
        self._on_parked = on_parked

    def detour(self, message: InnerMessage, wanted: Mapping[str, str]) -> InnerMessage | None:
        """Park a message that asks for a level; see :data:`~cometmq.broker.inner_message.Detour`."""
        text = wanted.get(DELAY)
        level = 0 if text is None else delay_level(text)
        return self.park(message, level, wait=wanted.get(WAIT)) if level > 0 else None

    def park(self, message: InnerMessage, level: int, *, wait: str | None = None) -> InnerMessage:
        """The message as it waits in ``level``, one above the last counts as the last.

        :param wait: the WAIT that the producer gave: parked messages keep it, unlike others.
        """
        if level > len(self.delays_ms):
            level = len(self.delays_ms)
        properties = decode_properties(message.properties)
        if wait is not None:
            properties[WAIT] = wait
        properties[DELAY] = str(level)
        properties[REAL_TOPIC] = message.topic
        properties[REAL_QID] = str(message.queue_id)
        self._on_parked(level)
        return msgspec.structs.replace(
            message, topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=join_properties(properties)
        )
