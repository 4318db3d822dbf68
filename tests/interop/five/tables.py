"""Topics with a message type, and consumer groups, made by requests that Apache's brokers of 5.x know, too."""

from __future__ import annotations

import json

from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode


async def make_topic(client: RemotingClient, broker: str, name: str, kind: str, queues: int) -> None:
    """Make a topic for messages of one kind: ``NORMAL``, ``FIFO``, …"""
    fields = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": f"+message.type={kind}",
    }
    answer = await client.invoke(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, None, ext=fields, timeout_s=20)
    assert answer.code == 0, answer.remark


async def make_group(client: RemotingClient, broker: str, name: str, **settings: object) -> None:
    """Make a consumer group with settings by their names on the wire."""
    body = json.dumps({"groupName": name, **settings}).encode()
    answer = await client.invoke(broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body, timeout_s=20)
    assert answer.code == 0, answer.remark
