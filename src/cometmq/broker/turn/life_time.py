"""Life times of messages (COMETMQ_TTL_MS), and the point in time at which a life ends (COMETMQ_EXPIRES_MS).

Theory of operation. A producer sets the length of a life. The broker adds its end when it knows when the life begins:
for most messages when it accepts them, for delayed messages at their due time, for half messages with the commit. The
property stays with the message: copies for retries and dead letters, slaves, backups and archives keep it. Only a new
send of the message begins a new life. A message that is sent to a retry topic is not new.

A topic whose messages may have life times has the attribute ``expired.messages``, which the table of topics has before
the first such message is in the log. Readers of other topics need not look for life times
(:mod:`cometmq.broker.pull.expired_messages`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cometmq.broker.turn.inner_message import InnerMessage
from cometmq.broker.turn.targets import RefusedError
from cometmq.java_values import parse_long
from cometmq.limits import MAX_TTL_MS
from cometmq.message.names import SCHEDULE_TOPIC, TIMER_TOPIC
from cometmq.message.properties import EXPIRES_MS, TIMER_OUT_MS, TTL_MS, PropertiesText
from cometmq.remoting.codes import ResponseCode

_END: Final = frozenset({EXPIRES_MS})
_SHOWN_CHARS: Final = 64
"""Maximum length of an invalid value in an error message."""


def ttl_of(life: Mapping[str, str]) -> int | None:
    """Return the life time in milliseconds among a message's properties, or ``None`` if there is none.

    :raises RefusedError: the life time is not a number of milliseconds from 1 to ``MAX_TTL_MS``.
    """
    text = life.get(TTL_MS)
    if text is None:
        return None
    try:
        ttl_ms = parse_long(text)
    except ValueError:
        ttl_ms = 0
    if not 1 <= ttl_ms <= MAX_TTL_MS:
        raise RefusedError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: its life time {TTL_MS} must be a whole number of milliseconds from 1 to "
            f"{MAX_TTL_MS} (ten years), not {text[:_SHOWN_CHARS]!r}",
        )
    return ttl_ms


def with_end(properties: str, life: Mapping[str, str], begin_ms: int) -> str:
    """Return the text of a new message's properties with the end of a life that begins at ``begin_ms``.

    An end that the text had before is replaced, or removed if the message has no life time.

    :raises RefusedError: the life time is invalid.
    """
    ttl_ms = ttl_of(life)
    text = PropertiesText(properties)
    if EXPIRES_MS in life:
        text = text.without(_END)
    return text.text if ttl_ms is None else text.plus({EXPIRES_MS: str(begin_ms + ttl_ms)}).text


def begin_life(message: InnerMessage, life: Mapping[str, str], now_ms: int, delays_ms: Sequence[int]) -> InnerMessage:
    """Return a message that a client sent with the end of its life, which begins now or when the message is due.

    Do not call it for a message that is sent to a retry topic: that keeps the end of its life.

    :param message: the message as it is stored, perhaps in a topic where it waits.
    :param delays_ms: the delays of the levels.
    :raises RefusedError: the life time is invalid.
    """
    begin_ms = now_ms
    if message.topic == TIMER_TOPIC:
        begin_ms = int(PropertiesText(message.properties).get(TIMER_OUT_MS))
    elif message.topic == SCHEDULE_TOPIC:
        begin_ms += delays_ms[message.queue_id]
    return msgspec.structs.replace(message, properties=with_end(message.properties, life, begin_ms))


def begin_again(properties: str, begin_ms: int) -> str:
    """Return the properties of a half message with a life that begins with its commit, if it has a life time."""
    text = PropertiesText(properties)
    if TTL_MS not in text:
        return properties
    try:
        return with_end(properties, {TTL_MS: text.get(TTL_MS), EXPIRES_MS: ""}, begin_ms)
    except RefusedError:  # an earlier version stored it
        return properties
