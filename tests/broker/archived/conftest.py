"""A broker that has deleted its older messages, and reads them from an archive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.broker.archived.archiving import archive_store, delete_old_messages, is_readable, records_of, send_many
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.wire import Wire
from tests.helpers.waiting import until

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


MakeArchived = Callable[..., Awaitable[Archived]]


@pytest.fixture
def make_archived(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, tmp_path: Path
) -> MakeArchived:
    """Sends messages to a broker, archives them, deletes the older ones, and starts the broker with the archive."""

    async def make(
        *, change: Callable[[Path], None] | None = None, archived: Callable[[Path], None] | None = None, **options: Any
    ) -> Archived:
        lake = tmp_path / "lake"
        broker = await start_broker()
        await send_many(await connect_to(broker), "T", clock)
        stored = records_of(broker, "T")
        (archived or (lambda to: archive_store(tmp_path / "store", to)))(lake)
        low = await delete_old_messages(broker, clock)
        await broker.stop()
        if change is not None:
            change(lake)
        broker = await start_broker(archive_read=str(lake), **options)
        await until(lambda: is_readable(broker))
        return Archived(broker, await connect_to(broker), stored, low, lake, clock)

    return make


@pytest.fixture
async def archived(make_archived: MakeArchived) -> Archived:
    return await make_archived()
