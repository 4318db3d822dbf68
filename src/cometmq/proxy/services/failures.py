"""The statuses of calls that fail."""

from __future__ import annotations

import logging

from cometmq.errors import CometMQError
from cometmq.proxy.errors import ProxyError
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.proxy.rpc.call import Call

_log = logging.getLogger(__name__)


def status_of(error: Exception, call: Call) -> v2.Status:
    """Return the status for an error; log an unexpected error with its traceback."""
    if isinstance(error, ProxyError):
        return error.status
    if isinstance(error, CometMQError):
        return v2.Status(code=Code.INTERNAL_SERVER_ERROR, message=error.message)
    _log.error("%s from %s failed", call.name, call.peer.remote_address, exc_info=error)
    return v2.Status(code=Code.INTERNAL_SERVER_ERROR, message=f"{type(error).__name__}: {error}")
