"""The method SyncLiteSubscription (``ClientActivity``)."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

from cometmq.proxy.context import EndpointContext
from cometmq.proxy.converter import group_of, topic_of
from cometmq.proxy.errors import OK, ProxyError
from cometmq.proxy.lite import check_group, check_name, synchronize
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.proxy.rpc.call import Call
from cometmq.proxy.sessions import ClientSession, consumer_needs
from cometmq.remoting.lite.bodies import LiteSubscriptionAction, LiteSubscriptionDTO, OffsetOption, OffsetOptionType

_QUOTA_BUFFER: Final = 300
"""Number of lite topics above the quota that Apache's proxy tolerates; CometMQ's brokers tolerate none."""
_NAMES_AT_ONCE: Final = 5_000
"""Number of lite topics that are checked in one piece of work (2 ms)."""
_NAME_BYTES: Final = 50
"""Memory used by a lite topic in a request whose names have not been read."""
_OPTIONS: Final = {
    "policy": OffsetOptionType.POLICY,
    "offset": OffsetOptionType.OFFSET,
    "tail_n": OffsetOptionType.TAIL_N,
    "timestamp": OffsetOptionType.TIMESTAMP,
}
_ACTIONS: Final[dict[int, LiteSubscriptionAction]] = {
    v2.LiteSubscriptionAction.PARTIAL_ADD: LiteSubscriptionAction.PARTIAL_ADD,
    v2.LiteSubscriptionAction.PARTIAL_REMOVE: LiteSubscriptionAction.PARTIAL_REMOVE,
    v2.LiteSubscriptionAction.COMPLETE_ADD: LiteSubscriptionAction.COMPLETE_ADD,
    v2.LiteSubscriptionAction.COMPLETE_REMOVE: LiteSubscriptionAction.COMPLETE_REMOVE,
}


class LiteService:
    """The method with which consumers subscribe to lite topics."""

    def __init__(self, context: EndpointContext) -> None:
        self._context = context
        self._turn = asyncio.Lock()
        """Held by the request with many lite topics whose names are read; the others wait, and use little memory."""

    async def sync_lite_subscription(
        self, call: Call, request: v2.SyncLiteSubscriptionRequest
    ) -> v2.SyncLiteSubscriptionResponse:
        """Add or remove lite topics of a client, or replace all of them.

        The client repeats all of them every 30 seconds.
        """
        context = self._context
        topic, group = topic_of(request.topic), group_of(request.group)
        session = context.sessions.admit(call, consumer_needs(topic, group))
        action = _ACTIONS.get(request.action)
        if action is None:
            raise ProxyError(Code.BAD_REQUEST, f"unknown LiteSubscriptionAction: {request.action}")
        is_addition = action is LiteSubscriptionAction.PARTIAL_ADD
        names = await self._names(call, _named(session, request), are_new=is_addition)
        info = await context.backend.group(group)
        check_group(group, info, [topic], is_lite=True)
        if len(names) > info.lite_quota + _QUOTA_BUFFER:
            raise ProxyError(
                Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, f"lite subscription quota exceeded: {info.lite_quota}"
            )
        change = LiteSubscriptionDTO(
            action=action,
            client_id=session.identity.client_id,
            group=group,
            topic=topic,
            lite_topic_set=names,
            offset_option=_offset_option(request) if is_addition else None,
            version=request.version,
        )
        await synchronize(context.backend, session.link, change)
        session.lite = group, topic
        return v2.SyncLiteSubscriptionResponse(status=OK)

    async def _names(self, call: Call, names: v2.Repeated[str] | list[str], *, are_new: bool) -> list[str]:
        """Return each lite topic once. If there are many, the work has several large pieces.

        :raises ProxyError: the lite topics are new, and a name is not allowed.
        """
        if len(names) <= _NAMES_AT_ONCE:
            return list(_each_once(names, are_new=are_new))
        size = len(names) * _NAME_BYTES
        call.peer.count_incomplete(size)
        try:
            async with self._turn:
                await call.wait_for_time(1, 0)
                found: dict[str, None] = {}
                rest = iter(names)
                while some := list(islice(rest, _NAMES_AT_ONCE)):
                    found.update(_each_once(some, are_new=are_new))
                    await call.wait_for_time(1, 0)
                return list(found)
        finally:
            call.peer.count_incomplete(-size)


def _named(session: ClientSession, request: v2.SyncLiteSubscriptionRequest) -> v2.Repeated[str] | list[str]:
    """Return the lite topics in a request.

    Python's client (5.1.2) sends the letters of the name when it subscribes to a lite topic. It sends all letters, in
    their order, and never subscribes to several lite topics at once.
    """
    names = request.lite_topic_set
    is_addition = request.action == v2.LiteSubscriptionAction.PARTIAL_ADD
    if session.identity.language == "PYTHON" and is_addition and all(len(name) == 1 for name in names):
        return ["".join(names)] if names else []
    return names


def _each_once(names: v2.Repeated[str] | list[str], *, are_new: bool) -> dict[str, None]:
    """Return each lite topic once, in order.

    :param are_new: True if the names are checked.
    :raises ProxyError: a name is not allowed.
    """
    if are_new:
        for name in names:
            check_name(name)
    return dict.fromkeys(names)


def _offset_option(request: v2.SyncLiteSubscriptionRequest) -> OffsetOption | None:
    """Return where the group starts to read the lite topics, if the client says it."""
    option = request.offset_option
    kind = option.WhichOneof("offset_type") if request.HasField("offset_option") else None
    return None if kind is None else OffsetOption(_OPTIONS[kind], int(getattr(option, kind)))
