"""The method SyncLiteSubscription (``ClientActivity``)."""

from __future__ import annotations

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
        names = _names(session, request)
        is_addition = action is LiteSubscriptionAction.PARTIAL_ADD
        if is_addition:
            for name in names:
                check_name(name)
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


def _names(session: ClientSession, request: v2.SyncLiteSubscriptionRequest) -> list[str]:
    """Return the lite topics in a request, each once.

    Python's client (5.1.2) sends the letters of the name when it subscribes to a lite topic. It sends all letters, in
    their order, and never subscribes to several lite topics at once.
    """
    names = request.lite_topic_set
    is_addition = request.action == v2.LiteSubscriptionAction.PARTIAL_ADD
    if session.identity.language == "PYTHON" and is_addition and all(len(name) == 1 for name in names):
        return ["".join(names)] if names else []
    return list(dict.fromkeys(names))


def _offset_option(request: v2.SyncLiteSubscriptionRequest) -> OffsetOption | None:
    """Return where the group starts to read the lite topics, if the client says it."""
    option = request.offset_option
    kind = option.WhichOneof("offset_type") if request.HasField("offset_option") else None
    return None if kind is None else OffsetOption(_OPTIONS[kind], int(getattr(option, kind)))
