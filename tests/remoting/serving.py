"""A server with a service of its own, and clients that write bytes as they like."""

from __future__ import annotations

import asyncio
from typing import Any

from cometmq.limits import ROUND_SECONDS
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand, decode_command
from cometmq.remoting.frame import FrameDecoder
from cometmq.remoting.headers import GetMaxOffsetRequestHeader, GetMaxOffsetResponseHeader, NoHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server import RemotingServer, ServerLimits
from cometmq.remoting.server_connection import ServerConnection
from cometmq.testing import VirtualClock

BIG = b"x" * 1_000_000


class Service:
    """A few codes: 30 answers, 31 fails, 32 and 11 answer big, 33 answers at the end of the turn, 34 keeps the
    connection, 35 takes a quarter of a turn, 36 answers what cannot be written, 37 takes five turns, 38
    repeats what was asked."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.table = ProcessorTable()
        self.table.register(30, GetMaxOffsetRequestHeader, self.answer)
        self.table.register(31, NoHeader, self.fail)
        self.table.register(32, NoHeader, self.answer_big)
        self.table.register(RequestCode.PULL_MESSAGE, NoHeader, self.answer_big)
        self.table.register(33, NoHeader, self.answer_at_end_of_turn)
        self.table.register(34, NoHeader, self.keep)
        self.table.register(35, NoHeader, self.work)
        self.table.register(36, NoHeader, lambda conn, request, body: Response(remark="\udcff"))
        self.table.register(37, NoHeader, self.work_long)
        self.table.register(38, NoHeader, lambda conn, request, body: Response(1, remark=body.decode()))
        self.server = RemotingServer(
            self.table, limits=ServerLimits(idle_timeout_s=120, frame_timeout_s=30), clock=self.clock
        )
        self.waiting: list[tuple[ServerConnection, Request[Any]]] = []
        self.turns: list[int] = []
        self.worked: list[ServerConnection] = []
        self.worked_before_answer = 0
        self.big_answers = 0
        self.big_before_answer = 0
        self.kept: list[ServerConnection] = []
        self.closed: list[ServerConnection] = []

    def answer(self, conn: ServerConnection, request: Request[GetMaxOffsetRequestHeader], body: bytes) -> Response:
        self.worked_before_answer = len(self.worked)
        self.big_before_answer = self.big_answers
        return Response(header=GetMaxOffsetResponseHeader(offset=request.header.queue_id * 10), body=body)

    def fail(self, conn: ServerConnection, request: Request[NoHeader], body: bytes) -> Response:
        raise RuntimeError("broken on purpose")

    def answer_big(self, conn: ServerConnection, request: Request[NoHeader], body: bytes) -> Response:
        self.worked_before_answer = len(self.worked)
        self.big_answers += 1
        return Response(body=[BIG[:1], memoryview(BIG)[1:]])

    def answer_at_end_of_turn(self, conn: ServerConnection, request: Request[NoHeader], body: bytes) -> None:
        self.waiting.append((conn, request))

    def end_round(self) -> None:
        if self.waiting:
            self.turns.append(len(self.waiting))
            for conn, request in self.waiting:
                conn.respond(request, Response())
            self.waiting.clear()

    def work(self, conn: ServerConnection, request: Request[NoHeader], body: bytes) -> Response:
        self.worked.append(conn)
        self.clock.advance(ROUND_SECONDS / 4)
        return Response()

    def work_long(self, conn: ServerConnection, request: Request[NoHeader], body: bytes) -> Response:
        self.worked.append(conn)
        self.clock.advance(ROUND_SECONDS * 5)
        return Response()

    def keep(self, conn: ServerConnection, request: Request[NoHeader], body: bytes) -> Response:
        self.kept.append(conn)
        conn.on_close.append(self.closed.append)
        return Response()


class Raw:
    """A raw client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.decoder = FrameDecoder()

    @classmethod
    async def connect(cls, service: Service) -> Raw:
        return cls(*await asyncio.open_connection("127.0.0.1", service.server.port))

    async def next(self) -> RemotingCommand | None:
        """The next frame, or None at the end of the stream."""
        while (frame := self.decoder.next()) is None:
            try:
                data = await asyncio.wait_for(self.reader.read(65536), 60)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self.decoder.push(data)
        return decode_command(frame)

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        self.writer.write(command.encode())
        answer = await self.next()
        assert answer is not None
        return answer

    async def close(self) -> None:
        self.writer.close()
        await asyncio.wait([asyncio.ensure_future(self.writer.wait_closed())], timeout=5)


def max_offset(opaque: int, queue_id: int | str = 4, **changes: Any) -> RemotingCommand:
    return RemotingCommand(code=30, opaque=opaque, ext_fields={"topic": "T", "queueId": str(queue_id)}, **changes)
