"""Messages with life times that only the archive has: they keep the ends of their lives, and groups get the living."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.broker.admin.test_topic_attributes import change
from tests.broker.archived.archiving import (
    archive_store,
    delete_old_messages,
    header_of,
    is_readable,
    records_of,
    send_many,
)
from tests.broker.archived.conftest import Archived
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.pop.popping import Popper
from tests.broker.transacting import COMMIT, end, send_half
from tests.broker.transacting import TOPIC as TX_TOPIC
from tests.broker.wire import Wire, records
from tests.helpers.contents import stored
from tests.helpers.waiting import until

from cometmq.message.record import decode_record
from cometmq.message.sysflag import PULL_EXPIRED, PULL_SUBSCRIPTION
from cometmq.testing import VirtualClock

DAY_MS = 86_400_000
SHORT = 100
"""Bodies of fillers are longer."""
Lives = Callable[[str], Awaitable[Archived]]


@pytest.fixture
def lives(start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, tmp_path: Path) -> Lives:
    """A broker whose archive has messages of each kind; those with a life of a day have expired."""

    async def make(fate: str) -> Archived:
        broker = await start_broker()
        wire = await connect_to(broker)
        for topic in ("T", TX_TOPIC):
            assert (await change(wire, f"+expired.messages={fate}", topic)).code == 0
        for days in (1, 90):
            ttl = f"COMETMQ_TTL_MS\x01{days * DAY_MS}\x02"
            assert (await wire.send("T", b"plain %d" % days, properties=ttl)).code == 0
            delayed = f"{ttl}TIMER_DELAY_MS\x015000\x02"
            assert (await wire.send("T", b"delayed %d" % days, properties=delayed)).code == 0
            half = await send_half(wire, f"k{days}", b"half %d" % days, COMETMQ_TTL_MS=str(days * DAY_MS))
            assert (await end(wire, half, COMMIT)).code == 0
        assert (await wire.send("T", b"for ever")).code == 0
        await clock.run_for(6)
        await send_many(wire, "T", clock)
        records = records_of(broker, "T")
        archive_store(tmp_path / "store", tmp_path / "lake")
        await broker.stop()
        broker = await start_broker()  # its timer log does not need the files of delivered messages any more
        low = await delete_old_messages(broker, clock)
        await broker.stop()
        broker = await start_broker(archive_read=str(tmp_path / "lake"))
        await until(lambda: is_readable(broker))
        await clock.skip(DAY_MS / 1000 + 60)
        return Archived(broker, await connect_to(broker), records, low, tmp_path / "lake", clock)

    return make


async def small(
    wire: Wire, topic: str, end: int, group: str = "consumers", sys_flag: int = PULL_SUBSCRIPTION
) -> list[bytes]:
    """The short bodies of a topic, as a consumer pulls them from its beginning to an end."""
    found: list[bytes] = []
    offset = 0
    while offset < end:
        answer = await wire.pull(topic, queue_offset=offset, consumer_group=group, sys_flag=sys_flag, wait_ms=1_000)
        found += [record.body for record in records(answer) if len(record.body) < SHORT] if answer.body else []
        offset = header_of(answer)["nextBeginOffset"]
    return found


async def test_pulls_of_the_archive_pass_over_what_has_expired(lives: Lives) -> None:
    archived = await lives("skip")
    wire, end = archived.wire, 7
    assert archived.low > end
    assert await small(wire, "T", end) == [b"plain 90", b"for ever", b"delayed 90"]
    assert await small(wire, TX_TOPIC, 2) == [b"half 90"]
    assert stored(archived.broker, "%DLQ%consumers") == []
    everything = await small(wire, "T", end, sys_flag=PULL_SUBSCRIPTION | PULL_EXPIRED)
    assert everything == [b"plain 1", b"plain 90", b"for ever", b"delayed 1", b"delayed 90"]
    assert await small(wire, TX_TOPIC, 2, "TOOLS_CONSUMER") == [b"half 1", b"half 90"]


async def test_archived_messages_keep_the_end_of_their_lives(lives: Lives) -> None:
    archived = await lives("skip")
    answer = await archived.wire.pull("T", queue_offset=0, sys_flag=PULL_SUBSCRIPTION | PULL_EXPIRED, max_msg_nums=5)
    originals = [decode_record(record) for record in archived.stored[:5]]
    assert records(answer) == originals
    lengths = {
        record.body: int(record.properties["COMETMQ_EXPIRES_MS"]) - record.store_timestamp
        for record in originals
        if "COMETMQ_EXPIRES_MS" in record.properties
    }
    assert lengths == {
        b"plain 1": pytest.approx(DAY_MS, abs=1_000),
        b"delayed 1": pytest.approx(DAY_MS, abs=1_000),
        b"plain 90": pytest.approx(90 * DAY_MS, abs=1_000),
        b"delayed 90": pytest.approx(90 * DAY_MS, abs=1_000),
    }, "the life of a delayed message began when it was due, which is when it was stored"


async def test_expired_messages_of_the_archive_become_dead_letters_once(lives: Lives) -> None:
    archived = await lives("dead-letter")
    for _ in range(2):
        assert await small(archived.wire, "T", 7) == [b"plain 90", b"for ever", b"delayed 90"]
        assert await small(archived.wire, TX_TOPIC, 2) == [b"half 90"]
    letters = stored(archived.broker, "%DLQ%consumers")
    assert [letter.body for letter in letters] == [b"plain 1", b"delayed 1", b"half 1"]
    assert {letter.properties["COMETMQ_DEAD_REASON"] for letter in letters} == {"expired"}
    assert [letter.properties["RETRY_TOPIC"] for letter in letters] == ["T", "T", TX_TOPIC]


@pytest.mark.parametrize("fate", ["skip", "dead-letter"])
async def test_pops_of_the_archive_pass_over_what_has_expired(lives: Lives, fate: str) -> None:
    archived = await lives(fate)
    popper = Popper(archived.wire, archived.clock, topic="T")
    found: list[bytes] = []
    while archived.broker.offsets.query(popper.group, "T", 0) < 7:
        messages = await popper.pop(poll_time=15_000, max_msg_nums=4)
        assert (await popper.batch_ack(messages)).code == 0
        found += [message.body for message in messages if len(message.body) < SHORT]
    assert found == [b"plain 90", b"for ever", b"delayed 90"]
    letters = [letter.body for letter in stored(archived.broker, f"%DLQ%{popper.group}")]
    assert letters == ([] if fate == "skip" else [b"plain 1", b"delayed 1"])
