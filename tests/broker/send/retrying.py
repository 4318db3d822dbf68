"""Failed messages, handed back over a wire."""

from __future__ import annotations

from typing import Any, Final

from tests.broker.wire import Wire
from tests.helpers.contents import stored

from cometmq.broker.controller import Broker
from cometmq.message.record import StoredRecord
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import ConsumerSendMsgBackRequestHeader

GROUP: Final = "workers"
RETRY: Final = f"%RETRY%{GROUP}"
DEAD: Final = f"%DLQ%{GROUP}"


async def hand_back(wire: Wire, offset: int, *, version: int = 407, **fields: Any) -> RemotingCommand:
    """Hand a message back, as a Java client does."""
    values: dict[str, Any] = {"group": GROUP, "delay_level": 0, "origin_msg_id": "x", "origin_topic": "T"} | fields
    command = wire.command(
        RequestCode.CONSUMER_SEND_MSG_BACK, ConsumerSendMsgBackRequestHeader(offset=offset, **values)
    )
    command.version = version
    return await wire.ask(command)


async def sent(broker: Broker, wire: Wire, **fields: Any) -> StoredRecord:
    """One message in T, as stored."""
    answer = await wire.send("T", b"body", **fields)
    assert answer.code == ResponseCode.SUCCESS
    return stored(broker, "T")[-1]
