"""The MCP server with brokers of Apache RocketMQ: tools that read, each kind of change, and answers to why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from tests.interop.systems import Deployment, System

from cometmq.client import Message, Producer, TransactionProducer, TransactionState
from cometmq.client.consumer.config import ConsumeFromWhere, PushConfig
from cometmq.client.consumer.listener import Retry
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.integrations.mcp.calls import TOOLS, Calls
from cometmq.integrations.mcp.options import McpOptions
from cometmq.integrations.mcp.serving import make_server

pytestmark = pytest.mark.interop

FIRST = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)


class Agent:
    def __init__(self, client: Client) -> None:
        self.client = client

    async def ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, (tool, result.content)
        answer: dict[str, Any] = result.structured_content
        return answer

    async def change(self, tool: str, **arguments: Any) -> dict[str, Any]:
        plan = await self.ask(tool, **arguments)
        return await self.ask(tool, confirm_token=plan["confirm_token"], **arguments)

    async def why(self, msg_id: str, group: str = "workers") -> tuple[str, str]:
        found = await self.ask("why_not_consumed", topicName="orders", groupName=group, msgId=msg_id)
        return found["cause"], found["answer"]

    async def until(self, cause: str, msg_id: str, group: str = "workers") -> str:
        """Ask until this is the cause: Apache's brokers build indexes, and register topics, some time later."""
        async with asyncio.timeout(60):
            while (found := await self.why(msg_id, group))[0] != cause:
                await asyncio.sleep(0.5)
        return found[1]


@pytest.mark.parametrize("system", [System.APACHE, System.APACHE55], ids=lambda system: system.value)
async def test_tools_work_with_apaches_brokers(
    deploy: Callable[..., Deployment], system: System, tmp_path: Path
) -> None:
    deployment = deploy(system, system, enablePropertyFilter="true")
    calls = Calls(McpOptions(deployment.address, tmp_path / "mcp", allow_writes=True))
    await calls.start()
    async with Client(make_server(calls)) as client:
        agent = Agent(client)
        await agent.change("rmq.topic.update", topicName="orders", writeQueues=1)
        await agent.change("rmq.group.update", groupName="workers", retryMaxTimes=1)
        sent = (await agent.change("rmq.message.send", topicName="orders", body="x", tag="a", key="k"))["result"]
        await agent.until("members", sent["msgId"])
        (broker,) = (await agent.ask("rmq.broker.list"))["items"]
        names = {"topicName": "orders", "groupName": "workers", "brokerName": broker["name"], "queueId": 0, "offset": 0}
        names |= {"msgId": sent["msgId"]}
        for tool in TOOLS:
            if tool.reads:
                known = {name: value for name, value in names.items() if name in tool.schema()["properties"]}
                await agent.ask(tool.name, **known)
        (found,) = (await agent.ask("rmq.message.query", topicName="orders", key="k"))["items"]
        assert (found["msgId"], found["tag"]) == (sent["msgId"], "a")
        await see_why(agent, deployment, is_5=system.is_apache_5)
        await agent.change("rmq.group.reset_offset", groupName="workers", topicName="orders", timestamp=0)
        await agent.change("rmq.message.redelivery", groupName="workers", msgId=sent["msgId"], sourceTopic="orders")
        drastic = {"break_glass": True, "reason": "the test is over"}
        await agent.change("rmq.group.delete", groupName="workers", **drastic)
        await agent.change("rmq.topic.delete", topicName="orders", **drastic)
    await calls.stop()


async def see_why(agent: Agent, deployment: Deployment, *, is_5: bool) -> None:
    async with Producer("p", deployment.address) as producer:
        await producer.send(Message("orders", b"x"))
        leveled = await producer.send(Message("orders", b"x", delay_level=18))
        assert "The message is delayed" in await agent.until("delayed", leveled.msg_id)
        if is_5:
            delayed = await producer.send(Message("orders", b"x", delay=timedelta(hours=1)))
            assert "The message is delayed" in await agent.until("delayed", delayed.msg_id)
    for state, words in (
        (TransactionState.UNKNOWN, "The message is half, or rolled back"),
        (TransactionState.ROLLBACK, "The message is half, or rolled back"),
    ):
        async with TransactionProducer(
            "tp", lambda *_, state=state: state, lambda _: None, deployment.address
        ) as transactions:
            half = await transactions.send_in_transaction(Message("orders", b"x"))
            assert words in await agent.until("transaction", half.msg_id)

    async def fail(_: object) -> Retry:
        return Retry()

    consumer = PushConsumer("workers", fail, deployment.address, config=FIRST)
    await consumer.subscribe("orders", "a")
    async with consumer, Producer("p", deployment.address) as producer:
        failed = await producer.send(Message("orders", b"x", tags="a"))
        assert "waits for retry 1" in await agent.until("retry", failed.msg_id)
        other = await producer.send(Message("orders", b"x", tags="b"))
        assert "filters the message out: it is TAG a" in await agent.until("subscription", other.msg_id)

    async def dead(_: object) -> Retry:
        return Retry(delay_level=-1)

    giving_up = PushConsumer("others", dead, deployment.address, config=FIRST)
    await giving_up.subscribe("orders", "*")
    async with giving_up, Producer("p", deployment.address) as producer:
        lost = await producer.send(Message("orders", b"x", tags="a"))
        await agent.until("dead letter", lost.msg_id, "others")
