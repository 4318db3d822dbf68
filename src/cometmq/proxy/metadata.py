"""The metadata of a call: who asks (``ProxyContext``)."""

from __future__ import annotations

from typing import Final

from cometmq.java_values import is_blank
from cometmq.limits import MAX_CLIENT_ID_CHARS
from cometmq.proxy.errors import ProxyError
from cometmq.proxy.protocol.v2 import Code
from cometmq.proxy.rpc.call import Call

CLIENT_ID: Final = "x-mq-client-id"
LANGUAGE: Final = "x-mq-language"
VERSION: Final = "x-mq-client-version"
DATE_TIME: Final = "x-mq-date-time"
AUTHORIZATION: Final = "authorization"


def client_id_of(call: Call) -> str:
    """The id of the client.

    :raises ProxyError: it has none, or one that is too long.
    """
    client_id = call.metadata.get(CLIENT_ID, "")
    if is_blank(client_id):
        raise ProxyError(Code.CLIENT_ID_REQUIRED, "client id cannot be empty")
    if len(client_id) > MAX_CLIENT_ID_CHARS:
        raise ProxyError(Code.BAD_REQUEST, f"the client id is longer than {MAX_CLIENT_ID_CHARS} characters")
    return client_id


def language_of(call: Call) -> str:
    """The language of the client, in the words of remoting."""
    return call.metadata.get(LANGUAGE, "OTHER")[:32].upper()
