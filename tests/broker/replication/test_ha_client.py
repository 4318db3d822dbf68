"""The slave's side on the wire, with a master that sends what the test says: reports, silence, garbage, damage."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import pytest
from tests.broker.conftest import StartBroker
from tests.helpers.waiting import until
from tests.store.conftest import StoreBench, fill

from cometmq.broker.controller import Broker
from cometmq.broker.limits import MAX_TRANSFER_BYTES, REPLICATION_RETRY_SECONDS
from cometmq.broker.replication.frames import ReportReader, transfer_head
from cometmq.broker.replication.ha_client import HAClient
from cometmq.loop import close_server
from cometmq.testing import VirtualClock, settle

StartSlave = Callable[..., Awaitable[Broker]]


class RawMaster:
    """Listens for slaves; keeps the reports of the last one that came."""

    def __init__(self) -> None:
        self.connections = 0
        self.reports: list[int] = []
        self._open = False
        self._writer: asyncio.StreamWriter | None = None
        self._server: asyncio.Server | None = None

    async def start(self, at: socket.socket | None = None) -> None:
        """Listen on a bound socket, or on a free port."""
        place: dict[str, Any] = {"host": "127.0.0.1", "port": 0} if at is None else {"sock": at}
        self._server = await asyncio.start_server(self._serve, **place)

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.reports = []
        self._writer, self._open = writer, True
        reports = ReportReader()
        while data := await reader.read(4096):
            report = reports.feed(data)
            if report is not None:
                self.reports.append(report)
        self._open = False
        writer.close()

    def is_open(self) -> bool:
        """Tell whether the slave is connected."""
        return self._open

    async def send(self, data: bytes) -> None:
        """Send anything, and let the slave take it."""
        assert self._writer is not None
        self._writer.write(data)
        await settle()

    async def transfer(self, offset: int, body: bytes) -> None:
        await self.send(transfer_head(offset, len(body)) + body)

    async def stop(self) -> None:
        assert self._server is not None
        await close_server(self._server)
        if self._writer is not None:
            self._writer.close()
        await settle()


@pytest.fixture
async def master() -> AsyncIterator[RawMaster]:
    made = RawMaster()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def start_slave(start_broker: StartBroker, master: RawMaster) -> StartSlave:
    """Starts slaves of the raw master that have connected when they are returned."""

    async def start(**options: Any) -> Broker:
        role = {"broker_role": "SLAVE", "broker_id": 1, "ha_master_address": master.address}
        slave = await start_broker(**role, mapped_file_size_commit_log=65_536, **options)
        await settle()
        return slave

    return start


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The beginning of a master's log: 20 messages."""
    bench = StoreBench(tmp_path_factory.mktemp("master"))
    store = bench.open()
    fill(store, 20)
    end = store.max_physical_offset
    bench.close_all()
    return bench.log_files[0].read_bytes()[:end]


async def test_it_reports_where_its_log_ends_then_each_growth_then_every_five_seconds(
    start_slave: StartSlave, master: RawMaster, log: bytes, clock: VirtualClock
) -> None:
    slave = await start_slave()
    assert master.reports == [0]
    await master.transfer(0, log[:1000])
    await master.transfer(1000, log[1000:1500])
    assert master.reports == [0, 1000, 1500]
    await clock.run_for(4.9)
    assert master.reports == [0, 1000, 1500]
    await clock.run_for(5.1)
    assert master.reports == [0, 1000, 1500, 1500, 1500]
    await master.transfer(1500, b"")
    assert master.reports[5:] == []
    await master.transfer(1500, log[1500:])
    assert master.reports[5:] == [len(log)]
    assert slave.store.max_physical_offset == len(log)


async def test_bytes_may_come_one_by_one(start_slave: StartSlave, master: RawMaster, log: bytes) -> None:
    slave = await start_slave()
    for byte in transfer_head(0, 300) + log[:300]:
        await master.send(bytes([byte]))
    assert master.reports == [0, 300]
    assert slave.slave.follower.is_following


async def test_with_sync_flush_what_is_reported_is_on_the_disk(
    start_slave: StartSlave, master: RawMaster, log: bytes
) -> None:
    """Whole records only: what is begun is not flushed."""
    slave = await start_slave(flush_disk_type="SYNC_FLUSH")
    await master.transfer(0, log[: len(log) - 10])
    store = slave.store
    assert master.reports == [0, store.flushed_position]
    assert store.flushed_position == store.max_physical_offset == store.last_record[0] + store.last_record[1]
    await master.transfer(len(log) - 10, log[-10:])
    assert master.reports[-1] == store.flushed_position == len(log)


async def test_a_silent_master_is_left_and_tried_again(
    start_slave: StartSlave, master: RawMaster, log: bytes, clock: VirtualClock
) -> None:
    slave = await start_slave()
    await master.transfer(0, log[:1000])
    await clock.run_for(19)
    await master.transfer(1000, b"")
    await clock.run_for(19)
    assert (master.connections, master.is_open()) == (1, True)
    await clock.run_for(2)
    assert not master.is_open()
    assert "sent nothing for 20 s" in (slave.slave.follower.trouble or "")
    await clock.run_for(REPLICATION_RETRY_SECONDS)
    last = slave.store.last_record[0]
    assert (master.connections, master.reports) == (2, [last])
    await master.transfer(last, log[last:])
    assert not slave.slave.follower.trouble
    assert slave.store.max_physical_offset == len(log)


@pytest.mark.parametrize(
    ("frame", "trouble"),
    [
        (transfer_head(0, MAX_TRANSFER_BYTES + 1), "invalid transfer"),
        (transfer_head(0, -1), "invalid transfer"),
        (transfer_head(-1, 10) + bytes(10), "invalid transfer"),
        (transfer_head(1, 10) + bytes(10), "not a multiple of this store's log file size 65536"),
        (transfer_head(0, 100) + bytes(100), "invalid or damaged record at log offset 0"),
        (
            transfer_head(0, 100) + b"GET / HTTP/1.1\r\n" * 6 + b"1234",
            "invalid or damaged record at log offset 0",
        ),
    ],
)
async def test_what_cannot_be_ends_the_connection_and_nothing_else(
    start_slave: StartSlave,
    master: RawMaster,
    log: bytes,
    clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
    frame: bytes,
    trouble: str,
) -> None:
    """Told once however often it happens; afterwards the slave follows as ever."""
    slave = await start_slave()
    for attempt in range(1, 4):
        assert (master.connections, master.reports) == (attempt, [0])
        await master.send(frame)
        assert not master.is_open()
        assert trouble in (slave.slave.follower.trouble or "")
        await clock.run_for(REPLICATION_RETRY_SECONDS)
    assert sum(trouble in record.message for record in caplog.records) == 1
    await master.transfer(0, log)
    assert slave.slave.follower.trouble is None
    assert slave.store.max_physical_offset == len(log)


async def test_a_damaged_record_stays_out_until_it_comes_undamaged(
    start_slave: StartSlave, master: RawMaster, log: bytes, clock: VirtualClock
) -> None:
    slave = await start_slave()
    at = log.index(b"10 10 10")  # in a body: its CRC is wrong then
    await master.transfer(0, log[:at] + b"X" + log[at + 1 :])
    assert not master.is_open()
    good = slave.store.max_physical_offset
    assert 0 < good < at
    await clock.run_for(REPLICATION_RETRY_SECONDS)
    last = slave.store.last_record[0]
    assert master.reports == [last]
    await master.transfer(last, log[last:])
    assert slave.store.max_physical_offset == len(log)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_message_that_was_begun_is_asked_for_again(
    start_slave: StartSlave, master: RawMaster, log: bytes, clock: VirtualClock, flush: str
) -> None:
    """A master that lost it in a power cut may go on with another one: the two halves do not become one message."""
    slave = await start_slave(flush_disk_type=flush)
    await master.transfer(0, log[:1000])
    last, size = slave.store.last_record
    assert 0 < last < last + size < 1000
    slave.slave.follower.cut_off()
    await slave.slave.follower.stop()
    cast(HAClient, slave.slave.follower).start()
    await settle()
    assert master.reports == [last]
    await master.transfer(last, log[last : last + size])
    assert master.reports == [last, last + size]
    await master.transfer(last + size, log[last + size :])
    assert slave.store.max_physical_offset == len(log)


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("cut", [10, 10_000])
async def test_a_master_that_cannot_be_asked_sends_the_last_record_once_more(
    start_slave: StartSlave, master: RawMaster, log: bytes, clock: VirtualClock, count: int, cut: int
) -> None:
    """Another record there, even one of the same size, is how a log shows that it has parted from the one here."""
    slave = await start_slave()
    ends = [0]
    while len(ends) <= count:
        ends.append(ends[-1] + int.from_bytes(log[ends[-1] :][:4], "big"))
    end = ends[count]
    await master.transfer(0, log[:end])
    start = max(ends[count - 1], 1)
    for other, parted in ((b"\x01", True), (b"", False)):
        slave.slave.follower.cut_off()
        await slave.slave.follower.stop()
        cast(HAClient, slave.slave.follower).start()
        await settle()
        assert master.reports == [start]
        again = log[start : end - len(other)] + other + log[end:]
        for at in range(0, len(again), cut):
            if not master.is_open():
                break
            await master.transfer(start + at, again[at : at + cut])
        assert ("have diverged" in (slave.slave.follower.trouble or "")) == parted
        assert slave.store.max_physical_offset == (end if parted else len(log))
    assert master.reports[-1] == len(log)


async def test_a_master_whose_log_ends_before_the_last_record_here_is_not_followed(
    start_slave: StartSlave, master: RawMaster, log: bytes
) -> None:
    """The master lost exactly that: it has nothing to send, and its heartbeats say so."""
    slave = await start_slave()
    await master.transfer(0, log)
    slave.slave.follower.cut_off()
    await slave.slave.follower.stop()
    cast(HAClient, slave.slave.follower).start()
    await settle()
    await master.transfer(slave.store.last_record[0], b"")
    assert not master.is_open()
    assert f"but this log ends at {len(log)}" in (slave.slave.follower.trouble or "")


async def test_a_failure_that_nobody_expected_does_not_end_following(
    start_slave: StartSlave, master: RawMaster, log: bytes, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    slave = await start_slave()

    def fails(_queues: object) -> None:
        raise KeyError("unexpected")

    slave.store.batch.on_arrival.append(fails)
    await master.transfer(0, log[:1000])
    assert not master.is_open()
    assert "KeyError" in caplog.text
    slave.store.batch.on_arrival.remove(fails)
    await clock.run_for(REPLICATION_RETRY_SECONDS)
    at = master.reports[0]
    await master.transfer(at, log[at:])
    assert slave.store.max_physical_offset == len(log)


async def test_without_the_masters_word_on_its_log_none_is_taken(
    start_slave: StartSlave, master: RawMaster, clock: VirtualClock
) -> None:
    """A nameserver is configured and does not answer: an empty slave would get the last file only, any other could
    have parted."""
    slave = await start_slave(namesrv_addr="127.0.0.1:1")
    await clock.run_for(3 * REPLICATION_RETRY_SECONDS)
    assert master.connections == 0
    assert "no nameserver knows the master's address" in (slave.slave.follower.trouble or "")


async def test_bytes_of_another_place_end_the_connection(
    start_slave: StartSlave, master: RawMaster, log: bytes, clock: VirtualClock
) -> None:
    slave = await start_slave()
    await master.transfer(0, log[:1000])
    await master.transfer(0, log[:1000])
    assert not master.is_open()
    assert "sent its log from offset 0, but this log ends at" in (slave.slave.follower.trouble or "")
    await clock.run_for(REPLICATION_RETRY_SECONDS)
    await master.transfer(master.reports[0], log[master.reports[0] :])
    assert slave.store.max_physical_offset == len(log)


async def test_nobody_at_the_masters_address_is_tried_again(
    start_broker: StartBroker, master: RawMaster, log: bytes, clock: VirtualClock
) -> None:
    with socket.socket() as reserved:  # nobody else may listen there, and nobody does yet
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        slave = await start_broker(broker_role="SLAVE", broker_id=1, ha_master_address=address)
        # A busy machine may deliver the refusal some time after the loop is idle.
        await until(lambda: slave.slave.follower.trouble == "connection refused")
        await clock.run_for(30)
        await master.stop()
        await master.start(reserved.dup())
        await until(lambda: master.reports == [0], clock=clock)
        await master.transfer(0, log)
        assert slave.slave.follower.trouble is None
