"""A message that no consumer can decompress."""

from __future__ import annotations

from tests.broker.wire import send_header

from cometmq.message.sysflag import COMPRESSED
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.testing import Cluster

BODY = b"no zlib"


async def send_damaged(cluster: Cluster, topic: str) -> None:
    """Send a message whose flags say that it is compressed."""
    await send_damaged_to(cluster.broker(0).address, topic)


async def send_damaged_to(address: str, topic: str) -> None:
    """Send such a message to the broker at an address."""
    async with RemotingClient() as client:
        header = send_header(topic, sys_flag=COMPRESSED)
        answer = await client.invoke(address, RequestCode.SEND_MESSAGE_V2, header, BODY)
    assert answer.code == ResponseCode.SUCCESS
