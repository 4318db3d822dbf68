"""Replies to requests, sent and pushed over wires."""

from __future__ import annotations

from typing import Any

from tests.broker.wire import Wire, send_header

from cometmq.remoting.bodies import HeartbeatData, ProducerData, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import FLAG_RESPONSE, RemotingCommand

TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = {"MSG_TYPE": "reply", "CORRELATION_ID": "c1", "REPLY_TO_CLIENT": "asker", "TTL": "3000"}


def text(properties: dict[str, str]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


async def beat(wire: Wire, client: str = "asker", group: str = "pg") -> None:
    data = HeartbeatData(client_id=client, producer_data_set=[ProducerData(group_name=group)])
    assert (await wire.call(RequestCode.HEART_BEAT, body=encode_body(data))).code == ResponseCode.SUCCESS


def post_reply(wire: Wire, body: bytes = b"reply", properties: dict[str, str] = PROPERTIES, **fields: Any) -> int:
    header = send_header(TOPIC, properties=text(properties), **fields)
    command = wire.command(RequestCode.SEND_REPLY_MESSAGE_V2, header, body)
    wire.post(command)
    return command.opaque


async def pushed(wire: Wire) -> RemotingCommand:
    while not wire.pushed:
        await wire.read()
    return wire.pushed.pop()


def take(wire: Wire, push: RemotingCommand, code: int = 0) -> None:
    wire.post(RemotingCommand(code=code, opaque=push.opaque, flag=FLAG_RESPONSE))
