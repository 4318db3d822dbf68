"""SIGKILL of a master under load with a slave: what SYNC_MASTER acknowledged is in the slave's log, and both go on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.crash.loading import send
from tests.crash.reading import read_queue
from tests.helpers.waiting import wait_for

from cometmq.broker.replication.frames import TransferReader, encode_report
from cometmq.message.hosts import parse_address
from cometmq.message.ports import HA_PORT_DISTANCE
from cometmq.message.record import iter_records
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.testing import ProcessCluster

pytestmark = pytest.mark.crash

TOPIC = "Replicated"
WRITERS = 3
MESSAGES = 150
"""Acknowledged before each kill."""
ROUNDS = 3
PATIENCE_S = 60.0
REPORT_EVERY_S = 1.0
"""A slave that is silent for long is closed."""


class SlaveLog:
    """The log of a slave over many starts of its master; it connects again and again until it is stopped."""

    def __init__(self, master: str) -> None:
        host, port = parse_address(master)
        self._address = (host, port + HA_PORT_DISTANCE)
        self.log = bytearray()
        self.connections = 0
        self._stopping = threading.Event()

    def run(self) -> None:
        """Follow the master."""
        while not self._stopping.wait(0.01):
            try:
                with socket.create_connection(self._address) as connection:
                    connection.settimeout(REPORT_EVERY_S)
                    self._follow(connection)
            except ConnectionError:
                continue

    def _follow(self, connection: socket.socket) -> None:
        reader = TransferReader()
        self.connections += 1
        while not self._stopping.is_set():
            connection.sendall(encode_report(len(self.log)))
            try:
                data = connection.recv(1 << 20)
            except TimeoutError:
                continue
            if not data:
                return
            for transfer in reader.feed(data):
                assert transfer.offset == len(self.log)
                self.log += transfer.body

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow for the length of the block."""
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def load(address: str, seed: int, acknowledged: set[bytes]) -> None:
    """Send until the master is gone; remember what it says a slave has."""
    try:
        with BlockingConnection(address, 60) as connection:
            for number in range(1_000_000):
                body = b"%d/%d" % (seed, number)
                send(connection, TOPIC, body, "")
                acknowledged.add(body)
    except BlockingConnectionError:
        return


def test_a_killed_masters_slave_has_what_was_acknowledged_and_goes_on(tmp_path: Path) -> None:
    keys = {"brokerRole": "SYNC_MASTER", "slaveTimeout": "60000"}
    acknowledged: set[bytes] = set()
    with ProcessCluster(broker_keys=keys, data=tmp_path) as cluster:
        address = cluster.broker_addresses[0]
        slave = SlaveLog(address)
        with slave.following():
            for round_number in range(ROUNDS):
                wait_for(lambda: is_in_sync(address), "the slave follows")
                seeds = range(round_number * WRITERS, (round_number + 1) * WRITERS)
                writers = [threading.Thread(target=load, args=(address, seed, acknowledged)) for seed in seeds]
                for writer in writers:
                    writer.start()
                enough = len(acknowledged) + MESSAGES
                wait_for(lambda enough=enough: len(acknowledged) > enough, "writers are acknowledged")  # type: ignore[misc]
                cluster.brokers[0].kill()
                for writer in writers:
                    writer.join(PATIENCE_S)
                    assert not writer.is_alive()
                cluster.brokers[0].start()
            wait_for(lambda: is_in_sync(address), "the slave follows to the end")
            stored = {record.body for record in read_queue(address, TOPIC)}
            ours = bytearray().join(file.read_bytes() for file in sorted(log_files(tmp_path)))
            wait_for(lambda: len(slave.log) >= len(ours.rstrip(b"\0")), "it has all")
    copied = {record.body for record in iter_records(bytes(slave.log)) if record.topic == TOPIC}
    assert acknowledged <= copied
    assert copied == stored
    assert bytes(ours[: len(slave.log)]) == bytes(slave.log)
    assert slave.connections >= ROUNDS + 1


def is_in_sync(address: str) -> bool:
    """Tell whether a message was acknowledged with a slave."""
    try:
        with BlockingConnection(address, 60) as connection:
            send(connection, TOPIC, b"in sync?", "")
    except AssertionError:  # SLAVE_NOT_AVAILABLE
        return False
    return True


def log_files(data: Path) -> list[Path]:
    return list((data / "broker-0" / "commitlog").iterdir())
