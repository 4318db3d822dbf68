"""Questions of administrators that a broker hands on: the running state (307), one message consumed now (309)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from cometmq.client.group_member import GroupMember
from cometmq.client.stacks import stacks
from cometmq.message.message import MessageExt, split_records
from cometmq.message.record import RecordError
from cometmq.remoting.bodies import encode_body
from cometmq.remoting.client_connection import ClientConnection
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import ConsumeMessageDirectlyResultRequestHeader, GetConsumerRunningInfoRequestHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class RelayedQuestions:
    """Answers for the consumers of one client (``ClientRemotingProcessor``).

    :param consumers: by group, as they are when somebody asks.
    :param spawn: runs a consumption in the background.
    """

    def __init__(self, consumers: Mapping[str, GroupMember], spawn: Spawn) -> None:
        self._consumers = consumers
        self._spawn = spawn

    def register(self, processors: ProcessorTable) -> None:
        """Answer the codes that are handed on."""
        processors.register(
            RequestCode.GET_CONSUMER_RUNNING_INFO, GetConsumerRunningInfoRequestHeader, self.running_info
        )
        processors.register(
            RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeMessageDirectlyResultRequestHeader, self.consume_directly
        )

    def running_info(
        self, _connection: ClientConnection, request: Request[GetConsumerRunningInfoRequestHeader], _body: bytes
    ) -> Response:
        """GET_CONSUMER_RUNNING_INFO (307)."""
        member = self._consumers.get(request.header.consumer_group)
        if member is None:
            return _no_consumer(request.header.consumer_group)
        info = member.running_info()
        if request.header.jstack_enable:
            info.jstack = stacks()
        return Response(body=encode_body(info))

    def consume_directly(
        self, connection: ClientConnection, request: Request[ConsumeMessageDirectlyResultRequestHeader], body: bytes
    ) -> Response | None:
        """CONSUME_MESSAGE_DIRECTLY (309): answered when the listener has answered."""
        member = self._consumers.get(request.header.consumer_group)
        if member is None:
            return _no_consumer(request.header.consumer_group)
        try:
            (message,) = split_records(body, request.header.broker_name or "")
        except (ValueError, RecordError) as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"the body is not one message: {error}")
        self._spawn(self._consume(connection, request, member, message))
        return None

    async def _consume(
        self, connection: ClientConnection, request: Request[Any], member: GroupMember, message: MessageExt
    ) -> None:
        result = await member.consume_directly(message)
        answer = _no_consumer(request.header.consumer_group) if result is None else Response(body=encode_body(result))
        connection.respond(request, answer)


def _no_consumer(group: str) -> Response:
    return Response(ResponseCode.SYSTEM_ERROR, remark=f"The Consumer Group <{group}> not exist in this consumer")
