"""The answer to a request for which the broker stores messages itself: given once, also when the disk is slow.

With SYNC_FLUSH it waits for the flush as a send's answer does, for ``syncFlushTimeout`` at most: see ``late`` of
:meth:`~cometmq.broker.store_turn.StoreTurn.put_inner`. What is stored stays stored, and its service hears of it in
its own time.
"""

from __future__ import annotations

from typing import Any, Final

from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.processors import Request, Response
from cometmq.remoting.server_connection import ServerConnection

FLUSH_IS_LATE: Final = Response(
    ResponseCode.FLUSH_DISK_TIMEOUT, remark="stored, but the disk has not taken it within syncFlushTimeout"
)


class OneAnswer:
    """Gives the first response that it gets; others are dropped."""

    def __init__(self, connection: ServerConnection, request: Request[Any]) -> None:
        self._connection = connection
        self._request = request
        self._is_given = False

    def give(self, response: Response) -> None:
        """Answer the request, unless that was done."""
        if not self._is_given:
            self._is_given = True
            self._connection.respond(self._request, response)

    def late(self) -> None:
        """Say that the flush takes too long."""
        self.give(FLUSH_IS_LATE)
