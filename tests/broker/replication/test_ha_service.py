"""Slaves get the log of a master: the first offset, the pieces, the rate, and the ends of their connections."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.conftest import ConnectTo, StartBroker, small_config
from tests.broker.replication.conftest import FILE_BYTES, ConnectSlave
from tests.broker.replication.slave import RawSlave, log_of
from tests.broker.wire import Wire, send_header

import cometmq.broker.replication.ha_service
from cometmq.broker.controller import Broker
from cometmq.broker.limits import MAX_SLAVES, MAX_TRANSFER_BYTES, TRANSFER_HIGH_WATER_BYTES, TRANSFER_ROUND_BYTES
from cometmq.broker.replication.frames import ReplicationError
from cometmq.broker.replication.refusal_log import REFUSALS_SECONDS
from cometmq.message.batch import BatchPiece, encode_batch
from cometmq.message.hosts import format_address
from cometmq.message.ports import HA_PORT_DISTANCE
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.testing import VirtualClock, free_port, settle


async def fill(wire: Wire, size_bytes: int, body_bytes: int = 4000) -> None:
    """Store messages of about so many bytes together."""
    for _ in range(0, size_bytes, body_bytes):
        assert (await wire.send("T", random.randbytes(body_bytes))).code == ResponseCode.SUCCESS


# --- where a slave begins ------------------------------------------------------------------------
async def test_a_slave_gets_nothing_before_its_first_report(
    broker: Broker, wire: Wire, connect_slave: ConnectSlave, clock: VirtualClock
) -> None:
    await wire.send("T")
    slave = await connect_slave(broker)
    await clock.run_for(19)
    assert slave.transfers == []
    await slave.report(0)
    assert slave.log == log_of(broker, 0)


async def test_a_slave_goes_on_from_where_it_is(broker: Broker, wire: Wire, connect_slave: ConnectSlave) -> None:
    await wire.send("T", b"first")
    middle = broker.store.max_physical_offset
    await wire.send("T", b"second")
    slave = await connect_slave(broker)
    await slave.report(middle)
    assert slave.start == middle
    assert slave.log == log_of(broker, middle)


async def test_a_slave_may_be_inside_of_a_message(broker: Broker, wire: Wire, connect_slave: ConnectSlave) -> None:
    await wire.send("T", b"a long message")
    slave = await connect_slave(broker)
    await slave.report(100)
    assert slave.log == log_of(broker, 100)


async def test_a_slave_without_a_log_begins_with_the_last_file(
    master: Broker, connect_to: ConnectTo, connect_slave: ConnectSlave
) -> None:
    await fill(await connect_to(master), 3 * FILE_BYTES)
    slave = await connect_slave(master)
    await slave.report(0)
    end = master.store.max_physical_offset
    assert slave.start == end - end % FILE_BYTES > 0
    assert slave.log == log_of(master, slave.start)


async def test_of_an_empty_master_a_slave_gets_everything_from_the_beginning(
    broker: Broker, wire: Wire, connect_slave: ConnectSlave
) -> None:
    slave = await connect_slave(broker)
    await slave.report(0)
    assert slave.transfers == []
    await wire.send("T")
    await settle()
    assert slave.start == 0
    assert slave.log == log_of(broker, 0)


# --- the pieces ----------------------------------------------------------------------------------
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, FILE_BYTES // 2), min_size=1, max_size=12),
    batch_bytes=st.sampled_from([1_024, 5_000, 32_768, MAX_TRANSFER_BYTES]),
    joins_after=st.integers(0, 12),
    start=st.floats(0, 1),
)
def test_what_has_come_is_the_masters_log_byte_by_byte(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], batch_bytes: int, joins_after: int, start: float
) -> None:
    """However long the messages, wherever it begins, and whatever the pieces: they end with a file, or before."""

    async def run() -> None:
        config = small_config(
            tmp_path_factory.mktemp("master"),
            mapped_file_size_commit_log=FILE_BYTES,
            ha_transfer_batch_size=batch_bytes,
        )
        broker = Broker(config, clock=VirtualClock())
        await broker.start()
        wire = Wire(*await asyncio.open_connection("127.0.0.1", broker.server.port))
        slave = await RawSlave.connect(broker)
        try:
            for number, size in enumerate(sizes):
                if number == joins_after:
                    await slave.report(int(start * broker.store.max_physical_offset))
                await wire.send("T", random.randbytes(size))
            if joins_after >= len(sizes):
                await slave.report(int(start * broker.store.max_physical_offset))
            await settle()
            end = broker.store.max_physical_offset
            if not slave.bodies:  # it had everything, or begins with the next file
                assert end in (int(start * end), end - end % FILE_BYTES)
                return
            assert slave.end == end
            assert slave.log == log_of(broker, slave.start)
            for transfer in slave.bodies:
                assert len(transfer.body) <= batch_bytes
                assert transfer.offset // FILE_BYTES == (transfer.offset + len(transfer.body) - 1) // FILE_BYTES
        finally:
            slave.close()
            await wire.close()
            await broker.stop()

    asyncio.run(run())


async def test_a_turn_is_sent_at_its_end_as_one_piece(broker: Broker, wire: Wire, connect_slave: ConnectSlave) -> None:
    slave = await connect_slave(broker)
    await slave.report(0)
    body = encode_batch([BatchPiece(0, b"%d" % n, "") for n in range(50)])
    await wire.call(RequestCode.SEND_BATCH_MESSAGE, send_header("T", batch=True), body)
    await settle()
    assert [len(transfer.body) for transfer in slave.bodies] == [broker.store.max_physical_offset]


async def test_several_slaves_each_get_what_they_do_not_have(
    broker: Broker, wire: Wire, connect_slave: ConnectSlave
) -> None:
    await wire.send("T")
    middle = broker.store.max_physical_offset
    old, new = await connect_slave(broker), await connect_slave(broker)
    await old.report(middle)
    await new.report(0)
    await wire.send("T")
    await settle()
    assert (old.log, new.log) == (log_of(broker, middle), log_of(broker, 0))


async def test_a_slave_that_does_not_read_costs_little_and_gets_everything_later(
    start_broker: StartBroker, connect_to: ConnectTo, connect_slave: ConnectSlave
) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)
    slow, quick = await connect_slave(broker), await connect_slave(broker)
    await slow.report(0)
    await quick.report(0)
    slow.transport.pause_reading()
    most_unread_by_the_system = 16 * 1024 * 1024
    body = random.randbytes(1024 * 1024)
    for _ in range(24):
        await wire.send("T", body)
    await settle()
    (connection, _) = broker.ha.slaves
    end = broker.store.max_physical_offset
    assert quick.end == end
    assert end - connection.next_offset > end - most_unread_by_the_system, "it was not sent everything"
    assert connection.unsent_bytes <= TRANSFER_HIGH_WATER_BYTES + 2 * TRANSFER_ROUND_BYTES
    slow.transport.resume_reading()
    await settle()
    assert slow.end == end
    assert slow.log == quick.log


# --- heartbeats and silence ----------------------------------------------------------------------
async def test_heartbeats_say_where_the_next_byte_will_be(
    broker: Broker, wire: Wire, connect_slave: ConnectSlave, clock: VirtualClock
) -> None:
    await wire.send("T")
    end = broker.store.max_physical_offset
    slave = await connect_slave(broker)
    await slave.report(end)
    await clock.run_for(4)
    assert slave.heartbeats == []
    await clock.run_for(2)
    assert slave.heartbeats == [end]
    await wire.send("T")
    await clock.run_for(4)
    assert slave.heartbeats == [end], "a transfer says as much"
    await clock.run_for(2)
    assert slave.heartbeats == [end, slave.end]


async def test_a_silent_slave_is_closed(
    broker: Broker, connect_slave: ConnectSlave, clock: VirtualClock, wire: Wire
) -> None:
    unreported, silent, talking = [await connect_slave(broker) for _ in range(3)]
    await silent.report(0)
    await talking.report(0)
    for _ in range(3):
        await clock.run_for(8)
        await talking.report(0)
    assert (unreported.closed, silent.closed, talking.closed) == (True, True, False)
    assert len(broker.ha.slaves) == 1
    await wire.send("T")
    await settle()
    assert talking.log == log_of(broker, 0)


async def test_what_goes_out_does_not_keep_a_silent_slave(
    start_broker: StartBroker, connect_to: ConnectTo, connect_slave: ConnectSlave, clock: VirtualClock
) -> None:
    broker = await start_broker(ha_housekeeping_interval=5_000, ha_send_heartbeat_interval=1_000)
    wire = await connect_to(broker)
    slave = await connect_slave(broker)
    await slave.report(0)
    for _ in range(7):
        await wire.send("T")
        await clock.run_for(1)
    assert slave.closed


# --- what ends a connection ----------------------------------------------------------------------
async def test_a_slave_that_is_ahead_is_refused(
    broker: Broker, wire: Wire, connect_slave: ConnectSlave, caplog: pytest.LogCaptureFixture
) -> None:
    await wire.send("T")
    end = broker.store.max_physical_offset
    slave = await connect_slave(broker)
    await slave.report(end + 1)
    assert slave.closed
    assert f"its log ends at {end + 1}, but this master's log ends earlier, at {end}" in caplog.text
    assert "make it the master" in caplog.text


async def test_a_slave_whose_next_byte_is_deleted_is_refused(
    master: Broker, connect_to: ConnectTo, connect_slave: ConnectSlave, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(await connect_to(master), 3 * FILE_BYTES)
    await _forget_the_past(master)
    slave = await connect_slave(master)
    await slave.report(100)
    assert slave.closed
    assert f"log begins at {master.store.min_physical_offset}" in caplog.text


async def test_a_slave_is_closed_when_retention_takes_what_it_needs(
    start_broker: StartBroker, connect_to: ConnectTo, connect_slave: ConnectSlave, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await start_broker(mapped_file_size_commit_log=8 * 1024 * 1024, clean_file_forcibly_enable=False)
    wire = await connect_to(broker)
    slave = await connect_slave(broker)
    await slave.report(0)
    slave.transport.pause_reading()
    for _ in range(9):
        await fill(wire, 4_000_000, 4_000_000)
    await settle()
    await _forget_the_past(broker)
    slave.transport.resume_reading()
    await settle()
    assert slave.closed
    assert "the part of the log that it needs next has been deleted" in caplog.text


async def _forget_the_past(broker: Broker) -> None:
    for path in Path(broker.config.commit_log).iterdir():
        os.utime(path, (0, 0))
    assert isinstance(broker.clock, VirtualClock)
    await broker.clock.run_for(3)  # all of it is on the disk, and nobody needs it any more
    assert broker.store.delete_expired_files() > 0


async def test_a_report_of_more_than_was_sent_is_refused(
    broker: Broker, wire: Wire, connect_slave: ConnectSlave, caplog: pytest.LogCaptureFixture
) -> None:
    await wire.send("T")
    slave = await connect_slave(broker)
    await slave.report(0)
    await slave.report(2**62)
    assert slave.closed
    assert f"its report {2**62} is past the last byte sent" in caplog.text


async def test_a_negative_report_is_refused(broker: Broker, connect_slave: ConnectSlave) -> None:
    slave = await connect_slave(broker)
    await slave.write(b"\xff" * 8)
    assert slave.closed


async def test_reports_in_pieces_and_several_at_once(broker: Broker, wire: Wire, connect_slave: ConnectSlave) -> None:
    await wire.send("T")
    end = broker.store.max_physical_offset
    slave = await connect_slave(broker)
    await slave.write(bytes(5))
    assert slave.transfers == []
    await slave.write(bytes(3))
    assert slave.end == end
    await slave.write((50).to_bytes(8, "big") + end.to_bytes(8, "big") + b"\x00")
    (connection,) = broker.ha.slaves
    assert connection.ack_offset == end


async def test_garbage_ends_its_own_connection_and_nothing_else(
    broker: Broker, wire: Wire, connect_slave: ConnectSlave, clock: VirtualClock
) -> None:
    rng = random.Random(20_261)
    good = await connect_slave(broker)
    await good.report(0)
    for _ in range(60):
        bad = await connect_slave(broker)
        if rng.random() < 0.5:
            await bad.report(0)
        for _ in range(rng.randint(1, 4)):
            await bad.write(rng.randbytes(rng.choice([1, 7, 8, 9, 100, 10_000])))
        if rng.random() < 0.5:
            bad.close()
        await wire.send("T")
    await clock.run_for(19)
    await good.report(good.end)
    await clock.run_for(3)
    assert good.log == log_of(broker, 0)
    assert len(broker.ha.slaves) == 1


async def test_too_many_slaves_are_refused(
    broker: Broker, wire: Wire, connect_slave: ConnectSlave, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_SLAVES >= 3
    monkeypatch.setattr(cometmq.broker.replication.ha_service, "MAX_SLAVES", 2)
    slaves = [await connect_slave(broker) for _ in range(2)]
    for slave in slaves:
        await slave.report(0)
    refused = await connect_slave(broker)
    assert [slave.closed for slave in (*slaves, refused)] == [False, False, True]
    slaves[0].close()
    await settle()
    late = await connect_slave(broker)
    await late.report(0)
    await wire.send("T")
    await settle()
    assert late.log == log_of(broker, 0), "there is room again"


async def test_many_refused_slaves_need_one_line_of_the_log_in_some_seconds(
    broker: Broker, connect_slave: ConnectSlave, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        await (await connect_slave(broker)).report(-1)
    assert caplog.text.count("closing the connection of slave") == 1, "the first one is told at once"
    await clock.run_for(REFUSALS_SECONDS)
    assert "closed 19 more connections of slaves in 10 s; the last was 127.0.0.1" in caplog.text
    caplog.clear()
    await clock.run_for(REFUSALS_SECONDS)
    assert "connections of slaves" not in caplog.text
    await (await connect_slave(broker)).report(-1)
    assert caplog.text.count("closing the connection of slave") == 1
    await (await connect_slave(broker)).report(-1)
    await broker.stop()
    assert "closed 1 more connections" in caplog.text, "nothing is forgotten at the end"


async def test_connections_that_report_nothing_keep_no_slave_out(
    broker: Broker, connect_slave: ConnectSlave, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.replication.ha_service, "MAX_SLAVES", 3)
    first = await connect_slave(broker)
    await first.report(0)
    silent = [await connect_slave(broker) for _ in range(4)]
    late = await connect_slave(broker)
    assert [slave.closed for slave in (first, *silent, late)] == [False, True, True, True, False, False]
    await late.report(0)
    later = await connect_slave(broker)
    await later.report(0)
    assert [slave.closed for slave in (first, silent[3], late, later)] == [False, True, False, False]
    assert len(broker.ha.slaves) == 3


# --- start and stop ------------------------------------------------------------------------------
async def test_a_master_that_stops_gives_its_slaves_everything_first(
    broker: Broker, wire: Wire, connect_slave: ConnectSlave
) -> None:
    slave = await connect_slave(broker)
    await slave.report(0)
    for number in range(5):
        wire.post(wire.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"%d" % number))
    await wire.send("T", b"last")
    end = broker.store.max_physical_offset
    log = log_of(broker, 0)
    await broker.stop()
    await settle()
    assert slave.closed
    assert (slave.end, slave.log) == (end, log)


async def test_a_master_that_stops_waits_for_slaves_that_are_behind(
    start_broker: StartBroker, connect_to: ConnectTo, connect_slave: ConnectSlave, caplog: pytest.LogCaptureFixture
) -> None:
    """More than one turn sends, and more than the system takes; one that does not get on is not waited for."""
    broker = await start_broker()
    wire = await connect_to(broker)
    slow, stuck = await connect_slave(broker), await connect_slave(broker)
    await slow.report(0)
    await stuck.report(0)
    slow.transport.pause_reading()
    stuck.transport.pause_reading()
    stuck_address = format_address(*stuck.transport.get_extra_info("sockname"))
    body = random.randbytes(1024 * 1024)
    for _ in range(24):
        await wire.send("T", body)
    end = broker.store.max_physical_offset
    log = log_of(broker, 0)
    stopping = asyncio.create_task(broker.stop())
    await settle()
    slow.transport.resume_reading()
    await stopping
    await settle()
    assert slow.end == end
    assert slow.log == log
    assert f"slave {stuck_address} lacks" in caplog.text


async def test_the_port_is_the_next_one_or_the_one_that_is_asked_for(start_broker: StartBroker, tmp_path: Path) -> None:
    port = free_port()
    assert (await start_broker(listen_port=port)).ha.port == port + HA_PORT_DISTANCE
    other = free_port()
    asked = await start_broker(listen_port=free_port(), ha_listen_port=other, store_path_root_dir=str(tmp_path / "b"))
    assert asked.ha.port == other


async def test_a_port_that_is_taken_ends_the_start_and_says_which_key_changes_it(start_broker: StartBroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ReplicationError, match=rf"port {port} for slaves: address already in use .*haListenPort"):
            await start_broker(ha_listen_port=port)
    with pytest.raises(ReplicationError, match=r"port 65536 for slaves: the port is out of range .*haListenPort"):
        await start_broker(ha_listen_port=65_535 + HA_PORT_DISTANCE)  # as with listenPort=65535
