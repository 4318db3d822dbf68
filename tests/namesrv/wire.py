"""A raw connection to a nameserver, and tables of topics to register."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cometmq.remoting.admin_headers import RegisterBrokerRequestHeader
from cometmq.remoting.bodies import DataVersion, TopicConfig
from cometmq.remoting.command import RemotingCommand, decode_command
from cometmq.remoting.frame import FrameDecoder
from cometmq.remoting.headers import Header, to_ext
from cometmq.remoting.register_body import Registration, encode_registration


class Wire:
    """One connection that speaks frames and nothing more."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        """Send one request and return its answer; ConnectionError when the server hangs up."""
        self._writer.write(command.encode())
        while True:
            data = await asyncio.wait_for(self._reader.read(65_536), 60)
            if not data:
                raise ConnectionError("the server closed the connection")
            for frame in self._decoder.feed(data):
                return decode_command(frame)

    async def call(
        self, code: int, header: Header | None = None, body: bytes = b"", *, version: int = 409
    ) -> RemotingCommand:
        """Send a request with a typed header and return its answer."""
        fields = {} if header is None else to_ext(header)
        return await self.ask(RemotingCommand(code=code, opaque=7, version=version, ext_fields=fields, body=body))

    async def register(
        self,
        *,
        name: str = "broker-a",
        cluster: str = "DefaultCluster",
        address: str = "127.0.0.1:10911",
        broker_id: int = 0,
        ha: str = "127.0.0.1:10912",
        counter: int = 0,
        state: int | None = None,
        topics: dict[str, TopicConfig] | None = None,
        compressed: bool = False,
        body: bytes | None = None,
        crc: int | None = None,
    ) -> RemotingCommand:
        """Register a broker with these topics."""
        registration = Registration(DataVersion(counter=counter, state_version=state, timestamp=1), topics or {})
        header = RegisterBrokerRequestHeader(
            broker_name=name,
            broker_addr=address,
            cluster_name=cluster,
            ha_server_addr=ha,
            broker_id=broker_id,
            compressed=compressed,
            body_crc32=crc,
        )
        return await self.ask(
            RemotingCommand(
                code=103,
                opaque=1,
                ext_fields=to_ext(header),
                body=encode_registration(registration, compressed=compressed) if body is None else body,
            )
        )

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        await self._writer.wait_closed()


def topic(name: str, queues: int = 4, perm: int = 6, flag: int = 0) -> dict[str, TopicConfig]:
    """A table of one topic."""
    return {
        name: TopicConfig(
            topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm, topic_sys_flag=flag
        )
    }


Connect = Callable[[], Awaitable[Wire]]
