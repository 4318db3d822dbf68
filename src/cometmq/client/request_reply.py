"""What a request and the reply to it carry (``MessageUtil.createReplyMessage``)."""

from __future__ import annotations

from typing import Final

from cometmq.client.errors import IllegalMessageError
from cometmq.message.message import Message, MessageExt
from cometmq.message.names import reply_topic
from cometmq.message.properties import CLUSTER, CORRELATION_ID, MSG_TYPE, REPLY_TO_CLIENT, TTL, encode_properties

REPLY: Final = "reply"
"""MSG_TYPE of a reply."""


def request_properties(correlation_id: str, client_id: str, timeout_s: float) -> str:
    """The properties, as text, that make a message a request."""
    return encode_properties(
        {CORRELATION_ID: correlation_id, REPLY_TO_CLIENT: client_id, TTL: str(int(timeout_s * 1000))}
    )


def reply_to(request: MessageExt, body: bytes) -> tuple[Message, str]:
    """The reply to a consumed request, and the properties, as text, that make it one.

    :raises IllegalMessageError: nobody waits for a reply to this message.
    """
    if not isinstance(request, MessageExt):
        raise IllegalMessageError(
            f"an object of type {type(request).__name__} is no consumed request",
            "reply to one message of those that the listener got",
        )
    asked = request.properties
    missing = [name for name in (CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT) if name not in asked]
    if missing:
        raise IllegalMessageError(
            f"{request.msg_id} is no request: it has no {', '.join(missing)}",
            "reply to messages that were sent by a request only",
        )
    properties = {
        MSG_TYPE: REPLY,
        CORRELATION_ID: asked[CORRELATION_ID],
        REPLY_TO_CLIENT: asked[REPLY_TO_CLIENT],
        TTL: asked.get(TTL, ""),
    }
    return Message(reply_topic(asked[CLUSTER]), body), encode_properties(properties)
