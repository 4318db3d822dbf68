"""A raw connection to a broker, and the requests that most tests send over it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from cometmq.message.record import StoredRecord, iter_records
from cometmq.message.sysflag import PULL_SUBSCRIPTION, PULL_SUSPEND
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand, decode_command
from cometmq.remoting.frame import JSON, FrameDecoder
from cometmq.remoting.headers import (
    Header,
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
    to_ext,
)


class Wire:
    """One connection that speaks frames; answers are found by opaque, requests of the broker are kept in ``pushed``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.pushed: list[RemotingCommand] = []
        self.answers: dict[int, RemotingCommand] = {}
        self._decoder = FrameDecoder()
        self._opaques = itertools.count(1)

    def post(self, command: RemotingCommand) -> None:
        """Send a request and do not wait."""
        self.writer.write(command.encode())

    async def read(self, timeout_s: float = 60) -> None:
        """Take in what arrives next; ConnectionError when the broker hangs up."""
        data = await asyncio.wait_for(self.reader.read(1 << 20), timeout_s)
        if not data:
            raise ConnectionError("the broker closed the connection")
        for frame in self._decoder.feed(data):
            command = decode_command(frame)
            if command.is_response:
                self.answers[command.opaque] = command
            else:
                self.pushed.append(command)

    async def read_to_the_end(self) -> None:
        """Take in everything until the broker hangs up."""
        try:
            while True:
                await self.read()
        except ConnectionError:
            return

    async def answer(self, opaque: int, timeout_s: float = 60) -> RemotingCommand:
        """Wait for the answer to one request."""
        while opaque not in self.answers:
            await self.read(timeout_s)
        return self.answers.pop(opaque)

    async def ask(self, command: RemotingCommand, timeout_s: float = 60) -> RemotingCommand:
        """Send a request and wait for its answer."""
        self.post(command)
        return await self.answer(command.opaque, timeout_s)

    def command(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        ext: dict[str, str] | None = None,
        flag: int = 0,
        serialize_type: int = JSON,
    ) -> RemotingCommand:
        """A request with a typed header, further fields, or both."""
        fields = {} if header is None else to_ext(header)
        return RemotingCommand(
            code=code,
            opaque=next(self._opaques),
            flag=flag,
            ext_fields=fields | (ext or {}),
            body=body,
            serialize_type=serialize_type,
        )

    async def call(self, code: int, header: Header | None = None, body: bytes = b"", **more: Any) -> RemotingCommand:
        """Send a request made by :meth:`command` and wait for its answer."""
        return await self.ask(self.command(code, header, body, **more))

    async def send(self, topic: str, body: bytes = b"hello", **fields: Any) -> RemotingCommand:
        """Send one message and wait for the answer."""
        return await self.call(RequestCode.SEND_MESSAGE_V2, send_header(topic, **fields), body)

    async def pull(self, topic: str, **fields: Any) -> RemotingCommand:
        """Pull once and wait for the answer."""
        return await self.call(RequestCode.PULL_MESSAGE, pull_header(topic, **fields))

    async def close(self) -> None:
        """Hang up."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


Connect = Callable[[], Awaitable[Wire]]


def send_header(topic: str, **fields: Any) -> SendMessageRequestHeaderV2:
    """The header of a send, with a Java producer's values where none are given."""
    values: dict[str, Any] = {
        "producer_group": "producers",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_000,
        "flag": 0,
        "properties": "KEYS\x01k1\x02TAGS\x01TagA",
        "reconsume_times": 0,
    }
    return SendMessageRequestHeaderV2(**(values | fields))


def pull_header(topic: str, **fields: Any) -> PullMessageRequestHeader:
    """The header of a pull; ``wait_ms`` lets it wait."""
    wait_ms = fields.pop("wait_ms", None)
    values: dict[str, Any] = {
        "consumer_group": "consumers",
        "topic": topic,
        "queue_id": 0,
        "queue_offset": 0,
        "max_msg_nums": 32,
        "sys_flag": PULL_SUBSCRIPTION if wait_ms is None else PULL_SUBSCRIPTION | PULL_SUSPEND,
        "commit_offset": 0,
        "suspend_timeout_millis": wait_ms or 0,
        "sub_version": 0,
        "subscription": "*",
        "expression_type": "TAG",
    }
    return PullMessageRequestHeader(**(values | fields))


def records(answer: RemotingCommand) -> list[StoredRecord]:
    """The messages in an answer."""
    return list(iter_records(answer.body))
