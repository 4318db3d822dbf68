"""Brokers that do not answer, large clusters, clients that go away: a call ends in time, and hurts no other call."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from mcp import Client
from tests.helpers.pace import is_in_time
from tests.integrations.mcp.conftest import Agent, MakeAgent

from cometmq.client import Admin, Message
from cometmq.integrations.mcp.calls import Calls, audited
from cometmq.integrations.mcp.options import MAX_RESULT_CHARS, McpOptions
from cometmq.integrations.mcp.serving import make_server
from cometmq.testing import Cluster, free_port
from cometmq.visible import json_text


async def test_a_frozen_broker_costs_only_its_own_calls_time(make_agent: MakeAgent) -> None:
    async with Cluster(2, links=True) as cluster:
        await cluster.create_topic("orders", 1)
        agent = await make_agent(cluster, call_seconds=3)
        assert len((await agent.ask("rmq.broker.list"))["items"]) == 2
        with cluster.pause_broker(1):
            began = time.monotonic()
            slow = asyncio.create_task(agent.fail("rmq.message.query_by_topic", topicName="orders"))
            await asyncio.sleep(0)
            (found,) = (await agent.ask("rmq.cluster.list"))["items"]
            assert found["name"] == "DefaultCluster"
            assert is_in_time(time.monotonic() - began, 1), "a slow call must not hold others up"
            assert "no complete answer within 3 seconds" in await slow
            assert is_in_time(time.monotonic() - began, 5)


async def test_a_change_that_was_not_answered_may_have_happened(make_agent: MakeAgent) -> None:
    async with Cluster(links=True) as cluster:
        await cluster.create_topic("orders", 1)
        writer = await make_agent(cluster, call_seconds=1, allow_writes=True)
        arguments = {"topicName": "orders", "body": "x"}
        token = (await writer.ask("rmq.message.send", **arguments))["confirm_token"]
        with cluster.pause_broker(0):
            error = await writer.fail("rmq.message.send", **arguments, confirm_token=token)
            reading = await writer.fail("rmq.topic.detail", topicName="orders")
    assert "the change may have been carried out, so look before you repeat it" in error
    assert "may have been carried out" not in reading


async def test_a_broker_that_is_gone_is_left_out_and_named(make_agent: MakeAgent) -> None:
    async with Cluster(2, links=True) as cluster:
        await cluster.create_topic("orders", 1)
        agent = await make_agent(cluster)
        with cluster.pause_broker(1):
            found = await agent.ask("rmq.broker.list")
        states = {item["name"]: item["status"] for item in found["items"]}
        assert states == {"broker-0": "online", "broker-1": "offline"}
        assert "did not respond" in next(item["reason"] for item in found["items"] if item["name"] == "broker-1")


async def test_a_server_that_is_not_there_is_named_and_found_later(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    calls = Calls(McpOptions(f"127.0.0.1:{port}", tmp_path))
    await calls.start()
    answers = await asyncio.gather(*(calls.run("rmq.topic.list", {}) for _ in range(20)))
    await calls.stop()
    assert all(answer.failed and str(port) in answer["error"] for answer in answers)


async def test_many_topics_are_pages(agent: Agent, cluster: Cluster, admin: Admin) -> None:
    topics = cluster.broker(0).topics
    for number in range(300):
        await admin.create_topic(f"topic-with-a-rather-long-name-{number:05}", queues=1, wait_s=0)
    assert len(topics.table) > 300
    answer = await agent.ask("rmq.topic.list", page={"pageSize": 100})
    assert len(json_text(answer)) <= MAX_RESULT_CHARS
    assert (len(answer["items"]), answer["total"], answer["truncated"]) == (100, 301, True)
    last = await agent.ask("rmq.topic.list", page={"page": 4, "pageSize": 100})
    assert (len(last["items"]), last["truncated"]) == (1, False)


async def test_a_call_that_is_cancelled_is_written_down(make_agent: MakeAgent) -> None:
    async with Cluster(links=True) as cluster:
        await cluster.create_topic("orders", 1)
        agent = await make_agent(cluster)
        await agent.ask("rmq.topic.detail", topicName="orders")
        with cluster.pause_broker(0):
            call = asyncio.create_task(agent.calls.run("rmq.message.query_by_topic", {"topicName": "orders"}))
            await asyncio.sleep(0.1)
            call.cancel()
            await asyncio.wait([call])
        await agent.calls.stop()
        lines = agent.calls.options.audit_file.read_text().splitlines()
    assert "cancelled by the client" in [json.loads(line).get("outcome") for line in lines]


def test_arguments_of_any_shape_can_be_written_down() -> None:
    deep: list[object] = []
    for _ in range(200):
        deep = [deep]
    found = audited({"a" * 1000: "b" * 10_000, "deep": deep, "number": 2**70, "none": None, "body": {"x": "geheim"}})
    text = json.dumps(found)
    assert len(text) < 2000
    assert "geheim" not in text


async def test_numbers_are_exact_for_clients_in_javascript(agent: Agent, cluster: Cluster) -> None:
    await cluster.send(Message("orders", b"x", properties={"big": "1915883588174806058"}))
    answer = await agent.ask("rmq.message.query_by_topic", topicName="orders")

    def numbers(value: object) -> list[int]:
        if isinstance(value, dict):
            return [found for one in value.values() for found in numbers(one)]
        if isinstance(value, list):
            return [found for one in value for found in numbers(one)]
        return [value] if isinstance(value, int) else []

    assert answer["items"][0]["properties"]["big"] == "1915883588174806058"
    assert all(abs(number) < 2**53 for number in numbers(answer))


async def test_many_clients_at_once(cluster: Cluster, make_agent: MakeAgent) -> None:
    first = await make_agent(cluster)

    async def one() -> int:
        async with Client(make_server(first.calls)) as client:
            result = await client.call_tool("rmq_topic_list", {})
            return len(result.structured_content["items"])

    assert await asyncio.gather(*(one() for _ in range(20))) == [1] * 20
