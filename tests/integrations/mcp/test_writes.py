"""Changes in two steps: a plan, and its execution with a token that permits only this change."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.integrations.mcp.conftest import Agent, MakeAgent

from cometmq.client import Admin, Message
from cometmq.client.consumer.listener import Retry
from cometmq.integrations.mcp.options import MAX_PLANS, PLAN_SECONDS
from cometmq.testing import Cluster, VirtualClock

DRASTIC = {"break_glass": True, "reason": "the user wants it"}


async def test_a_topic_is_created_changed_and_deleted(writer: Agent, admin: Admin) -> None:
    arguments: dict[str, Any] = {"topicName": "letters", "writeQueues": 2, "type": "FIFO"}
    plan = await writer.ask("rmq.topic.update", dry_run=True, **arguments)
    assert plan["plan"].keys() == {"summary", "impact", "before", "after", "warnings"}
    assert (plan["plan"]["before"], plan["plan"]["summary"]) == ({}, "Create topic letters on 1 broker.")
    assert "letters" not in await admin.topics(), "a plan changes nothing"
    done = await writer.ask("rmq.topic.update", confirm_token=plan["confirm_token"], **arguments)
    assert (done["status"], done["result"]) == ("EXECUTED", {"topicName": "letters", "createdOn": ["broker-0"]})
    assert "confirm_token" not in done
    assert await admin.topic_types("letters") == {"broker-0": "FIFO"}
    changed = await writer.change("rmq.topic.update", topicName="letters", perm="RO")
    fields = {"type": "FIFO", "writeQueues": 2, "readQueues": 2}
    assert changed["plan"]["before"] == {"broker-0": {**fields, "perm": "RW"}}
    assert changed["plan"]["after"] == {"broker-0": {**fields, "perm": "RO"}}
    assert await admin.topic_types("letters") == {"broker-0": "FIFO"}, "other settings remain"
    await writer.change("rmq.topic.delete", topicName="letters", **DRASTIC)
    assert "letters" not in await admin.topics()


async def test_a_group_is_created_changed_reset_and_deleted(writer: Agent, admin: Admin, cluster: Cluster) -> None:
    for _ in range(3):
        await cluster.send(Message("orders", b"x"))
    await writer.change("rmq.group.update", groupName="workers", retryMaxTimes=3)
    changed = await writer.change("rmq.group.update", groupName="workers", deliveryOrderType="Orderly")
    assert changed["plan"]["before"]["broker-0"]["retryMaxTimes"] == 3
    assert (await admin.groups())["workers"].consume_message_orderly is True
    (queue,) = await admin.queues("orders")
    done = await writer.change("rmq.group.reset_offset", groupName="workers", topicName="orders")
    assert done["result"] == {"reset": True, "group": "workers", "topic": "orders", "timestamp": -1}
    assert await admin.offsets.committed("workers", queue) == 3
    back = await writer.change("rmq.group.reset_offset", groupName="workers", topicName="orders", timestamp=0)
    assert back["plan"]["warnings"] == ["3 messages would be consumed again."]
    assert await admin.offsets.committed("workers", queue) == 0
    await writer.change("rmq.group.delete", groupName="workers", **DRASTIC)
    assert "workers" not in await admin.groups()


async def test_a_group_with_members_is_not_deleted(writer: Agent, cluster: Cluster) -> None:
    async with cluster.inbox("orders", group="workers"):
        error = await writer.fail("rmq.group.delete", groupName="workers", **DRASTIC)
    assert "has 1 active member" in error


async def test_a_message_is_sent(writer: Agent, cluster: Cluster) -> None:
    async with cluster.inbox("orders") as inbox:
        properties = '{"source": "agent"}'
        done = await writer.change(
            "rmq.message.send", topicName="orders", body="hello", tag="t", key="k", properties=properties
        )
        (message,) = await inbox.expect(1)
    assert done["result"].keys() == {"msgId", "offsetMsgId", "sendTime"}
    assert (message.body, message.tags, message.keys, message.msg_id) == (
        b"hello",
        "t",
        ("k",),
        done["result"]["msgId"],
    )
    assert message.properties["source"] == "agent"


@pytest.mark.parametrize(
    ("kind", "arguments", "words"),
    [
        ("TRANSACTION", {}, "accepts only transactions"),
        ("FIFO", {}, "give messageGroup"),
        ("DELAY", {}, "give deliveryTimestamp"),
        ("NORMAL", {"properties": "[1]"}, "must be a JSON object of texts"),
        ("NORMAL", {"properties": "[" * 8000}, "must be a JSON object of texts"),
        ("NORMAL", {"properties": '{"KEYS": "x"}'}, "KEYS"),
        ("NORMAL", {"body": "\ud800"}, "has half a character"),
    ],
)
async def test_messages_that_a_topic_does_not_accept(
    writer: Agent, cluster: Cluster, kind: str, arguments: dict[str, str], words: str
) -> None:
    await cluster.create_topic("typed", 1, message_type=kind)
    given = {"topicName": "typed", "body": "x", **arguments}
    outcome = await writer.calls.run("rmq.message.send", given)
    if not outcome.failed:
        outcome = await writer.calls.run("rmq.message.send", {**given, "confirm_token": outcome["confirm_token"]})
    assert words in outcome["error"]


async def test_a_message_is_delivered_again_to_one_group(writer: Agent, cluster: Cluster) -> None:
    async with cluster.inbox("orders", group="workers") as inbox, cluster.inbox("orders", group="others") as others:
        result = await cluster.send(Message("orders", b"again", tags="t", keys=["k"]))
        await inbox.expect(1)
        await others.expect(1)
        done = await writer.change(
            "rmq.message.redelivery", groupName="workers", msgId=result.msg_id, sourceTopic="orders"
        )
        (copy,) = await inbox.expect(1)
        assert len(others.messages) == 1
    assert (copy.body, copy.topic, copy.tags, copy.keys) == (b"again", "orders", "t", ("k",))
    assert done["result"]["newMsgId"] == copy.msg_id
    assert done["result"]["targetTopic"] == "%RETRY%workers"


async def test_dead_letters_are_sent_again_once(writer: Agent, cluster: Cluster) -> None:
    async with cluster.inbox("orders", group="workers", answer=Retry(delay_level=-1)) as inbox:
        for number in range(3):
            await cluster.send(Message("orders", b"%d" % number))
            await inbox.expect(1)
        while not cluster.has_topic("%DLQ%workers"):
            await asyncio.sleep(0.01)
    async with cluster.inbox("orders", group="others") as others:
        await others.expect(3)
        done = await writer.change("rmq.message.redelivery_dlq", groupName="workers")
        assert (done["result"]["matched"], done["result"]["resent"], done["result"]["outcome"]) == (3, 3, "SUCCESS")
        await others.expect(3)
        again = await writer.change("rmq.message.redelivery_dlq", groupName="workers")
        assert (again["result"]["resent"], again["result"]["resentBefore"]) == (0, 3)
        assert len(others.messages) == 6


async def test_a_token_permits_one_change_once(writer: Agent, admin: Admin) -> None:
    plan = await writer.ask("rmq.topic.update", topicName="a")
    assert plan["status"] == "PLANNED", "without a token, nothing is carried out"
    token = plan["confirm_token"]
    for tool, arguments in (
        ("rmq.topic.update", {"topicName": "b"}),
        ("rmq.topic.update", {"topicName": "a", "perm": "RO"}),
        ("rmq.group.update", {"groupName": "a"}),
    ):
        fresh = (await writer.ask("rmq.topic.update", topicName="a"))["confirm_token"]
        error = await writer.fail(tool, confirm_token=fresh, **arguments)
        assert "belongs to another tool, to other arguments" in error
        assert "unknown or was used before" in await writer.fail("rmq.topic.update", topicName="a", confirm_token=fresh)
    assert "unknown" in await writer.fail("rmq.topic.update", topicName="a", confirm_token=token[::-1])
    assert not {"a", "b"} & {*await admin.topics()}
    await writer.ask("rmq.topic.update", topicName="a", confirm_token=token)
    assert "was used before" in await writer.fail("rmq.topic.update", topicName="a", confirm_token=token)
    stringified = await writer.ask("rmq.topic.update", topicName="c", writeQueues=2)
    token = stringified["confirm_token"]
    assert (await writer.ask("rmq.topic.update", topicName="c", writeQueues="2", confirm_token=token))["result"]


async def test_a_token_is_void_if_the_state_has_changed(writer: Agent, admin: Admin) -> None:
    plan = await writer.ask("rmq.topic.update", topicName="orders", perm="RO")
    await admin.create_topic("orders", queues=4)
    error = await writer.fail("rmq.topic.update", topicName="orders", perm="RO", confirm_token=plan["confirm_token"])
    assert "the state has changed since the plan; nothing was changed" in error


async def test_a_token_expires_and_old_ones_make_room(cluster: Cluster, make_agent: MakeAgent) -> None:
    clock = VirtualClock()
    agent = await make_agent(cluster, clock=clock, allow_writes=True)
    plan = await agent.ask("rmq.topic.update", topicName="a")
    clock.advance(PLAN_SECONDS + 1)
    assert "has expired" in await agent.fail("rmq.topic.update", topicName="a", confirm_token=plan["confirm_token"])
    tokens = [(await agent.ask("rmq.topic.update", topicName="a"))["confirm_token"] for _ in range(MAX_PLANS + 1)]
    assert "unknown" in await agent.fail("rmq.topic.update", topicName="a", confirm_token=tokens[0])
    await agent.ask("rmq.topic.update", topicName="a", confirm_token=tokens[-1])


async def test_a_loss_of_data_needs_a_reason(writer: Agent, admin: Admin) -> None:
    plan = await writer.ask("rmq.topic.delete", topicName="orders")
    assert "cannot be restored" in plan["plan"]["warnings"][0]
    error = await writer.fail("rmq.topic.delete", topicName="orders", confirm_token=plan["confirm_token"])
    assert "break_glass" in error
    assert "orders" in await admin.topics()
    token = plan["confirm_token"]
    await writer.ask("rmq.topic.delete", topicName="orders", confirm_token=token, **DRASTIC)
    assert "orders" not in await admin.topics()


async def test_topics_of_the_servers_are_not_changed(writer: Agent) -> None:
    for tool, arguments in (
        ("rmq.topic.update", {"topicName": "SCHEDULE_TOPIC_XXXX"}),
        ("rmq.topic.update", {"topicName": "%RETRY%workers"}),
        ("rmq.topic.delete", {"topicName": "rmq_sys_wheel_timer", **DRASTIC}),
        ("rmq.message.send", {"topicName": "RMQ_SYS_TRANS_HALF_TOPIC", "body": "x"}),
    ):
        assert "belongs to the servers" in await writer.fail(tool, **arguments)


async def test_a_copy_is_not_sent_to_a_topic_of_the_servers(writer: Agent, admin: Admin, cluster: Cluster) -> None:
    await admin.create_group("workers")
    result = await cluster.send(Message("orders", b"x"))
    arguments = {"groupName": "workers", "msgId": result.offset_msg_id, "targetTopic": "SCHEDULE_TOPIC_XXXX"}
    assert "belongs to the servers" in await writer.fail("rmq.message.redelivery", **arguments)


async def test_a_name_of_a_group_is_no_path(writer: Agent) -> None:
    error = await writer.fail("rmq.message.redelivery_dlq", groupName="../../outside")
    assert "illegal characters" in error


async def test_a_topic_with_many_queues_is_reset_and_deleted(writer: Agent, admin: Admin) -> None:
    await admin.create_topic("wide", queues=1_000)
    await admin.create_group("workers")
    plan = await writer.ask("rmq.group.reset_offset", groupName="workers", topicName="wide")
    assert plan["plan"]["before"]["furtherQueues"] == 900
    done = await writer.change("rmq.topic.delete", topicName="wide", **DRASTIC)
    assert done["plan"]["before"]["queues"]["furtherQueues"] == 900
    assert "wide" not in await admin.topics()


async def test_a_token_permits_one_of_two_calls_at_the_same_time(writer: Agent, cluster: Cluster) -> None:
    arguments = {"topicName": "orders", "body": "x"}
    token = (await writer.ask("rmq.message.send", **arguments))["confirm_token"]
    calls = [writer.calls.run("rmq.message.send", {**arguments, "confirm_token": token}) for _ in range(5)]
    outcomes = await asyncio.gather(*calls)
    assert sorted(outcome.failed for outcome in outcomes) == [False, True, True, True, True]
    assert len((await writer.ask("rmq.message.query_by_topic", topicName="orders"))["items"]) == 1


async def test_an_account_without_the_right_is_named(make_agent: MakeAgent) -> None:
    accounts = [
        {
            "accessKey": "reader-account",
            "secretKey": "12345678",
            "topicPerms": ["orders=SUB"],
            "groupPerms": ["TOOLS_CONSUMER=SUB"],
        }
    ]
    async with Cluster(accounts=accounts) as cluster:
        await cluster.create_topic("orders", 1)
        writer = await make_agent(cluster, allow_writes=True)
        await writer.change("rmq.message.send", topicName="orders", body="x")
        weak = await make_agent(cluster, allow_writes=True, as_account=("reader-account", "12345678"))
        assert (await weak.ask("rmq.message.query_by_topic", topicName="orders"))["items"]
        plan = await weak.ask("rmq.message.send", topicName="orders", body="x")
        error = await weak.fail("rmq.message.send", topicName="orders", body="x", confirm_token=plan["confirm_token"])
        assert "No default permission for topic:orders" in error
        assert "; this server uses account reader-account" in error
        assert "12345678" not in error


async def test_a_mistyped_topic_does_not_become_a_queue_s(writer: Agent, admin: Admin) -> None:
    error = await writer.fail("rmq.topic.update", topicName="mails.urgent")
    assert "that of a queue with this name is mails%2Eurgent" in error
    assert "mails.urgent" in await writer.fail("rmq.message.send", topicName="mails.urgent", body="x")
    assert not [topic for topic in await admin.topics() if topic.startswith("mails")]
