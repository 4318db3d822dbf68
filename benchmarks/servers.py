"""The servers of one system for a measurement, fresh and alone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.machine import ended_by_signals
from tests.helpers.waiting import wait_for
from tests.interop.systems import Deployment, Server, System, start_broker, start_namesrv

from cometmq.client import BrokerError, Message
from cometmq.client.sync import SyncAdmin, SyncProducer

JAVA: Final = ("-Xms1g", "-Xmx1g", "-XX:-UseContainerSupport")
"""The JVM counts the machine's processors, not those of a group that holds a benchmark to half of them."""
ACCOUNTS: Final = 200
ACCOUNT: Final = ("account-100", "secret-of-account-100")
"""One of the accounts of a broker that has them."""
_FOLLOWS_S: Final = 60.0


@contextmanager
def running(
    system: System,
    keys: Mapping[str, str] | None = None,
    *,
    role: str = "ASYNC_MASTER",
    slaves: int = 0,
    accounts: bool = False,
) -> Iterator[Deployment]:
    """A nameserver and a broker on a fresh store; the JVM has a heap of 1 GB.

    :param keys: of the broker's configuration.
    :param role: brokerRole of the broker.
    :param slaves: number of slaves of its own system that follow it.
    :param accounts: the broker has ACL 1.0 with :data:`ACCOUNTS` accounts, which may send to every topic.
    """
    with ExitStack() as undo:
        undo.enter_context(ended_by_signals())
        name = undo.enter_context(tempfile.TemporaryDirectory(prefix="cometmq-bench-", ignore_cleanup_errors=True))
        directory = Path(name)
        keys = {**(keys or {}), **(_accounts(directory / "broker") if accounts else {})}
        names = undo.enter_context(start_namesrv(system, directory / "namesrv"))

        def started(of: str, **more: str) -> Server:
            return start_broker(system, directory / of, names.address, {**keys, **more}, None, JAVA)

        deployment = Deployment(names, started("broker", brokerRole=role), dict(keys))
        undo.callback(lambda: deployment.broker.close())  # another one, if it was started again
        for number in range(1, slaves + 1):
            slave = undo.enter_context(started(f"slave-{number}", brokerRole="SLAVE", brokerId=str(number)))
            _wait_until_it_follows(names.address, deployment.broker.address, slave.address)
            deployment.slaves.append(slave)
        yield deployment


def _accounts(directory: Path) -> dict[str, str]:
    conf = directory / "home" / "conf"
    conf.mkdir(parents=True)
    accounts = conf / "plain_acl.yml"
    rows = [
        f"- accessKey: account-{number}\n  secretKey: secret-of-account-{number}\n  defaultTopicPerm: PUB|SUB\n"
        for number in range(ACCOUNTS)
    ]
    accounts.write_text("accounts:\n" + "".join(rows))
    return {"aclEnable": "true", "aclPath": str(conf)}


def _wait_until_it_follows(namesrv: str, master: str, slave: str) -> None:
    """Wait until a slave has a message of its master."""
    with SyncProducer("benchmark", namesrv) as producer, SyncAdmin(namesrv) as admin:
        producer.send(Message("First", b"message"))

        def follows() -> bool:
            try:
                ends = {admin.runtime_info(address)["commitLogMaxOffset"] for address in (master, slave)}
            except BrokerError:  # Apache's cannot tell before it has a log
                return False
            return len(ends) == 1

        wait_for(follows, "the slave follows", _FOLLOWS_S)
