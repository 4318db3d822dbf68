"""Notices that a group has changed (NOTIFY_CONSUMER_IDS_CHANGED, 40), so that its members share the queues anew.

A group that changes again before its notices are sent has them once. They are sent at once where they are few; one
client that leaves hundreds of groups with hundreds of members each has its notices sent over many turns of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from cometmq.broker.clients import ConsumerManager
from cometmq.clock import Clock
from cometmq.limits import GROUP_NOTICES_SECONDS
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import FLAG_ONEWAY, request_command
from cometmq.remoting.headers import NotifyConsumerIdsChangedRequestHeader

_log = logging.getLogger(__name__)


class GroupNotices:
    """Sends the notices of all groups."""

    def __init__(self, consumers: ConsumerManager, *, clock: Clock) -> None:
        self._clock = clock
        self._consumers = consumers
        self._changed: dict[str, None] = {}
        self._work: Iterator[None] | None = None
        """The rest, while a later turn is asked for."""

    def send(self, group_name: str) -> None:
        """Tell all members of a group, those who are behind with reading excepted."""
        self._changed[group_name] = None
        if self._work is None:
            self._go_on(self._send_all())

    def _go_on(self, work: Iterator[None]) -> None:
        self._work = work
        until = self._clock.monotonic() + GROUP_NOTICES_SECONDS
        try:
            for _ in work:
                if self._clock.monotonic() >= until:
                    asyncio.get_running_loop().call_soon(self._go_on, work)
                    return
        except Exception:  # who joins or leaves is answered whatever happens here
            _log.exception("a group's members could not be told that it changed; they look again within 20 s")
        self._work = None

    def _send_all(self) -> Iterator[None]:
        while self._changed:
            name = next(iter(self._changed))
            del self._changed[name]
            group = self._consumers.get(name)
            if group is None:
                continue
            header = NotifyConsumerIdsChangedRequestHeader(consumer_group=name)
            frame = request_command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 0, header, b"", flag=FLAG_ONEWAY)
            for connection in list(group.channels):
                if not connection.is_behind:
                    connection.write(frame)
                yield
