"""What waits for its time, for administrators: GET_TIMER_CHECK_POINT (60), GET_TIMER_METRICS (61), and one by one.

The bodies are RocketMQ 5's (``TimerCheckpoint.encode``, ``TimerMetrics``); 61 also tells, for each topic, how
many messages are due within a minute, an hour, a day, thirty days, and later. GET_WAITING_MESSAGES (30038)
is CometMQ's own.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Coroutine
from typing import Any, Final

from cometmq.broker.timer import TimerMessageService
from cometmq.limits import MAX_LISTED_WAITING, MAX_TIMER_LOOKS
from cometmq.message.properties import REAL_QID, REAL_TOPIC, UNIQ_KEY
from cometmq.remoting.bodies import (
    Body,
    DataVersion,
    TimerMetrics,
    TopicTimerMetrics,
    WaitingMessage,
    WaitingMessages,
    encode_body,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import GetWaitingMessagesRequestHeader, NoHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.timer_count import WaitingOfTopic
from cometmq.store.timer_list import Listed, Wanted

_log = logging.getLogger(__name__)

_CHECK_POINT: Final = struct.Struct(">qqqqqqq")


class TimerAdmin:
    """Answers about waiting messages; looking through them is done by the timer log's thread."""

    def __init__(self, timer: TimerMessageService) -> None:
        self._timer = timer
        self._looking: set[asyncio.Task[None]] = set()

    def register(self, processors: ProcessorTable) -> None:
        """Answer the codes about waiting messages."""
        processors.register(RequestCode.GET_TIMER_CHECK_POINT, NoHeader, self.check_point)
        processors.register(RequestCode.GET_TIMER_METRICS, NoHeader, self.metrics)
        processors.register(RequestCode.GET_WAITING_MESSAGES, GetWaitingMessagesRequestHeader, self.list)

    def check_point(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """GET_TIMER_CHECK_POINT (60): until when and from which queue offset on messages are delivered and read."""
        position = self._timer.intake.log.position
        return Response(body=_CHECK_POINT.pack(max(position.until_ms, 0), 0, position.serial, position.serial, 0, 0, 0))

    def metrics(self, connection: ServerConnection, request: Request[Any], _body: bytes) -> None:
        """GET_TIMER_METRICS (61)."""
        self._begin(connection, request, self._metrics())

    def list(
        self, connection: ServerConnection, request: Request[GetWaitingMessagesRequestHeader], _body: bytes
    ) -> None:
        """GET_WAITING_MESSAGES (30038): so many in the order of due times, of one topic or of all."""
        self._begin(connection, request, self._page(request.header))

    def _begin(self, connection: ServerConnection, request: Request[Any], work: Coroutine[Any, Any, Body]) -> None:
        if len(self._looking) >= MAX_TIMER_LOOKS:
            work.close()
            remark = f"{MAX_TIMER_LOOKS} requests look through the messages that wait already, try again"
            connection.respond(request, Response(ResponseCode.SYSTEM_BUSY, remark=remark))
            return
        task = asyncio.get_running_loop().create_task(self._answer(connection, request, work), name="timer admin")
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    async def _answer(
        self, connection: ServerConnection, request: Request[Any], work: Coroutine[Any, Any, Body]
    ) -> None:
        try:
            body = await work
        except OSError as error:
            _log.error("messages that wait cannot be looked through: %s", error)
            remark = f"messages that wait cannot be looked through: {error.strerror}"
            connection.respond(request, Response(ResponseCode.SYSTEM_ERROR, remark=remark))
            return
        connection.respond(request, Response(body=encode_body(body)))

    async def _metrics(self) -> TimerMetrics:
        topics = await self._timer.intake.count_waiting()
        return TimerMetrics(
            timing_count={name: _metrics(waiting) for name, waiting in topics.items()},
            data_version=DataVersion(timestamp=self._timer.intake.log.position.until_ms, counter=0),
        )

    async def _page(self, header: GetWaitingMessagesRequestHeader) -> WaitingMessages:
        most = min(max(header.max_num, 1), MAX_LISTED_WAITING)
        wanted = Wanted((header.begin_time, header.position), header.end_time, most)
        listed, next_place = await self._timer.intake.list_waiting(wanted, header.topic)
        next_due, next_position = next_place or (None, None)
        return WaitingMessages([_waiting_message(one) for one in listed], next_due, next_position)


def _metrics(waiting: WaitingOfTopic) -> TopicTimerMetrics:
    return TopicTimerMetrics(
        count=waiting.count,
        time_stamp=waiting.first_ms,
        first_due_time=waiting.first_ms,
        last_due_time=waiting.last_ms,
        due_within=waiting.due_within,
    )


def _waiting_message(listed: Listed) -> WaitingMessage:
    message = listed.message
    properties = message.properties if message is not None else {}
    return WaitingMessage(
        topic=properties.get(REAL_TOPIC, "?"),
        queue_id=int(properties.get(REAL_QID, -1)),
        due=listed.due_ms,
        uniq_key=properties.get(UNIQ_KEY, ""),
        position=listed.serial,
        size=listed.size,
        born=message.born_timestamp if message is not None else 0,
    )
