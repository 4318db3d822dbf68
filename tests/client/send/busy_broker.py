"""A server that plays a nameserver and busy brokers."""

from __future__ import annotations

from typing import Any

from cometmq.remoting.bodies import BrokerData, QueueData, TopicRouteData, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    GetRouteInfoRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server import RemotingServer

NO_ANSWER = -1


class Broker:
    """A nameserver and two brokers on one port; answers sends with the codes it is told, then stores."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.roles: dict[str, int | None] = {"a": 0, "b": 0}
        """brokerName -> the broker id that the nameserver names; None: it knows nothing of it."""
        self.asked: list[str | None] = []
        table = ProcessorTable()
        table.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader, self._route)
        table.register(RequestCode.SEND_MESSAGE_V2, SendMessageRequestHeaderV2, self._send)
        table.register(RequestCode.SEND_BATCH_MESSAGE, SendMessageRequestHeaderV2, self._send)
        self.server = RemotingServer(table)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def _route(self, connection: Any, request: Request[GetRouteInfoRequestHeader], body: bytes) -> Response:
        known = {name: role for name, role in self.roles.items() if role is not None}
        if not known:
            return Response(ResponseCode.TOPIC_NOT_EXIST, remark="no route info")
        route = TopicRouteData(
            broker_datas=[
                BrokerData(cluster="c", broker_name=name, broker_addrs={role: self.address})
                for name, role in known.items()
            ],
            queue_datas=[QueueData(broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=6) for name in known],
        )
        return Response(body=encode_body(route))

    def _send(self, connection: Any, request: Request[SendMessageRequestHeaderV2], body: bytes) -> Response | None:
        self.asked.append(request.header.broker_name)
        code = self.codes.pop(0) if self.codes else 0
        if code == NO_ANSWER:
            return None
        stored = code in (0, 10, 11, 12)
        header = SendMessageResponseHeader("0" * 32, request.header.queue_id, 5) if stored else None
        return Response(code, header, None if stored else "told to")
