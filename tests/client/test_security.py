"""Credentials and TLS of the client's classes; for real servers see tests/interop/access/test_security.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cometmq.client import (
    AccessDeniedError,
    Admin,
    ClientInstance,
    ClientRpcHook,
    Credentials,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    Security,
    SecurityConfigError,
    Tls,
    TlsError,
    TransactionProducer,
)
from cometmq.client.sync import SyncAdmin
from cometmq.remoting.bodies import BrokerData, QueueData, TopicRouteData, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import FLAG_RESPONSE, RemotingCommand, decode_command
from cometmq.remoting.frame import FrameDecoder
from cometmq.remoting.signing import signed_text
from cometmq.testing import Cluster

ACCOUNT = Credentials("account", "very-secret", "a-token")


class Guarded:
    """A nameserver and broker in one that keeps what it is asked, and lets nobody send."""

    def __init__(self) -> None:
        self.requests: list[RemotingCommand] = []
        self.address = ""

    @property
    def sends(self) -> list[RemotingCommand]:
        return [request for request in self.requests if request.code == RequestCode.SEND_MESSAGE_V2]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        while data := await reader.read(65536):
            for frame in decoder.feed(data):
                request = decode_command(frame)
                self.requests.append(request)
                if not request.is_oneway:
                    writer.write(self._answer(request).encode())
        writer.close()

    def _answer(self, request: RemotingCommand) -> RemotingCommand:
        answer = RemotingCommand(code=0, opaque=request.opaque, flag=FLAG_RESPONSE)
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            answer.body = encode_body(
                TopicRouteData(
                    queue_datas=[QueueData("broker-a", 4, 4, 6, 0)],
                    broker_datas=[BrokerData("cluster", "broker-a", {0: self.address})],
                )
            )
        elif request.code == RequestCode.SEND_MESSAGE_V2:
            answer.code = ResponseCode.SYSTEM_ERROR
            answer.remark = "org.apache.rocketmq.acl.common.AclException: No default permission for topic:Orders, …"
        return answer


@pytest.fixture
async def guarded() -> AsyncIterator[Guarded]:
    guarded = Guarded()
    server = await asyncio.start_server(guarded.serve, "127.0.0.1", 0)
    guarded.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield guarded
    server.close()


async def test_a_refusal_of_an_acl_is_told_at_once_and_not_tried_again(guarded: Guarded) -> None:
    async with Producer("group", guarded.address, security=Security(ACCOUNT)) as producer:
        with pytest.raises(AccessDeniedError, match="No default permission for topic:Orders") as refused:
            await producer.send(Message("Orders", b"x"))
    assert len(guarded.sends) == 1
    assert refused.value.code == 1
    assert "topicPerms" in (refused.value.next_step or "")
    assert "very-secret" not in str(refused.value)


def add_a_field(peer: str, request: RemotingCommand) -> None:
    """Fields that a hook adds are signed too."""
    request.ext_fields["unit"] = "blue"


@pytest.mark.parametrize("hooks", [[], [ClientRpcHook(before=add_a_field)]], ids=["no hook", "a hook"])
async def test_every_request_is_signed_after_the_hooks(guarded: Guarded, hooks: list[ClientRpcHook]) -> None:
    instance = ClientInstance(guarded.address, hooks=hooks, security=Security(ACCOUNT))
    async with instance, Producer("group", instance=instance) as producer:
        with pytest.raises(AccessDeniedError):
            await producer.send(Message("Orders", b"x"))
        await producer.send_oneway(Message("Orders", b"oneway"))
        await instance.send_heartbeats()
    codes = [request.code for request in guarded.requests]
    assert {RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.SEND_MESSAGE_V2, RequestCode.HEART_BEAT} <= set(codes)
    assert [request.body for request in guarded.sends] == [b"x", b"oneway"]
    for request in guarded.requests:
        fields = dict(request.ext_fields)
        assert (fields["AccessKey"], fields["SecurityToken"]) == ("account", "a-token")
        assert ("unit" in fields) is bool(hooks)
        assert fields.pop("Signature") == ACCOUNT.signature(signed_text(fields), request.body)


async def test_nothing_is_added_without_credentials(guarded: Guarded) -> None:
    async with Producer("group", guarded.address) as producer:
        with pytest.raises(AccessDeniedError):
            await producer.send(Message("Orders", b"x"))
    assert guarded.requests
    assert not any({"AccessKey", "Signature"} & request.ext_fields.keys() for request in guarded.requests)


async def nothing(*_: object) -> None:
    """A listener, local work or check that is never called."""


MAKERS = {
    "Producer": lambda **given: Producer("g", "127.0.0.1:1", **given),
    "TransactionProducer": lambda **given: TransactionProducer("g", nothing, nothing, "127.0.0.1:1", **given),
    "PushConsumer": lambda **given: PushConsumer("g", nothing, "127.0.0.1:1", **given),
    "LitePullConsumer": lambda **given: LitePullConsumer("g", "127.0.0.1:1", **given),
    "PullConsumer": lambda **given: PullConsumer("g", "127.0.0.1:1", **given),
    "Admin": lambda **given: Admin("127.0.0.1:1", **given),
}


@pytest.mark.parametrize("kind", MAKERS)
async def test_every_class_takes_security_or_finds_it_in_the_environment(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make: Any = MAKERS[kind]
    assert make().instance.remoting.credentials is None
    assert make(security=Security(ACCOUNT)).instance.remoting.credentials == ACCOUNT
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "from-outside")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "very-secret")
    assert make().instance.remoting.credentials == Credentials("from-outside", "very-secret")
    assert make(security=Security()).instance.remoting.credentials is None
    monkeypatch.delenv("ROCKETMQ_SECRET_KEY")
    with pytest.raises(SecurityConfigError, match=r"\$ROCKETMQ_SECRET_KEY is missing"):
        make()
    with pytest.raises(ValueError, match="pass security to the shared ClientInstance"):
        make(instance=ClientInstance(security=Security()), security=Security(ACCOUNT))


async def test_a_cluster_in_a_test_does_not_mind_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_TLS_ENABLE", "true")
    async with Cluster() as cluster, Producer("group", instance=cluster.client_instance()) as producer:
        assert await producer.send(Message("Orders", b"x"))


async def test_a_certificate_that_is_not_there_is_told_at_once() -> None:
    with pytest.raises(TlsError, match=r"/nowhere/ca\.pem: no such file"):
        Producer("group", "127.0.0.1:1", security=Security(tls=Tls("/nowhere/ca.pem")))


def test_the_synchronous_classes_take_security_too() -> None:
    with pytest.raises(TlsError, match=r"/nowhere/ca\.pem"):
        SyncAdmin("127.0.0.1:1", security=Security(tls=Tls("/nowhere/ca.pem")))
