"""A master of either system with small log files, and waiting until a slave of either has what it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.helpers.waiting import wait_for
from tests.interop import builds, systems
from tests.interop.clients import PATIENCE_S
from tests.interop.conftest import unavailable
from tests.interop.systems import Deployment, Server, System

from cometmq import fastjson
from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import SendMessageRequestHeaderV2

FILES: Final = {"mappedFileSizeCommitLog": str(1024 * 1024)}
OF_A_SLAVE: Final = {**FILES, "brokerRole": "SLAVE", "brokerId": "1"}


@contextmanager
def sync_master(system: System, directory: Path, topics: Sequence[str]) -> Iterator[Deployment]:
    """A nameserver and a SYNC_MASTER whose log has a large message of each of these topics, and more than one file."""
    size = FILES["mappedFileSizeCommitLog"]
    try:
        deployment = systems.deploy(
            system, directory, mappedFileSizeCommitLog=size, brokerRole="SYNC_MASTER", slaveTimeout="30000"
        )
    except builds.ToolMissingError as problem:
        unavailable(problem)
    with closing(deployment):
        with BlockingConnection(deployment.broker.address, 60) as connection:
            for topic in topics:
                assert send_one(connection, topic, bytes(400_000)) == ResponseCode.SLAVE_NOT_AVAILABLE
        yield deployment


def send_one(connection: BlockingConnection, topic: str, body: bytes, properties: str = "", queue_id: int = 0) -> int:
    """Send one message; the code of the answer."""
    header = SendMessageRequestHeaderV2(
        producer_group="interop",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
        properties=properties,
    )
    return connection.invoke(RequestCode.SEND_MESSAGE_V2, header, body).code


def until_in_sync(master: Server, slave: Server) -> None:
    """Wait until a send is acknowledged by the slave, too: then it has everything before it."""

    def acknowledged() -> bool:
        with BlockingConnection(master.address, 60) as connection:
            return send_one(connection, "InSync", b"?") == ResponseCode.SUCCESS

    wait_for(acknowledged, f"the slave is in sync\n{slave.logs()}", PATIENCE_S)


def log_files(server: Server) -> dict[str, bytes]:
    """The files of a log that hold something; the one made ahead does not."""
    files = {file.name: file.read_bytes() for file in (server.directory / "store" / "commitlog").iterdir()}
    return {name: content for name, content in files.items() if any(content)}


def until_same_log(master: Server, slave: Server) -> None:
    """Wait until the slave's log has the bytes of the master's from its own first file on."""

    def same() -> bool:
        first, ours = min(log_files(slave)), log_files(master)
        return log_files(slave) == {name: content for name, content in ours.items() if name >= first}

    wait_for(same, f"the logs are the same\n{slave.logs()}", PATIENCE_S)


def table(server: Server, name: str) -> Any:
    """One of the files that describe a broker; nothing before it is there."""
    path = server.directory / "store" / "config" / name
    try:
        return fastjson.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):  # a moment between two versions
        return None


def until_same_table(master: Server, slave: Server, name: str, entry: str) -> None:
    """Wait until a file of the slave says what the master's says, this entry among it, with the same version."""

    def same() -> bool:
        ours, theirs = table(master, name), table(slave, name)
        if ours is None or theirs is None:
            return False
        (key,) = (key for key in ours if key.endswith("Table"))
        versions = [
            (whole.get("dataVersion", {}).get(part) for part in ("counter", "timestamp")) for whole in (ours, theirs)
        ]
        return entry in ours[key] and ours[key] == theirs[key] and list(versions[0]) == list(versions[1])

    wait_for(same, f"{name} is the same: {table(master, name)} {table(slave, name)}", PATIENCE_S)
