"""Our client with credentials and TLS, against real Apache servers that ask for them."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.broker.conftest import small_config
from tests.broker.wire import Wire
from tests.interop import builds
from tests.interop.access import secured, verdicts
from tests.interop.access.secured import BILLING, OPERATORS, Secured
from tests.interop.conftest import unavailable
from tests.interop.systems import System

from cometmq.broker.controller import Broker
from cometmq.client import (
    AccessDeniedError,
    Admin,
    ConsumeFromWhere,
    Credentials,
    LitePullConfig,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConfig,
    PushConsumer,
    RemotingConnectError,
    Security,
    Tls,
    TransactionProducer,
    TransactionState,
)
from cometmq.client.sync import SyncAdmin, SyncLitePullConsumer, SyncProducer
from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import QueryMessageRequestHeader

pytestmark = pytest.mark.interop

_numbers = itertools.count(1)
EARLIEST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@contextmanager
def serving(system: System, directory: Path) -> Iterator[Secured]:
    """Servers with the topics Orders, ReadOnly and Closed, made by the operators' account."""
    try:
        server = secured.deploy(system, directory)
    except builds.ToolMissingError as problem:
        unavailable(problem)
    with closing(server.deployment):
        with SyncAdmin(server.address, security=Security(OPERATORS)) as admin:
            for topic in ("Orders", "ReadOnly", "Closed"):
                admin.create_topic(topic, queues=2)
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Apache 4.9."""
    with serving(System.APACHE, tmp_path_factory.mktemp("secured")) as server:
        yield server


async def consumed(server: Secured, security: Security, wanted: set[bytes]) -> None:
    """Consume as group billing until all of these have come."""
    left = set(wanted)
    done = asyncio.Event()

    async def listener(messages: Sequence[MessageExt]) -> None:
        left.difference_update(message.body for message in messages)
        if not left:
            done.set()

    config = PushConfig(consume_from_where=EARLIEST)
    consumer = PushConsumer("billing", listener, server.address, config=config, security=security)
    await consumer.subscribe("Orders")
    async with consumer, asyncio.timeout(60):
        await done.wait()


@pytest.mark.parametrize("over_tls", [False, True], ids=["plain", "tls"])
async def test_the_right_key_sends_in_every_way_and_consumes(server: Secured, over_tls: bool) -> None:
    security = Security(BILLING, server.tls if over_tls else None)
    number = next(_numbers)

    async def commit(*_: object) -> TransactionState:
        return TransactionState.COMMIT

    config = ProducerConfig(compress_over_bytes=100)
    bodies = {way: f"{way} {number} ✓".encode() for way in ("one", "many", "batch", "oneway", "half")} | {
        "packed": f"packed {number} ".encode() * 50
    }
    async with TransactionProducer("billing-p", commit, commit, server.address, security=security) as transactions:
        half = await transactions.send_in_transaction(Message("Orders", bodies["half"], keys=("ключ",)))
        assert half.state is TransactionState.COMMIT
    async with Producer("billing-p", server.address, config=config, security=security) as producer:
        sent = await producer.send(Message("Orders", bodies["one"], tags="t", keys=("k",), properties={"p": "ü"}))
        await producer.send_many([Message("Orders", bodies["many"])])
        await producer.send_batch([Message("Orders", bodies["batch"]), Message("Orders", b"more")])
        await producer.send(Message("Orders", bodies["packed"]))
        await producer.send_oneway(Message("Orders", bodies["oneway"]))
    await consumed(server, security, set(bodies.values()))
    async with Admin(server.address, security=security) as admin:
        assert (await admin.message_by_id(sent.offset_msg_id, "Orders")).body == bodies["one"]
        assert "Orders" in await admin.topics()


@pytest.mark.parametrize(
    ("credentials", "words", "step"),
    [
        (None, "No accessKey is configured", "requires credentials"),
        (Credentials("strangers", "secret-of-strangers"), "No acl config for strangers", "no account"),
        (replace(BILLING, secret_key="another-secret"), "Check signature failed", "does not belong to this access key"),
    ],
    ids=["no key", "unknown key", "wrong secret"],
)
async def test_without_the_right_key_the_error_says_what_is_wrong(
    server: Secured, credentials: Credentials | None, words: str, step: str
) -> None:
    security = Security(credentials)
    async with Producer("billing-p", server.address, security=security) as producer:
        with pytest.raises(AccessDeniedError, match=words) as refused:
            await producer.send(Message("Orders", b"x"))
    async with Admin(server.address, security=security) as admin:
        with pytest.raises(AccessDeniedError, match=words):
            await admin.runtime_info(server.deployment.broker.address)
    assert step in (refused.value.next_step or "")
    assert "secret-of" not in str(refused.value)
    assert "another-secret" not in str(refused.value)


async def test_a_topic_or_group_without_permission_is_named(server: Secured) -> None:
    security = Security(BILLING)
    async with Producer("billing-p", server.address, security=security) as producer:
        for topic in ("ReadOnly", "Closed"):
            with pytest.raises(AccessDeniedError, match=f"No default permission for topic:{topic}") as refused:
                await producer.send(Message(topic, b"x"))
            assert "topicPerms" in (refused.value.next_step or "")
        batch = [Message("Closed", b"in a"), Message("Closed", b"batch")]
        assert len(await producer.send_batch(batch)) == 2  # Apache does not look into batches, as docs/security.md says
    async with PullConsumer("billing", server.address, security=security) as consumer:
        queue = (await consumer.queues("Closed"))[0]
        with pytest.raises(AccessDeniedError, match="No default permission for topic:Closed"):
            await consumer.pull(queue, 0)
    async with PullConsumer("strangers", server.address, security=security) as stranger:
        queue = (await stranger.queues("Orders"))[0]
        with pytest.raises(AccessDeniedError, match="No default permission for group:strangers"):
            await stranger.pull(queue, 0)
    async with Admin(server.address, security=security) as admin:
        with pytest.raises(AccessDeniedError, match="Need admin permission") as refused:
            await admin.create_topic("Another")
    assert "admin: true" in (refused.value.next_step or "")


def test_the_synchronous_classes_and_a_blocking_connection_do_the_same(server: Secured) -> None:
    demand_synchronous(server)


def test_signatures_suit_apache_5_as_well(tmp_path: Path) -> None:
    with serving(System.APACHE5, tmp_path) as server:
        demand_synchronous(server)


def demand_synchronous(server: Secured) -> None:
    security = Security(BILLING, server.tls)
    body = f"sync {next(_numbers)}".encode()
    patient = ProducerConfig(send_timeout_s=60)  # the first request through TLS is slow in a young JVM
    with SyncProducer("billing-p", server.address, config=patient, security=security) as producer:
        sent = producer.send(Message("Orders", body))
    config = LitePullConfig(consume_from_where=EARLIEST, auto_commit=False)
    with SyncLitePullConsumer("billing", server.address, config=config, security=security) as consumer:
        consumer.assign(consumer.queues("Orders"))
        consumer.seek(sent.queue, sent.queue_offset)
        found: list[bytes] = []
        while body not in found:
            found += [message.body for message in consumer.poll(60)]
    header = QueryMessageRequestHeader("Orders", sent.msg_id, 32, 0, 2**63 - 1, unique_key_query=True)
    with BlockingConnection(server.deployment.broker.address, 60, security) as connection:
        answer = connection.invoke(RequestCode.QUERY_MESSAGE, header)
    # Apache's index may be a moment behind; a signature that does not fit would be SYSTEM_ERROR.
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND), answer.remark


async def test_verdicts_and_words_are_those_of_apache(server: Secured, tmp_path: Path) -> None:
    """Thousands of generated requests of generated accounts; words differ only in which of several denials is named."""
    conf = tmp_path / "conf" / "acl"
    conf.mkdir(parents=True)
    (conf / "verdicts.yml").write_bytes(verdicts.accounts_file(secured.SEED))
    (conf.parent / "plain_acl.yml").write_text(secured.PLAIN_ACL)
    ours = Broker(small_config(tmp_path, acl_enable=True, acl_path=str(conf.parent)))
    await ours.start()
    probes = list(verdicts.probes(secured.SEED, 6_000))
    found: list[list[tuple[int, str] | None]] = []
    for address in (server.deployment.broker.address, ours.address):
        host, port = address.rsplit(":", 1)
        wire = Wire(*await asyncio.open_connection(host, int(port)))
        answers: list[tuple[int, str] | None] = []
        for chunk in (probes[at : at + 100] for at in range(0, len(probes), 100)):
            commands = [probe.command(wire) for probe in chunk]
            for command in commands:
                wire.post(command)
            answers += [verdicts.denial(await wire.answer(command.opaque)) for command in commands]
        found.append(answers)
        await wire.close()
    await ours.stop()
    different = [
        (probe, theirs, own)
        for probe, theirs, own in zip(probes, *found, strict=True)
        if theirs != own
        and not (
            theirs
            and own
            and probe.code in (RequestCode.PULL_MESSAGE, RequestCode.HEART_BEAT, RequestCode.UPDATE_CONSUMER_OFFSET)
        )
    ]
    assert different == []
    assert 2_000 < sum(one is not None for one in found[0]) < 5_000


async def test_servers_with_certificates_that_do_not_fit_are_not_talked_to(server: Secured, tmp_path: Path) -> None:
    for tls in (Tls(), replace(server.tls, trust_cert_path=server.cert_path)):
        async with Admin(server.address, security=Security(OPERATORS, tls)) as admin:
            with pytest.raises(RemotingConnectError, match="was not accepted"):
                await admin.topics()
    unchecked = replace(server.tls, trust_cert_path=None, auth_server=False)
    async with Admin(server.address, security=Security(OPERATORS, unchecked)) as admin:
        assert "Orders" in await admin.topics()


def test_commands_take_credentials_and_tls_from_environment_and_files(server: Secured, tmp_path: Path) -> None:
    tools = tmp_path / "conf" / "tools.yml"
    tools.parent.mkdir()
    tools.write_text("accessKey: operators\nsecretKey: secret-of-operators\n")
    tls = {
        "ROCKETMQ_TLS_ENABLE": "true",
        "ROCKETMQ_TLS_TRUST_CERT_PATH": server.trust_cert_path,
        "ROCKETMQ_TLS_CERT_PATH": server.cert_path,
        "ROCKETMQ_TLS_KEY_PATH": server.key_path,
    }
    keys = {"ROCKETMQ_ACCESS_KEY": "operators", "ROCKETMQ_SECRET_KEY": "secret-of-operators"}
    topic = f"ByCommand{next(_numbers)}"
    for variables in ({"ROCKETMQ_HOME": str(tmp_path)}, {"ROCKETMQ_CREDENTIALS_FILE": str(tools)} | tls):
        done = command(server, variables, "topic", "create", topic)
        assert done.returncode == 0, done.stderr
    sent = command(server, keys | tls, "produce", topic, "--body", "by command")
    assert sent.returncode == 0, sent.stderr
    read = command(server, keys, "consume", topic, "--from-beginning", "--until-end")
    assert read.stdout == "by command\n"
    refused = command(server, {}, "topic", "create", topic)
    assert refused.returncode == 1
    assert "No accessKey is configured" in refused.stderr
    assert "set an access key" in refused.stderr


def command(server: Secured, variables: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cometmq", *arguments, "-n", server.address],
        env={**os.environ, "COLUMNS": "200", **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
