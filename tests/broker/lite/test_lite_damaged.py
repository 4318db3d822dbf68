"""Messages of lite topics whose records are damaged after they were handed out."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.lite.subscribing import PARENT, Reader, bodies, make_group, make_parent, send
from tests.broker.wire import Wire

from cometmq.broker.controller import Broker
from cometmq.testing import VirtualClock


def damage(store: Path, log_offset: int) -> None:
    """Spoil the head of a record, in the file that the broker reads."""
    (path,) = (store / "commitlog").iterdir()
    with path.open("r+b") as file:
        file.seek(log_offset + 4)
        file.write(b"####")


@pytest.mark.parametrize("is_alone", [False, True])
async def test_a_message_that_is_damaged_in_flight_is_passed_over(
    wire: Wire, broker: Broker, clock: VirtualClock, tmp_path: Path, is_alone: bool
) -> None:
    await make_parent(wire)
    await make_group(wire)
    reader = Reader(wire, clock)
    await reader.sync("a")
    sent = [b"first message"] if is_alone else [b"first message", b"second message", b"third message"]
    await send(wire, "a", *sent)
    assert bodies(await reader.pop(max_msg_num=2, invisible_time=10_000)) == sent[:2]
    index = broker.lite.indexes.of(PARENT)
    number = index.find("a")
    damage(tmp_path / "store", index.log_offset(index.first(number)))
    await clock.run_for(11)
    found = await reader.pop()
    assert bodies(found) == sent[1:]
    await reader.ack(*found)
    progress = broker.lite.progress.find(PARENT, reader.group)
    assert progress is not None
    assert not progress.flights
    assert (progress.offset(number), progress.has_more(number)) == (len(sent), False)
    await send(wire, "a", b"last message")
    assert bodies(await reader.pop()) == [b"last message"]
