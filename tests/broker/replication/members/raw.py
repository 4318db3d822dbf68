"""A follower and a master on raw connections: they send what a test says, and keep what comes."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, Self, cast

import msgspec
from tests.broker.replication.members.sides import SET_ID

from cometmq.broker.controller import Broker
from cometmq.broker.replication.frames import (
    REPORT_FIELD,
    SIGN_IN,
    TABLES_COPIED,
    Transfer,
    TransferReader,
    encode_report,
    member_transfer_head,
)
from cometmq.loop import close_server
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import FLAG_RESPONSE, RemotingCommand, decode_command
from cometmq.remoting.frame import FrameDecoder
from cometmq.remoting.signing import Credentials
from cometmq.testing import settle


def sign_in(by: Credentials | None = None, stamp: str | None = None, **changes: str | None) -> bytes:
    """The bytes by which a follower signs in; a field that is ``None`` is left out."""
    fields = {
        "member": "f#3",
        "epoch": "1",
        "setId": SET_ID,
        "address": "127.0.0.1:1",
        "haAddress": "127.0.0.1:2",
        "process": "p1",
        "logFileBytes": "65536",
        "heartbeatMs": "1000",
        REPORT_FIELD: "0",
    }
    given = {name: value for name, value in {**fields, **changes}.items() if value is not None}
    command = RemotingCommand(RequestCode.GET_BROKER_EPOCH_CACHE, opaque=77, ext_fields=given)
    if by is not None:
        by.sign(command, stamp)
    return SIGN_IN + command.encode()


class RawFollower(asyncio.Protocol):
    """One connection to a member's HA port."""

    def __init__(self) -> None:
        self.answers: list[RemotingCommand] = []
        self.transfers: list[Transfer] = []
        self.asks = 0
        """Number of times that it was asked to copy the tables."""
        self.closed = False
        self._frames = FrameDecoder(16 * 1024 * 1024)
        self._reader = TransferReader(is_member=True)
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, master: Broker) -> Self:
        loop = asyncio.get_running_loop()
        _, follower = await loop.create_connection(cls, "127.0.0.1", master.ha.port)
        await settle()
        return follower

    @classmethod
    async def signed_in(cls, master: Broker, offset: int, **changes: str | None) -> Self:
        """Sign in, and request the log from an offset on."""
        follower = await cls.connect(master)
        await follower.write(sign_in(None, None, **changes))
        assert follower.answer.code == ResponseCode.SUCCESS, follower.answer.remark
        await follower.report(offset)
        return follower

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.answers:
            for transfer in self._reader.feed(data):
                if transfer.asks_for_tables:
                    self.asks += 1
                else:
                    self.transfers.append(transfer)
        else:
            self.answers += [decode_command(frame) for frame in self._frames.feed(data)]

    def connection_lost(self, _error: Exception | None) -> None:
        self.closed = True

    async def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)
        await settle()

    async def report(self, offset: int) -> None:
        await self.write(encode_report(offset))

    def close(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    @property
    def answer(self) -> RemotingCommand:
        assert len(self.answers) == 1, self.answers
        return self.answers[0]

    @property
    def epochs(self) -> dict[str, Any]:
        return cast(dict[str, Any], msgspec.json.decode(self.answer.body))

    @property
    def log(self) -> bytes:
        """All bytes that have come; they continue each other."""
        at = self.transfers[0].offset
        for transfer in self.transfers:
            assert transfer.offset == at
            at += len(transfer.body)
        return b"".join(transfer.body for transfer in self.transfers)

    @property
    def confirmed(self) -> list[int]:
        return [transfer.confirmed for transfer in self.transfers]


def accepted(opaque: int, epoch: int = 1, **changes: Any) -> bytes:
    """A master's answer that accepts a follower of its empty log."""
    body = {"epoch": epoch, "epochs": [], "begin": 0, "end": 0, "heartbeatMs": 1000, **changes}
    return answered(opaque, ResponseCode.SUCCESS, msgspec.json.encode(body), epoch)


def answered(opaque: int, code: int, body: bytes = b"", epoch: object = 1, remark: str | None = None) -> bytes:
    command = RemotingCommand(
        code, opaque=opaque, flag=FLAG_RESPONSE, body=body, ext_fields={"epoch": str(epoch)}, remark=remark
    )
    return command.encode()


class RawMaster:
    """Listens for followers; keeps the last sign-in and the reports after it.

    :param epoch: accepts each follower in this epoch; 0 to answer nobody.
    """

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self.connections = 0
        self.request: RemotingCommand | None = None
        self.reports: list[int] = []
        self.tables_copied = 0
        self.is_open = False
        self.history: dict[str, Any] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.reports, self.request, self.tables_copied = [], None, 0
        self._writer, self.is_open = writer, True
        frames, rest = FrameDecoder(), b""
        try:
            assert await reader.readexactly(len(SIGN_IN)) == SIGN_IN
            while data := await reader.read(65_536):
                if self.request is None:
                    for frame in frames.feed(data):
                        self.request = decode_command(frame)
                        if self.epoch:
                            writer.write(accepted(self.request.opaque, self.epoch, **self.history))
                    continue
                rest += data
                for (report,) in struct.iter_unpack(">q", rest[: len(rest) // 8 * 8]):
                    if report == TABLES_COPIED:
                        self.tables_copied += 1
                    else:
                        self.reports.append(report)
                rest = rest[len(rest) // 8 * 8 :]
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        self.is_open = False
        writer.close()

    async def send(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)
        await settle()

    async def transfer(self, offset: int, body: bytes, confirmed: int = 0) -> None:
        await self.send(member_transfer_head(offset, len(body), confirmed) + body)

    async def close_connection(self) -> None:
        """Close the connection, as the kernel does for a process that was killed."""
        assert self._writer is not None
        self._writer.transport.abort()
        await settle()

    async def stop(self) -> None:
        """Refuse connections from now on."""
        assert self._server is not None
        await close_server(self._server)
        if self._writer is not None:
            self._writer.transport.abort()
        await settle()


def silent_port() -> tuple[socket.socket, int]:
    """A port whose queue of connections is accepted by the kernel, and never served."""
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, int(listener.getsockname()[1])
