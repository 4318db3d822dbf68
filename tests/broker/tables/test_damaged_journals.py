"""Journals of tables that are damaged, or belong to another file: the broker starts, and keeps what it finds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.broker.conftest import ConnectTo, small_config
from tests.broker.snapshots import copy_store

from cometmq.broker.controller import Broker
from cometmq.remoting.bodies import SubscriptionGroupConfig
from cometmq.testing import VirtualClock

NAMES = ("A", "B", "C")


@pytest.fixture
async def killed(tmp_path: Path, clock: VirtualClock, connect_to: ConnectTo) -> Path:
    """The directory of a store whose last topics, groups and offsets are in journals only."""
    broker = Broker(small_config(tmp_path / "one"), clock=clock)
    await broker.start()
    wire = await connect_to(broker)
    for name in NAMES:
        assert (await wire.send(name)).code == 0
        broker.groups.put(SubscriptionGroupConfig(group_name=f"of-{name}"))
    broker.offsets.save()
    for name in NAMES:
        broker.offsets.commit(f"of-{name}", name, 0, 1)
        broker.offsets.save()
    copy_store(tmp_path / "one" / "store", tmp_path / "two" / "store")
    await broker.stop()
    return tmp_path / "two"


async def start(root: Path, clock: VirtualClock) -> Broker:
    broker = Broker(small_config(root), clock=clock)
    await broker.start()
    return broker


def journal(root: Path, name: str) -> Path:
    (path,) = (root / "store" / "comet" / "tables").glob(f"{name}.*.journal")
    return path


def quarantine(root: Path) -> set[str]:
    return {path.name for path in (root / "store" / "comet" / "quarantine").glob("*")}


async def test_damaged_records_are_kept_aside_and_what_they_had_is_found_again(
    killed: Path, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("topics", "subscriptionGroup", "consumerOffset"):
        path = journal(killed, name)
        lines = path.read_bytes().split(b"\n")
        lines[-3] = lines[-3].replace(b"{", b"[", 1)
        path.write_bytes(b"\n".join(lines))
    for _ in range(2):
        broker = await start(killed, clock)
        assert {*NAMES} <= broker.topics.table.keys()
        assert {f"of-{name}" for name in NAMES} <= broker.groups.table.keys()
        assert broker.offsets.query("of-C", "C", 0) == 1
        await broker.stop()
    told = [line for line in caplog.messages if "journal: damaged" in line]
    assert len(told) == 3, "at the first start, which writes the tables whole"
    assert len([name for name in quarantine(killed) if name.startswith("comet~tables~")]) == 3


async def test_a_file_that_another_program_wrote_counts_but_lacks_nothing_that_was_made(
    killed: Path, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """As Apache's broker does that runs on the store after a kill, and makes or deletes topics."""
    topics = killed / "store" / "config" / "topics.json"
    foreign = topics.read_text().replace('"BenchmarkTest":{', '"BenchmarkTest": {')
    assert foreign != topics.read_text()
    topics.write_text(foreign)
    version = json.loads(foreign)["dataVersion"]["counter"]
    assert '"B"' not in foreign
    broker = await start(killed, clock)
    assert {*NAMES} <= broker.topics.table.keys()
    assert broker.topics.version.counter > version, "nameservers take the table anew"
    assert broker.groups.get("of-B") is not None, "its file is as it was"
    queue = broker.store.queues()["B"][0]
    assert queue.max_offset() == 1, "and has its message"
    copy_store(killed / "store", killed.parent / "again" / "store")
    await broker.stop()
    assert [line for line in caplog.messages if "topics.json has since been written by another program" in line]
    assert [line for line in caplog.messages if "A, B, C, which that program could not know yet" in line]
    assert quarantine(killed) == {"comet~tables~topics.1.journal.1"}
    broker = await start(killed.parent / "again", clock)
    assert {*NAMES} <= broker.topics.table.keys(), "a kill just after the start takes nothing away"
    await broker.stop()


async def test_without_a_file_the_journal_is_what_is_left(killed: Path, clock: VirtualClock) -> None:
    for path in (killed / "store" / "config").glob("topics.json*"):
        path.unlink()
    broker = await start(killed, clock)
    assert {*NAMES} <= broker.topics.table.keys()
    await broker.stop()
    assert not list((killed / "store" / "comet" / "tables").iterdir())


async def test_a_directory_in_place_of_a_journal_is_damage(killed: Path, clock: VirtualClock) -> None:
    path = journal(killed, "topics")
    path.unlink()
    path.mkdir()
    broker = await start(killed, clock)
    assert {*NAMES} <= broker.topics.table.keys()
    await broker.stop()


async def test_a_file_in_place_of_the_directory_is_set_aside(
    killed: Path, clock: VirtualClock, connect_to: ConnectTo
) -> None:
    tables = killed / "store" / "comet" / "tables"
    shutil.rmtree(tables)
    tables.write_text("foreign")
    broker = await start(killed, clock)
    assert (await (await connect_to(broker)).send("New")).code == 0
    assert not broker.topics.cannot_be_saved
    await broker.stop()
    assert "comet~tables.1" in quarantine(killed)


@pytest.mark.parametrize("has_backup", [True, False])
async def test_changes_count_although_their_file_is_damaged(
    killed: Path, clock: VirtualClock, connect_to: ConnectTo, has_backup: bool
) -> None:
    config = killed / "store" / "config"
    for name in ("topics.json", "subscriptionGroup.json", "consumerOffset.json"):
        if has_backup:
            shutil.copy(config / name, config / f"{name}.bak")
        (config / name).write_bytes(bytes((config / name).stat().st_size))
    for _ in range(2):
        broker = await start(killed, clock)
        assert {*NAMES} <= broker.topics.table.keys()
        assert {f"of-{name}" for name in NAMES} <= broker.groups.table.keys()
        assert broker.offsets.query("of-C", "C", 0) == 1
        await broker.stop()
    assert {f"config~{name}.1" for name in ("topics.json", "consumerOffset.json")} <= quarantine(killed)
