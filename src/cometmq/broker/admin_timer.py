"""What waits for its time, for administrators: GET_TIMER_CHECK_POINT (60), GET_TIMER_METRICS (61).

The bodies are RocketMQ 5's (``TimerCheckpoint.encode``, ``TimerMetrics``); 61 also tells, for each topic, how
many messages are due within a minute, an hour, a day, thirty days, and later.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import Any, Final

from cometmq.broker.timer import TimerMessageService
from cometmq.remoting.bodies import DataVersion, TimerMetrics, TopicTimerMetrics, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import NoHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server import ServerConnection
from cometmq.store.timer_count import WaitingOfTopic

_log = logging.getLogger(__name__)

_CHECK_POINT: Final = struct.Struct(">qqqqqqq")


class TimerAdmin:
    """Answers about waiting messages; counting is done by the timer log's thread."""

    def __init__(self, timer: TimerMessageService) -> None:
        self._timer = timer
        self._counting: set[asyncio.Task[None]] = set()

    def register(self, processors: ProcessorTable) -> None:
        """Answer the codes about waiting messages."""
        processors.register(RequestCode.GET_TIMER_CHECK_POINT, NoHeader, self.check_point)
        processors.register(RequestCode.GET_TIMER_METRICS, NoHeader, self.metrics)

    def check_point(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """GET_TIMER_CHECK_POINT (60): until when and from which queue offset on messages are delivered and read."""
        position = self._timer.intake.log.position
        return Response(body=_CHECK_POINT.pack(max(position.until_ms, 0), 0, position.serial, position.serial, 0, 0, 0))

    def metrics(self, connection: ServerConnection, request: Request[Any], _body: bytes) -> None:
        """GET_TIMER_METRICS (61)."""
        task = asyncio.get_running_loop().create_task(self._answer(connection, request), name="timer metrics")
        self._counting.add(task)
        task.add_done_callback(self._counting.discard)

    async def _answer(self, connection: ServerConnection, request: Request[Any]) -> None:
        try:
            topics = await self._timer.intake.count_waiting()
        except OSError as error:
            _log.error("messages that wait cannot be counted: %s", error)
            remark = f"messages that wait cannot be counted: {error.strerror}"
            connection.respond(request, Response(ResponseCode.SYSTEM_ERROR, remark=remark))
            return
        body = TimerMetrics(
            timing_count={name: _metrics(waiting) for name, waiting in topics.items()},
            data_version=DataVersion(timestamp=self._timer.intake.log.position.until_ms, counter=0),
        )
        connection.respond(request, Response(body=encode_body(body)))


def _metrics(waiting: WaitingOfTopic) -> TopicTimerMetrics:
    return TopicTimerMetrics(
        count=waiting.count,
        time_stamp=waiting.first_ms,
        first_due_time=waiting.first_ms,
        last_due_time=waiting.last_ms,
        due_within=waiting.due_within,
    )
