"""Users and policies of ACL 2.0: what a real Apache RocketMQ 5.5.0 decides, answers and prints, and what ours does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path

import pytest
from tests.broker.conftest import small_config
from tests.broker.wire import Wire
from tests.helpers.pace import Patience
from tests.helpers.waiting import real_time
from tests.interop import builds, systems
from tests.interop.access import policies
from tests.interop.access.policies import Shown
from tests.interop.access.probes import Probe
from tests.interop.clients import Client
from tests.interop.conftest import unavailable
from tests.interop.systems import Deployment, System

from cometmq.broker.controller import Broker
from cometmq.client import Admin, Message, Producer, PullConsumer, Security
from cometmq.remoting.command import RemotingCommand

pytestmark = pytest.mark.interop

SEED = 55
FAILED = "An system error occurred, please try again later."
"""Apache's words for an exception that it did not expect."""
ANNA = "User:anna"
COMMANDS = (
    "createUser -u anna -p secret-of-anna -t Normal",
    "createUser -u bert -p secret-of-bert -t Super",
    "getUser -u anna",
    "listUser",
    "updateUser -u anna -s disable",
    "updateUser -u none -s enable",
    f"createAcl -s {ANNA} -r Topic:Orders,Group:billing -a Pub,Sub -d Allow",
    f"createAcl -s {ANNA} -r Topic:Ord* -a All -d Deny -i 10.0.0.0/8,192.0.2.1",
    "createAcl -s User:none -r Topic:Orders -a Pub -d Allow",
    f"createAcl -s {ANNA} -r Topic:Orders -a Pub -d Allow -i somewhere",
    f"getAcl -s {ANNA}",
    f"listAcl -s {ANNA} -r Group",
    f"updateAcl -s {ANNA} -r Topic:Orders -a Sub -d Deny",
    f"updateAcl -s {ANNA} -r Topic:Prices -a Sub,Get -d Allow",
    f"getAcl -s {ANNA}",
    f"deleteAcl -s {ANNA} -r Topic:Orders",
    "listAcl",
    f"deleteAcl -s {ANNA}",
    f"getAcl -s {ANNA}",
    "deleteUser -u bert",
    "listUser",
)
"""What an administrator types into ``mqadmin``."""


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A broker of Apache RocketMQ 5.5.0 that asks users and policies."""
    directory = tmp_path_factory.mktemp("policies")
    try:
        deployment = systems.deploy(System.APACHE55, directory, None, systems.SMALL_JAVA, **policies.APACHE_KEYS)
    except builds.ToolMissingError as problem:
        unavailable(problem)
    yield deployment
    deployment.close()


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncIterator[Broker]:
    """Our broker with the same keys."""
    broker = Broker(
        small_config(
            tmp_path,
            authentication_enabled=True,
            authorization_enabled=True,
            init_authentication_user=policies.KEYS["initAuthenticationUser"],
            inner_client_authentication_credentials=policies.KEYS["innerClientAuthenticationCredentials"],
        )
    )
    await broker.start()
    yield broker
    await broker.stop()


async def answers(address: str, probes: Iterable[Probe], together: int) -> list[RemotingCommand]:
    """The answers to requests, so many of which are under way at a time."""
    host, port = address.rsplit(":", 1)
    wire = Wire(*await asyncio.open_connection(host, int(port)))
    found: list[RemotingCommand] = []
    waiting = list(probes)
    for at in range(0, len(waiting), together):
        commands = [probe.command(wire) for probe in waiting[at : at + together]]
        for command in commands:
            wire.post(command)
        found += [await wire.answer(command.opaque) for command in commands]
    await wire.close()
    return found


async def set_up(address: str) -> None:
    """Make the users and policies. On a busy machine Apache's broker does not know yet a user that it has just made."""
    patience = Patience(30)
    for probe in policies.setup(SEED):
        while (answer := (await answers(address, [probe], 1))[0]).code:
            assert "is not exist" in (answer.remark or ""), answer
            assert not patience.is_over, answer
            await real_time(0.1)


async def test_verdicts_and_words_are_those_of_apache(apache: Deployment, ours: Broker) -> None:
    """Thousands of generated requests of generated users."""
    probes = list(policies.probes(SEED, 4_000))
    found = []
    for address in (apache.broker.address, ours.address):
        await set_up(address)
        found.append(list(map(policies.verdict, await answers(address, probes, 100))))
    different = [(probe, *two) for probe, *two in zip(probes, *found, strict=True) if two[0] != two[1]]
    assert different == []
    assert 1_500 < sum(one is not None for one in found[0]) < 3_500


async def test_changes_of_users_and_policies_have_the_answers_of_apache(apache: Deployment, ours: Broker) -> None:
    """Also their errors, and what is listed; only Apache's exceptions for a subject that is none are words here."""
    changes = list(policies.changes(SEED, 2_000))
    theirs, own = [
        list(map(Shown.of, await answers(address, changes, 1))) for address in (apache.broker.address, ours.address)
    ]
    different = [
        (change, *two)
        for change, *two in zip(changes, theirs, own, strict=True)
        if two[0] != two[1] and (two[0].words, two[1].words) != (FAILED, "The subject is null.")
    ]
    assert different == []
    assert 300 < sum(answer.code != 0 for answer in theirs) < 1_500


async def test_our_client_with_its_stamps_sends_and_reads_there(apache: Deployment) -> None:
    security = Security(policies.ROOT)
    async with Admin(apache.address, security=security) as admin:
        await admin.create_topic("Stamped", queues=1)
    async with Producer("stamped", apache.address, security=security) as producer:
        sent = await producer.send(Message("Stamped", b"stamped"))
        assert len(await producer.send_batch([Message("Stamped", b"in a"), Message("Stamped", b"batch")])) == 2
    async with PullConsumer("stamped", apache.address, security=security) as consumer:
        result = await consumer.pull(sent.queue, sent.queue_offset, max_messages=1, wait_s=10)
    assert [message.body for message in result.messages] == [b"stamped"]


def lines(printed: str) -> list[str]:
    """The lines about what these commands change, without addresses, passwords, next steps and widths of columns."""
    masked = re.sub(r"127\.0\.0\.1:\d+|secret-of-\w+|null|^\s*at .*", "", printed, flags=re.MULTILINE)
    kept = (line for line in masked.splitlines() if re.search("anna|bert|none|success|DESC|#", line))
    return sorted(" ".join(line.split(" (use ")[0].split()) for line in kept)


async def test_mqadmin_prints_the_same_at_both(
    apache: Deployment, ours: Broker, clients: Callable[[str], Client]
) -> None:
    java = clients("java5")
    account = {"access_key": policies.ROOT.access_key, "secret_key": policies.ROOT.secret_key}

    def run(command: str, broker: str) -> list[str]:
        return lines("".join(java.mqadmin_output(apache.address, *command.split(), "-b", broker, **account)))

    for command in COMMANDS:
        theirs, own = [
            await asyncio.to_thread(run, command, broker) for broker in (apache.broker.address, ours.address)
        ]
        assert own == theirs, command
        assert theirs or command.startswith("get"), command
