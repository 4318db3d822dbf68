"""Sends to a SYNC_MASTER that are answered when slaves have reported, and the reports."""

from __future__ import annotations

from typing import Any

from tests.broker.replication.slave import RawSlave
from tests.broker.wire import Wire, send_header

from cometmq.broker.controller import Broker
from cometmq.remoting.codes import RequestCode
from cometmq.testing import settle


class Sender:
    """Posts sends, and knows the codes of those that are answered."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.posted: list[int] = []

    async def post(self, code: int = RequestCode.SEND_MESSAGE_V2, body: bytes = b"x", **fields: Any) -> None:
        command = self.wire.command(code, send_header("T", **fields), body)
        self.posted.append(command.opaque)
        self.wire.post(command)
        await settle()

    async def codes(self) -> list[int]:
        """The codes of all answers so far, in the order of the sends; every other one still waits."""
        await settle()
        while self.wire.reader._buffer:  # type: ignore[attr-defined]
            await self.wire.read()
        return [self.wire.answers[opaque].code for opaque in self.posted if opaque in self.wire.answers]


async def in_sync(slave: RawSlave, master: Broker) -> None:
    """The slave acknowledges everything."""
    await slave.report(master.store.max_physical_offset)
