"""Questions of administrators to clients over Telemetry: thread stacks, a message to consume."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from tests.proxy.client import Client, Telemetry

from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.remoting.admin_bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.remoting.admin_headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from cometmq.remoting.bodies import decode_body
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import Header
from cometmq.testing import Cluster


@pytest.fixture
async def stream(client: Client) -> Telemetry:
    """A push consumer's Telemetry."""
    return await client.subscribe("G", "T", kind=v2.ClientType.PUSH_CONSUMER)


async def ask(cluster: Cluster, code: int, header: Header) -> RemotingCommand:
    async with RemotingClient() as remoting:
        return await remoting.invoke(f"127.0.0.1:{cluster.broker(0).server.port}", code, header, timeout_s=20)


def ask_for_stacks(
    cluster: Cluster, client: Client, *, group: str = "G", jstack: bool = True
) -> asyncio.Task[RemotingCommand]:
    header = GetConsumerRunningInfoRequestHeader(consumer_group=group, client_id=client.client_id, jstack_enable=jstack)
    return asyncio.create_task(ask(cluster, RequestCode.GET_CONSUMER_RUNNING_INFO, header))


async def ask_to_consume(cluster: Cluster, client: Client, body: bytes) -> asyncio.Task[RemotingCommand]:
    """Let the client consume a message that it has received already."""
    await client.send("T", body)
    async with cluster.inbox("T") as inbox:
        (found,) = await inbox.expect(1)
    header = ConsumeMessageDirectlyResultRequestHeader(
        consumer_group="G", client_id=client.client_id, msg_id=found.offset_msg_id
    )
    return asyncio.create_task(ask(cluster, RequestCode.CONSUME_MESSAGE_DIRECTLY, header))


async def test_a_client_prints_its_thread_stacks(cluster: Cluster, client: Client, stream: Telemetry) -> None:
    asked = ask_for_stacks(cluster, client)
    command = (await stream.read()).print_thread_stack_trace_command
    trace = v2.ThreadStackTrace(nonce=command.nonce, thread_stack_trace="main: sleeps")
    await stream.call.write(v2.TelemetryCommand(status=v2.Status(code=Code.OK), thread_stack_trace=trace))
    answer = await asked
    assert answer.code == 0, answer
    info = decode_body(ConsumerRunningInfo, answer.body)
    assert info.jstack == "main: sleeps"
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert [found.topic for found in info.subscription_set] == ["T"]


async def test_without_stacks_the_endpoint_answers_for_the_client(
    cluster: Cluster, client: Client, stream: Telemetry
) -> None:
    info = decode_body(ConsumerRunningInfo, (await ask_for_stacks(cluster, client, jstack=False)).body)
    assert (info.jstack, [found.topic for found in info.subscription_set]) == (None, ["T"])
    assert not stream.call.done()


@pytest.mark.parametrize(
    ("code", "result"),
    [(Code.OK, "CR_SUCCESS"), (Code.FAILED_TO_CONSUME_MESSAGE, "CR_LATER"), (Code.MESSAGE_CORRUPTED, "CR_RETURN_NULL")],
)
async def test_a_push_consumer_verifies_a_message(
    cluster: Cluster, client: Client, stream: Telemetry, code: Code, result: str
) -> None:
    asked = await ask_to_consume(cluster, client, b"again")
    command = (await stream.read()).verify_message_command
    assert (command.message.topic.name, command.message.body) == ("T", b"again")
    verified = v2.VerifyMessageResult(nonce=command.nonce)
    await stream.call.write(v2.TelemetryCommand(status=v2.Status(code=code), verify_message_result=verified))
    answer = await asked
    assert answer.code == 0, answer
    assert decode_body(ConsumeMessageDirectlyResult, answer.body).consume_result == result


async def test_a_client_that_cannot_verify_says_so_and_keeps_its_stream(
    cluster: Cluster, client: Client, stream: Telemetry
) -> None:
    asked = await ask_to_consume(cluster, client, b"again")
    command = (await stream.read()).verify_message_command
    refusal = v2.Status(code=Code.NOT_IMPLEMENTED)
    back = v2.VerifyMessageCommand(nonce=command.nonce)
    await stream.call.write(v2.TelemetryCommand(status=refusal, verify_message_command=back))  # as Node's does
    answer = await asked
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "the client rejected the command: status 50100")
    assert not stream.call.done()


async def check_that_each_is_asked(cluster: Cluster, address: str) -> None:
    """Ask clients of two groups, two of them of one group, for their stacks, each twice: only the named one hears."""
    async with grpc.aio.insecure_channel(address) as channel:
        clients = [(group, Client(channel)) for group in ("G", "G", "H")]
        streams = [await one.subscribe(group, "T", kind=v2.ClientType.PUSH_CONSUMER) for group, one in clients]
        for number in (0, 1, 2, 0, 1, 2):
            group, one = clients[number]
            asked = ask_for_stacks(cluster, one, group=group)
            nonce = (await streams[number].read()).print_thread_stack_trace_command.nonce
            trace = v2.ThreadStackTrace(nonce=nonce, thread_stack_trace=one.client_id)
            command = v2.TelemetryCommand(status=v2.Status(code=Code.OK), thread_stack_trace=trace)
            await streams[number].call.write(command)
            assert decode_body(ConsumerRunningInfo, (await asked).body).jstack == one.client_id


async def test_of_several_clients_only_the_named_one_is_asked(cluster: Cluster) -> None:
    await check_that_each_is_asked(cluster, cluster.grpc_address)


async def test_a_client_is_asked_as_a_member_of_its_own_group_only(
    cluster: Cluster, client: Client, stream: Telemetry
) -> None:
    async with grpc.aio.insecure_channel(cluster.grpc_address) as channel:
        await Client(channel).subscribe("H", "T")
        answer = await ask_for_stacks(cluster, client, group="H")
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            f"The Consumer <H> <{client.client_id}> not online",
        )
    assert not stream.call.done()


async def test_another_client_cannot_answer(cluster: Cluster, client: Client, stream: Telemetry) -> None:
    async with grpc.aio.insecure_channel(cluster.grpc_address) as channel:
        other = await Client(channel).subscribe("G", "T")
        asked = ask_for_stacks(cluster, client)
        nonce = (await stream.read()).print_thread_stack_trace_command.nonce
        for one, text in ((other, "forged"), (stream, "real")):
            trace = v2.ThreadStackTrace(nonce=nonce, thread_stack_trace=text)
            await one.call.write(v2.TelemetryCommand(status=v2.Status(code=Code.OK), thread_stack_trace=trace))
            await Client(channel).ask("QueryRoute", v2.QueryRouteRequest(topic=v2.Resource(name="T")))
        assert decode_body(ConsumerRunningInfo, (await asked).body).jstack == "real"
