"""A blocking connection that writes bodies where its caller wants them, against a peer that sends what it likes."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.command import RemotingCommand

SIZES = [0, 1, 1000, 65_000, 65_536, 70_000, 300_000, 3, 1_100_000, 0, 64 * 1024 - 8, 500_000]


@contextmanager
def peer(pieces: Sequence[bytes]) -> Iterator[BlockingConnection]:
    """A connection to a peer that sends these pieces, one write each, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def send() -> None:
            accepted = listener.accept()[0]
            with accepted:
                for piece in pieces:
                    accepted.sendall(piece)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            with BlockingConnection(f"127.0.0.1:{listener.getsockname()[1]}", 60) as connection:
                yield connection
        finally:
            sender.join()


def answers() -> list[RemotingCommand]:
    noise = random.Random(7)
    return [RemotingCommand(code=0, opaque=n, flag=1, body=noise.randbytes(size)) for n, size in enumerate(SIZES)]


def cut(stream: bytes, seed: int) -> list[bytes]:
    noise, at, pieces = random.Random(seed), 0, []
    while at < len(stream):
        size = noise.choice([1, 7, 100, 5_000, 70_000, 400_000])
        pieces.append(stream[at : at + size])
        at += size
    return pieces


@pytest.mark.parametrize("seed", range(4))
def test_bodies_are_written_where_the_caller_says_and_mix_with_commands_that_are_received_whole(seed: int) -> None:
    sent = answers()
    stream = b"".join(command.encode() for command in sent)
    rooms: list[memoryview] = []

    def room(size: int) -> memoryview:
        rooms.append(memoryview(bytearray(size)))
        return rooms[-1]

    with peer(cut(stream, seed)) as connection:
        for number, command in enumerate(sent):
            if number % 3 == seed % 3:
                assert connection.receive() == command
                continue
            got, body = connection.receive_into(room)
            assert body is rooms[-1]
            assert (got.opaque, got.body, bytes(body)) == (command.opaque, b"", command.body)
        with pytest.raises(BlockingConnectionError, match="closed the connection"):
            connection.receive_into(room)


@pytest.mark.parametrize("sent", [10, 100_000, 200_000])
def test_a_peer_that_closes_within_a_body_is_told(sent: int) -> None:
    command = RemotingCommand(code=0, opaque=1, flag=1, body=bytes(300_000)).encode()
    with peer([command[:sent]]) as connection, pytest.raises(BlockingConnectionError, match="closed the connection"):
        connection.receive_into(lambda size: memoryview(bytearray(size)))
