"""A broker that has deleted its older messages, and reads them from an archive."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.broker.archived.archiving import archive_store, delete_old_messages, is_readable, records_of, send_many
from tests.broker.conftest import ConnectTo, StartBroker, small_config
from tests.broker.wire import Wire
from tests.helpers import forks
from tests.helpers.waiting import until

from cometmq.broker.archived import reader_process
from cometmq.broker.archived.archived_messages import ArchivedMessages
from cometmq.broker.controller import Broker
from cometmq.testing import VirtualClock


@dataclass
class Archived:
    """A broker with an archive, and all the records that it has or had."""

    broker: Broker
    wire: Wire
    stored: list[bytes]
    low: int
    """The first offset in the store."""
    lake: Path
    clock: VirtualClock

    @property
    def messages(self) -> ArchivedMessages:
        assert self.broker.archived is not None
        return self.broker.archived


@pytest.fixture(autouse=True)
def readers_are_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive reader spends nearly all its time on imports; those of tests/crash and tests/tier begin as usual."""

    def spawn(descriptor: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "cometmq.tier", "0"]
        imported = ["cometmq.tier.process", "pandas"]  # pyarrow imports it with the first rows
        return forks.start(command, stdin=descriptor, start_new_session=True, imported=imported)

    monkeypatch.setattr(reader_process, "_spawn", spawn)


MakeArchived = Callable[..., Awaitable[Archived]]


@dataclass
class Made:
    """The directory of a stopped broker that has deleted its older messages, and of their archive."""

    directory: Path
    clock: VirtualClock = field(default_factory=VirtualClock)
    stored: list[bytes] = field(default_factory=list)
    low: int = 0

    async def make(self, archive: Callable[[Path], None] | None = None) -> None:
        """Send messages to a broker, archive them, and delete the older ones."""
        broker = Broker(small_config(self.directory), clock=self.clock)
        await broker.start()
        wire = Wire(*await asyncio.open_connection("127.0.0.1", broker.server.port))
        await send_many(wire, "T", self.clock)
        self.stored = records_of(broker, "T")
        (archive or (lambda to: archive_store(self.directory / "store", to)))(self.directory / "lake")
        self.low = await delete_old_messages(broker, self.clock)
        await wire.close()
        await broker.stop()


@pytest.fixture(scope="session")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """What nearly all tests begin with; the first one makes it, and each gets a copy."""
    return Made(tmp_path_factory.mktemp("archived"))


@pytest.fixture
def make_archived(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, tmp_path: Path, usual: Made
) -> MakeArchived:
    """Starts a broker with an archive that has the older ones of its messages."""

    async def make(
        *, change: Callable[[Path], None] | None = None, archived: Callable[[Path], None] | None = None, **options: Any
    ) -> Archived:
        lake = tmp_path / "lake"
        if archived is not None:
            made = Made(tmp_path)
            await made.make(archived)
        else:
            made = usual
            if not made.stored:
                await made.make()
            shutil.copytree(made.directory, tmp_path, dirs_exist_ok=True)
        clock.advance(made.clock.monotonic())
        if change is not None:
            change(lake)
        broker = await start_broker(archive_read=str(lake), **options)
        await until(lambda: is_readable(broker))
        return Archived(broker, await connect_to(broker), made.stored, made.low, lake, clock)

    return make


@pytest.fixture
async def archived(make_archived: MakeArchived) -> Archived:
    return await make_archived()
