"""Accounts of ACL 1.0 and 2.0 over gRPC: who is refused, in which words, and what the audit log says of it."""

from __future__ import annotations

import copy
import datetime
import hashlib
import hmac
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from tests.proxy.client import Client, receive

from cometmq.auth.audit.reader import read_entries
from cometmq.auth.policies import EntryInfo, PolicyInfo
from cometmq.broker.controller import Broker
from cometmq.client.admin import Admin
from cometmq.client.instance import ClientInstance
from cometmq.proxy.call_accounts import SCHEME
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.proxy.sessions import Sessions
from cometmq.remoting.security import Security
from cometmq.remoting.signing import Credentials
from cometmq.testing import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

UNAUTHORIZED = Code.UNAUTHORIZED
assert UNAUTHORIZED == 40100
G, T = v2.Resource(name="G"), v2.Resource(name="Ours")
ROOT = '{"username":"root-account","password":"secret-of-root"}'
INNER = '{"accessKey":"root-account","secretKey":"secret-of-root"}'
ACL_2 = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": ROOT,
    "innerClientAuthenticationCredentials": INNER,
}
ACL_1 = [
    {
        "accessKey": "alice-account",
        "secretKey": "secret-of-alice",
        "defaultTopicPerm": "DENY",
        "defaultGroupPerm": "DENY",
        "topicPerms": ["Ours=PUB|SUB"],
        "groupPerms": ["G=SUB"],
    },
]


def signed(name: str, secret: str, *, at: datetime.datetime | None = None, upper: bool = False) -> dict[str, str]:
    """The headers with which Apache's clients sign a call."""
    moment = (at or datetime.datetime.now(datetime.UTC)).strftime("%Y%m%dT%H%M%SZ")
    digest = hmac.new(secret.encode(), moment.encode(), hashlib.sha1).hexdigest()
    digest = digest.upper() if upper else digest
    words = f"Credential={name}, SignedHeaders=x-mq-date-time, Signature={digest}"
    return {"x-mq-date-time": moment, "authorization": f"{SCHEME} {words}"}


ALICE = signed("alice-account", "secret-of-alice")


def client_of(channel: grpc.aio.Channel, headers: dict[str, str]) -> Client:
    client = Client(channel)
    client.metadata = (*client.metadata, *headers.items())
    return client


@asynccontextmanager
async def running(
    data: Path, acl: int, *, accounts: Sequence[Mapping[str, Any]] = ACL_1, **keys: str
) -> AsyncIterator[Cluster]:
    """A cluster with alice, who may use the topic Ours and the group G."""
    audited = {"auditLogEnable": "true", **keys}
    if acl == 2:
        audited |= ACL_2
    async with Cluster(data=data, grpc=True, accounts=accounts if acl == 1 else None, broker_keys=audited) as it:
        security = it.security if acl == 1 else Security(Credentials("root-account", "secret-of-root"))
        if acl == 2:
            add_alice(it.broker(0))
        async with Admin(instance=ClientInstance(it.namesrv_address, security=security)) as admin:
            for topic in ("Ours", "Theirs"):
                await admin.create_topic(topic)
        yield it


def add_alice(broker: Broker) -> None:
    assert broker.access is not None
    table = broker.access.users
    assert table is not None
    table.create("alice-account", "secret-of-alice", "Normal")
    entries = [EntryInfo(name, ["Pub", "Sub"], decision="Allow") for name in ("Topic:Ours", "Group:G")]
    table.put_policies("alice-account", [PolicyInfo("Custom", entries)])


@dataclass(frozen=True)
class Guarded:
    """A cluster with accounts of ACL 1.0 or 2.0, and a channel to it."""

    acl: int
    channel: grpc.aio.Channel
    sessions: Sessions

    def client(self, headers: dict[str, str]) -> Client:
        return client_of(self.channel, headers)


@pytest_asyncio.fixture(params=[1, 2], ids=["acl-1.0", "acl-2.0"], scope="module", loop_scope="module")
async def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    async with (
        running(tmp_path_factory.mktemp("guarded"), request.param) as cluster,
        grpc.aio.insecure_channel(cluster.grpc_address) as channel,
    ):
        yield Guarded(request.param, channel, cluster.endpoint(0).sessions)


@pytest.mark.parametrize("upper", [False, True], ids=["lower-hex", "upper-hex"])
async def test_an_account_with_the_right_key_sends_receives_and_acknowledges(guarded: Guarded, upper: bool) -> None:
    client = guarded.client(signed("alice-account", "secret-of-alice", upper=upper))
    await client.subscribe("G", "Ours")
    assert (await client.send("Ours", b"one")).status.code == Code.OK
    answers = await client.receive(receive("Ours", "G", "broker-0"))
    found = answers[1].message
    entry = v2.AckMessageEntry(message_id="x", receipt_handle=found.system_properties.receipt_handle)
    acked = await client.ask("AckMessage", v2.AckMessageRequest(group=G, topic=T, entries=[entry]))
    assert (found.body, acked.status.code) == (b"one", Code.OK)


WORDS = {
    "no-keys": ({}, "No accessKey is configured", "username cannot be null."),
    "other-scheme": (
        {"authorization": "Basic YWxpY2U6c2VjcmV0"},
        "No accessKey is configured",
        "username cannot be null.",
    ),
    "unknown": (
        signed("mallory-account", "secret"),
        "No acl config for mallory-account",
        "User:mallory-account is not found.",
    ),
    "wrong-secret": (
        signed("alice-account", "another-secret"),
        "Check signature failed for accessKey=alice-account",
        "check signature failed.",
    ),
    "no-signature": (
        {"authorization": f"{SCHEME} Credential=alice-account"},
        "Check signature failed for accessKey=alice-account",
        "check signature failed.",
    ),
    "not-hex": (
        ALICE | {"authorization": f"{SCHEME} Credential=alice-account, Signature=zz"},
        "Check signature failed for accessKey=alice-account",
        "check signature failed.",
    ),
    "another-moment": (
        ALICE | {"x-mq-date-time": "20200101T000000Z"},
        "Check signature failed for accessKey=alice-account",
        "check signature failed.",
    ),
}
"""Headers, and the words of ACL 1.0 and 2.0 for them."""


@pytest.mark.parametrize("case", WORDS)
async def test_a_caller_without_a_valid_signature_is_refused_in_rocketmqs_words(guarded: Guarded, case: str) -> None:
    headers, *words = WORDS[case]
    answer = await guarded.client(headers).send("Ours", b"body")
    assert (answer.status.code, answer.status.message) == (UNAUTHORIZED, words[guarded.acl - 1])
    with pytest.raises(grpc.aio.AioRpcError, match=re.escape(words[guarded.acl - 1])):
        await refused_telemetry(guarded.client(headers))


async def refused_telemetry(client: Client) -> None:
    stream = client.telemetry()
    publishing = v2.Publishing(topics=[v2.Resource(name="Ours")])
    settings = v2.Settings(client_type=v2.ClientType.PRODUCER, publishing=publishing)
    await stream.call.write(v2.TelemetryCommand(settings=settings))
    await stream.call.read()
    raise AssertionError(await stream.call.code())


async def test_nobody_is_remembered_before_the_account_is_checked(guarded: Guarded) -> None:
    before = len(guarded.sessions)
    for headers in ({}, signed("alice-account", "wrong"), signed("nobody", "secret")):
        client = guarded.client(headers)
        for name in ("QueryRoute", "QueryAssignment", "EndTransaction", "AckMessage", "RecallMessage", "QueryOffset"):
            request = getattr(v2, f"{name}Request")()
            fields = {field.name for field in request.DESCRIPTOR.fields}
            if "topic" in fields:
                request.topic.name = "Ours"
            if "message_queue" in fields:
                request.message_queue.topic.name = "Ours"
            if "group" in fields:
                request.group.name = "G"
            assert (await client.ask(name, request)).status.code == UNAUTHORIZED
        assert (await client.ask("Heartbeat", v2.HeartbeatRequest())).status.code == UNAUTHORIZED
        left = await client.ask("NotifyClientTermination", v2.NotifyClientTerminationRequest())
        assert left.status.code == UNAUTHORIZED
        with pytest.raises(grpc.aio.AioRpcError):
            await refused_telemetry(client)
    assert len(guarded.sessions) == before


async def test_a_client_is_ended_by_no_other_account_that_uses_its_id(tmp_path: Path) -> None:
    bob = {**copy.deepcopy(ACL_1[0]), "accessKey": "bob-account", "secretKey": "secret-of-bob"}
    async with (
        running(tmp_path, 1, accounts=[*ACL_1, bob]) as cluster,
        grpc.aio.insecure_channel(cluster.grpc_address) as channel,
    ):
        alice, other = client_of(channel, ALICE), client_of(channel, signed("bob-account", "secret-of-bob"))
        other.metadata = (alice.metadata[0], *other.metadata[1:])
        stream = await alice.publish("Ours")
        left = await other.ask("NotifyClientTermination", v2.NotifyClientTerminationRequest())
        assert left.status.code == Code.UNRECOGNIZED_CLIENT_TYPE
        await other.publish("Ours")
        await stream.settings(v2.Settings(publishing=v2.Publishing(topics=[T])))
        assert (await alice.ask("Heartbeat", v2.HeartbeatRequest())).status.code == Code.OK


def denial(acl: int, kind: str, name: str) -> str:
    if acl == 1:
        return f"No default permission for {kind.lower()}:{name}"
    return f"User:alice-account has no permission to access {kind}:{name} from 127.0.0.1, no matched policies."


async def test_a_topic_that_the_account_may_not_use_is_refused(guarded: Guarded) -> None:
    client = guarded.client(ALICE)
    sent = await client.send("Theirs", b"body")
    received = await client.receive(receive("Theirs", "G", "broker-0"))
    route = await client.ask("QueryRoute", v2.QueryRouteRequest(topic=v2.Resource(name="Theirs")))
    for status in (sent.status, received[0].status, route.status):
        assert (status.code, status.message) == (UNAUTHORIZED, denial(guarded.acl, "Topic", "Theirs"))


async def test_a_group_that_the_account_may_not_use_is_refused(guarded: Guarded) -> None:
    client = guarded.client(ALICE)
    other = v2.Resource(name="Other")
    received = await client.receive(receive("Ours", "Other", "broker-0"))
    beat = await client.ask("Heartbeat", v2.HeartbeatRequest(group=other, client_type=v2.ClientType.SIMPLE_CONSUMER))
    queue = v2.MessageQueue(topic=T, id=0, broker=v2.Broker(name="broker-0"))
    moved = await client.ask("UpdateOffset", v2.UpdateOffsetRequest(group=other, message_queue=queue, offset=0))
    for status in (received[0].status, beat.status, moved.status):
        assert (status.code, status.message) == (UNAUTHORIZED, denial(guarded.acl, "Group", "Other"))


async def test_an_address_of_the_white_list_needs_no_keys(tmp_path: Path) -> None:
    white = [{**ACL_1[0], "whiteRemoteAddress": "127.0.0.*"}]
    async with (
        running(tmp_path, 1, accounts=white) as cluster,
        grpc.aio.insecure_channel(cluster.grpc_address) as channel,
    ):
        client = client_of(channel, {"authorization": f"{SCHEME} Credential=alice-account"})
        assert (await client.send("Theirs", b"body")).status.code == Code.OK


async def test_only_fresh_signatures_are_taken_where_they_are_required(tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    async with (
        running(tmp_path, 2, requireFreshSignatures="true") as cluster,
        grpc.aio.insecure_channel(cluster.grpc_address) as channel,
    ):

        async def send(headers: dict[str, str]) -> v2.Status:
            status = (await client_of(channel, headers).send("Ours", b"body")).status
            assert isinstance(status, v2.Status)
            return status

        assert (await send(signed("alice-account", "secret-of-alice"))).code == Code.OK
        for hours, words in ((-8, r"the signature is 28,\d{3} s old; the maximum"), (8, "s ahead; the maximum")):
            at = now + datetime.timedelta(hours=hours)
            status = await send(signed("alice-account", "secret-of-alice", at=at))
            assert status.code == UNAUTHORIZED
            assert re.search(words, status.message)
        moment = "yesterday"
        digest = hmac.new(b"secret-of-alice", moment.encode(), hashlib.sha1).hexdigest()
        status = await send(
            {
                "x-mq-date-time": moment,
                "authorization": f"{SCHEME} Credential=alice-account, Signature={digest}",
            }
        )
        assert (status.code, status.message) == (
            UNAUTHORIZED,
            "x-mq-date-time is malformed; the form is 20260131T235959Z",
        )


async def test_logins_denials_and_samples_are_in_the_audit_log(tmp_path: Path) -> None:
    async with running(tmp_path, 2, auditLogSampling="1") as cluster:
        broker = cluster.broker(0)
        assert broker.access is not None
        async with grpc.aio.insecure_channel(cluster.grpc_address) as channel:
            alice = client_of(channel, ALICE)
            assert (await alice.send("Ours", b"body")).status.code == Code.OK
            assert (await alice.send("Theirs", b"body")).status.code == UNAUTHORIZED
            forged = signed("alice-account", "another-secret")
            assert (await client_of(channel, forged).send("Ours", b"body")).status.code == UNAUTHORIZED
        assert broker.access.guard.denials == 2
    path = tmp_path / "broker-0" / "audit" / "audit.log"
    found = [one for one in read_entries(path, lambda *_: None) if one.get("code") != 17]
    told = [
        (one["event"], one.get("account"), one.get("claimed"), one.get("request"), one.get("resources"))
        for one in found
        if one.get("account") == "alice-account" or "claimed" in one
    ]
    assert told == [
        ("login", "alice-account", None, None, None),
        ("sample", "alice-account", None, "SEND_MESSAGE_V2", ["Topic:Ours Pub"]),
        ("denied", "alice-account", None, "SEND_MESSAGE_V2", ["Topic:Theirs Pub"]),
        ("denied", None, "alice-account", "SEND_MESSAGE_V2", ["Topic:Ours Pub"]),
    ]
    assert "secret" not in json.dumps(found)
