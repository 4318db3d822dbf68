"""Handles brokers' requests to a client (``ClientRemotingProcessor``)."""

from __future__ import annotations

import asyncio
import logging
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Protocol
from weakref import WeakValueDictionary

from cometmq.client.background import Spawn
from cometmq.client.request_reply import Replies
from cometmq.message.message import MessageExt, split_records
from cometmq.message.properties import PGROUP
from cometmq.message.record import RecordError
from cometmq.remoting.admin_bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo, GetConsumerStatusBody
from cometmq.remoting.admin_headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from cometmq.remoting.bodies import ConsumerData, MessageQueue, ResetOffsetBody, decode_body, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.connections.client_connection import ClientConnection
from cometmq.remoting.headers import (
    CheckTransactionStateRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    ReplyMessageRequestHeader,
)
from cometmq.remoting.lite.headers import NotifyUnsubscribeLiteRequestHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response

log = logging.getLogger(__name__)

CheckTransaction = Callable[[str, CheckTransactionStateRequestHeader, MessageExt], None]
"""A function called with the broker's address, the request header and the half message."""


class GroupMember(Protocol):
    """A consumer as seen by its shared instance (``MQConsumerInner``)."""

    @property
    def heartbeat(self) -> ConsumerData:
        """Return the consumer's part of a heartbeat."""

    def running_info(self) -> ConsumerRunningInfo:
        """Return the consumer's state, for administrators."""

    async def consume_directly(self, message: MessageExt) -> ConsumeMessageDirectlyResult | None:
        """Consume one message on behalf of an administrator; return ``None`` if the consumer has no listener."""

    def members_changed(self) -> None:
        """Rebalance because a member has joined or left the group."""

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets because an administrator has reset them."""

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        """Return the consumed offset of each queue in a topic."""


class ClientRemotingProcessor:
    """Handles brokers' requests to the consumers and transaction producers of one client.

    :param spawn: runs work in the background.
    """

    def __init__(self, replies: Replies, spawn: Spawn) -> None:
        self.consumers: WeakValueDictionary[str, GroupMember] = WeakValueDictionary()
        """The consumers by consumer group."""
        self.checkers: dict[str, CheckTransaction] = {}
        """The transaction check for each producer group."""
        self.lite_losses: dict[str, Callable[[str], None]] = {}
        """For each consumer group, a function called with a lite topic that another member has taken."""
        self._replies = replies
        self._spawn = spawn

    def register(self, table: ProcessorTable) -> None:
        """Register the handlers for all requests."""
        code = RequestCode
        table.register(code.CHECK_TRANSACTION_STATE, CheckTransactionStateRequestHeader, self.check_transaction)
        table.register(code.NOTIFY_CONSUMER_IDS_CHANGED, NotifyConsumerIdsChangedRequestHeader, self.members_changed)
        table.register(code.RESET_CONSUMER_CLIENT_OFFSET, ResetOffsetRequestHeader, self.reset_offsets)
        table.register(code.GET_CONSUMER_STATUS_FROM_CLIENT, GetConsumerStatusRequestHeader, self.positions)
        table.register(code.GET_CONSUMER_RUNNING_INFO, GetConsumerRunningInfoRequestHeader, self.running_info)
        table.register(code.CONSUME_MESSAGE_DIRECTLY, ConsumeMessageDirectlyResultRequestHeader, self.consume_directly)
        table.register(code.NOTIFY_UNSUBSCRIBE_LITE, NotifyUnsubscribeLiteRequestHeader, self.lite_topic_lost)
        table.register(code.PUSH_REPLY_MESSAGE_TO_CLIENT, ReplyMessageRequestHeader, self._replies.arrived)

    def check_transaction(
        self, connection: ClientConnection, request: Request[CheckTransactionStateRequestHeader], body: bytes
    ) -> None:
        """Handle CHECK_TRANSACTION_STATE (request code 39); the response is an END_TRANSACTION request."""
        try:
            (message,) = split_records(body)
            group = message.properties.get(PGROUP, "")
        except (RecordError, ValueError, struct.error) as error:
            log.warning("cannot decode the message of a transaction check from %s: %s", connection.address, error)
            return
        check = self.checkers.get(group)
        if check is None:
            log.debug(
                "%s checks a transaction of group %s, which this client does not serve", connection.address, group
            )
        else:
            check(connection.address, request.header, message)

    def members_changed(self, _: object, request: Request[NotifyConsumerIdsChangedRequestHeader], _body: bytes) -> None:
        """Handle NOTIFY_CONSUMER_IDS_CHANGED (request code 40)."""
        member = self.consumers.get(request.header.consumer_group)
        if member is not None:
            member.members_changed()

    def lite_topic_lost(self, _: object, request: Request[NotifyUnsubscribeLiteRequestHeader], _body: bytes) -> None:
        """Handle NOTIFY_UNSUBSCRIBE_LITE (request code 200073)."""
        lost = self.lite_losses.get(request.header.consumer_group)
        if lost is not None:
            lost(request.header.lite_topic)

    def reset_offsets(self, _: object, request: Request[ResetOffsetRequestHeader], body: bytes) -> None:
        """Handle RESET_CONSUMER_CLIENT_OFFSET (request code 220)."""
        member = self.consumers.get(request.header.group)
        if member is not None:
            member.reset_offsets(request.header.topic, decode_body(ResetOffsetBody, body).offset_table)

    def positions(self, _: object, request: Request[GetConsumerStatusRequestHeader], _body: bytes) -> Response:
        """Handle GET_CONSUMER_STATUS_FROM_CLIENT (request code 221)."""
        member = self.consumers.get(request.header.group)
        table = {} if member is None else member.positions(request.header.topic)
        return Response(body=encode_body(GetConsumerStatusBody(message_queue_table=table)))

    def running_info(self, _: object, request: Request[GetConsumerRunningInfoRequestHeader], _body: bytes) -> Response:
        """Handle GET_CONSUMER_RUNNING_INFO (request code 307)."""
        member = self.consumers.get(request.header.consumer_group)
        if member is None:
            return _no_consumer(request.header.consumer_group)
        info = member.running_info()
        if request.header.jstack_enable:
            info.jstack = _stacks()
        return Response(body=encode_body(info))

    def consume_directly(
        self, connection: ClientConnection, request: Request[ConsumeMessageDirectlyResultRequestHeader], body: bytes
    ) -> Response | None:
        """Handle CONSUME_MESSAGE_DIRECTLY (request code 309); respond after the listener has returned."""
        member = self.consumers.get(request.header.consumer_group)
        if member is None:
            return _no_consumer(request.header.consumer_group)
        try:
            (message,) = split_records(body, request.header.broker_name or "")
        except (ValueError, RecordError) as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"the body does not contain exactly one message: {error}")

        async def consume() -> None:
            result = await member.consume_directly(message)
            group = request.header.consumer_group
            answer = _no_consumer(group) if result is None else Response(body=encode_body(result))
            connection.respond(request, answer)

        self._spawn(consume())
        return None


def _no_consumer(group: str) -> Response:
    return Response(ResponseCode.SYSTEM_ERROR, remark=f"The Consumer Group <{group}> not exist in this consumer")


def _stacks() -> str:
    """Return the stack of every thread and task in this process (``jstack``)."""
    names: Mapping[int | None, str] = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, str(ident))}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    for task in asyncio.all_tasks():
        frames = "".join(line for frame in task.get_stack(limit=4) for line in traceback.format_stack(frame, limit=1))
        parts.append(f"task {task.get_name()}\n{frames}")
    return "\n".join(parts)
