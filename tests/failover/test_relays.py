"""The relays of the nemesis: each direction of each pair of parties can be cut, delayed, reset or refused."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from tests.failover.nemesis.relays import CLIENT, Relays, Route, owner_of

HOST = "127.0.0.1"
SHORT_S = 0.2


class Echo:
    """A server that sends back what it gets, and remembers it."""

    def __init__(self) -> None:
        self._socket = socket.create_server((HOST, 0))
        self.port = self._socket.getsockname()[1]
        self.got = b""
        self.arrived = threading.Condition()
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection, suppress(ConnectionResetError):
            while data := connection.recv(1000):
                with self.arrived:
                    self.got += data
                    self.arrived.notify_all()
                connection.sendall(data)

    def wait(self, data: bytes) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: self.got == data, 10), self.got

    def hang_up(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.shutdown(socket.SHUT_RDWR)  # a thread waits in recv, and closes it

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # a thread waits in accept
        self._socket.close()


class Bench:
    """A party ``a`` that is reached through a relay, by this process, which is the party ``b``."""

    def __init__(self, relays: Relays, echo: Echo, port: int) -> None:
        self.relays, self.echo, self.port = relays, echo, port

    @contextmanager
    def connected(self) -> Iterator[socket.socket]:
        with socket.create_connection((HOST, self.port)) as connection:
            connection.settimeout(10)
            yield connection


@pytest.fixture
def bench() -> Iterator[Bench]:
    echo = Echo()
    with socket.create_server((HOST, 0)) as probe:
        port = probe.getsockname()[1]
    with Relays(lambda: {"other": 1, "b": os.getpid()}).running() as relays:
        relays.open([Route((HOST, port), (HOST, echo.port), "a")])
        yield Bench(relays, echo, port)
    echo.close()


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(SHORT_S)
    try:
        connection.recv(1000)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(10)
    return False


def is_reset(connection: socket.socket) -> bool:
    """Tell whether the connection ends without another byte; an abort looks like an end where all was read."""
    try:
        return not connection.recv(1000)
    except ConnectionResetError:
        return True


def test_bytes_pass_in_both_directions_and_ends_arrive(bench: Bench) -> None:
    with bench.connected() as connection:
        connection.sendall(b"one")
        assert connection.recv(1000) == b"one"
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1000) == b""


def test_the_process_that_connects_is_found_out(bench: Bench) -> None:
    with bench.connected() as connection:
        port = connection.getsockname()[1]
        assert owner_of(port, bench.port, {"other": 1, "b": os.getpid()}) == "b"
        assert owner_of(port, bench.port, {"other": 1}) == CLIENT


def test_a_cut_concerns_one_direction_of_one_pair_and_delivers_late(bench: Bench) -> None:
    with bench.connected() as connection:
        connection.sendall(b"0")
        assert connection.recv(1000) == b"0"
        bench.relays.cut(("a", "b"), ("other", "a"))
        connection.sendall(b"1")
        bench.echo.wait(b"01")
        assert is_silent(connection)
        bench.relays.heal(resets=False)
        assert connection.recv(1000) == b"1"
        bench.relays.cut(("b", "a"))
        connection.sendall(b"2")
        assert is_silent(connection)
        assert bench.echo.got == b"01"
        bench.relays.heal(resets=False)
        assert connection.recv(1000) == b"2"


def test_a_cut_hides_the_end_of_a_connection(bench: Bench) -> None:
    with bench.connected() as connection:
        connection.sendall(b"0")
        assert connection.recv(1000) == b"0"
        bench.relays.cut(("a", "b"))
        connection.shutdown(socket.SHUT_WR)
        assert is_silent(connection)
        bench.relays.heal(resets=False)
        assert connection.recv(1000) == b""


def test_a_new_connection_during_a_cut_is_half_open(bench: Bench) -> None:
    bench.relays.cut(("b", "a"))
    with bench.connected() as connection:
        connection.sendall(b"0")
        assert is_silent(connection)
        bench.relays.heal(resets=False)
        assert connection.recv(1000) == b"0"


def test_a_cut_may_end_with_a_reset(bench: Bench) -> None:
    with bench.connected() as connection:
        connection.sendall(b"0")
        assert connection.recv(1000) == b"0"
        bench.relays.cut(("a", "b"))
        connection.sendall(b"1")
        bench.echo.wait(b"01")
        bench.relays.heal(resets=True)
        assert is_reset(connection)


def test_a_reset_concerns_one_pair(bench: Bench) -> None:
    with bench.connected() as connection:
        connection.sendall(b"0")
        assert connection.recv(1000) == b"0"
        bench.relays.reset(("other", "a"))
        assert is_silent(connection)
        bench.relays.reset(("a", "b"))
        assert is_reset(connection)


def test_a_delay_is_added_to_each_block(bench: Bench) -> None:
    bench.relays.delay(SHORT_S, ("b", "a"))
    with bench.connected() as connection:
        begun = time.monotonic()
        connection.sendall(b"0")
        assert connection.recv(1000) == b"0"
        assert time.monotonic() - begun >= SHORT_S


def test_a_party_that_refuses_has_no_port_until_it_accepts(bench: Bench) -> None:
    bench.relays.refuse("a")
    with pytest.raises(ConnectionRefusedError), bench.connected():
        pass
    bench.relays.accept("a")
    with bench.connected() as connection:
        connection.sendall(b"0")
        assert connection.recv(1000) == b"0"


def test_a_party_whose_process_is_gone_resets(bench: Bench) -> None:
    bench.echo.close()
    with bench.connected() as connection:
        assert is_reset(connection)


@contextmanager
def standing_still(relays: Relays) -> Iterator[None]:
    """Let the relays do nothing inside the block."""
    stands, goes_on = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        goes_on.wait(10)

    relays._loop.call_soon_threadsafe(stand)
    assert stands.wait(10)
    try:
        yield
    finally:
        goes_on.set()


@pytest.mark.parametrize("is_asking", [True, False])
def test_a_server_that_ends_resets_only_what_it_has_not_read(bench: Bench, is_asking: bool) -> None:
    with bench.connected() as connection:
        connection.sendall(b"0")
        assert connection.recv(1000) == b"0"
        with standing_still(bench.relays):
            if is_asking:
                connection.sendall(b"1")
            bench.echo.hang_up()
        if is_asking:
            with pytest.raises(ConnectionResetError):
                connection.recv(1000)
        else:
            assert connection.recv(1000) == b""


def test_a_fault_between_parties_that_do_not_exist_is_refused(bench: Bench) -> None:
    with pytest.raises(ValueError, match="nobody"):
        bench.relays.cut(("a", "nobody"))
