"""Clients that do not read their answers, or never finish a frame: memory is bounded, and others are served."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import cast

import pytest
from tests.helpers.waiting import until
from tests.remoting.serving import BIG, Raw, Service, max_offset

import cometmq.remoting.connections.unsent
import cometmq.remoting.server_connection
from cometmq.limits import UNSENT_CHECK_SECONDS, WRITE_HIGH_WATER_BYTES
from cometmq.remoting.command import RemotingCommand


async def test_a_client_that_does_not_read_is_not_read_either(service: Service) -> None:
    raw = await Raw.connect(service)
    transport = cast(asyncio.Transport, raw.writer.transport)
    transport.pause_reading()
    raw.writer.write(RemotingCommand(code=32).encode() * 500)
    bound = WRITE_HIGH_WATER_BYTES // len(BIG) + 30  # the mark, one more, and what the kernel's buffers take
    await until(lambda: service.big_answers >= WRITE_HIGH_WATER_BYTES // len(BIG))
    for _ in range(50):
        await asyncio.sleep(0)
    assert service.big_answers <= bound
    other = await Raw.connect(service)
    assert (await other.ask(max_offset(1))).code == 0
    transport.resume_reading()
    for _ in range(500):
        answer = await raw.next()
        assert answer is not None
        assert answer.body == BIG
    assert service.big_answers == 500
    await raw.close()
    await other.close()


async def ask_big_and_do_not_read(service: Service, count: int) -> Raw:
    """A client whose answers, a megabyte each, stand in the server's buffer: the system takes little of them."""
    known = set(service.server.connections)
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    taken.setblocking(False)
    await asyncio.get_running_loop().sock_connect(taken, ("127.0.0.1", service.server.port))
    raw = Raw(*await asyncio.open_connection(sock=taken))
    await raw.ask(max_offset(0))
    cast(asyncio.Transport, raw.writer.transport).pause_reading()
    (connection,) = service.server.connections - known
    assert connection._transport is not None
    connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    before = service.big_answers
    raw.writer.write(RemotingCommand(code=32).encode() * count)
    await until(lambda: service.big_answers == before + count)
    return raw


async def take_big(raw: Raw, count: int) -> None:
    cast(asyncio.Transport, raw.writer.transport).resume_reading()
    for _ in range(count):
        answer = await raw.next()
        assert answer is not None
        assert answer.body == BIG


async def test_of_many_clients_that_do_not_read_none_is_read_until_it_has_read(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.remoting.connections.unsent, "MAX_UNSENT_BYTES", 10_000_000)
    first = await ask_big_and_do_not_read(service, 7)
    second = await ask_big_and_do_not_read(service, 7)
    assert 10_000_000 < service.server.unsent.total_bytes <= 14 * len(BIG) + 10_000
    honest = await Raw.connect(service)
    for raw in (first, second):
        raw.writer.write(RemotingCommand(code=32).encode())
    for number in range(50):
        assert (await honest.ask(max_offset(number))).code == 0, "who reads is served"
    assert service.big_answers == 14, "who does not is not read"
    await take_big(first, 7)
    service.clock.advance(UNSENT_CHECK_SECONDS)
    await take_big(first, 1)
    assert service.big_answers == 15
    await take_big(second, 7)
    service.clock.advance(UNSENT_CHECK_SECONDS)
    await take_big(second, 1)
    for raw in (first, second, honest):
        await raw.close()


async def test_a_client_that_is_held_back_and_goes_is_forgotten(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.remoting.connections.unsent, "MAX_UNSENT_BYTES", 4_000_000)
    raw = await ask_big_and_do_not_read(service, 7)
    assert service.clock.next_in() <= UNSENT_CHECK_SECONDS
    raw.writer.transport.abort()
    await until(lambda: not service.server.connections)
    assert service.server.unsent.total_bytes == 0
    service.clock.advance(UNSENT_CHECK_SECONDS)
    assert service.clock.next_in() > UNSENT_CHECK_SECONDS, "nobody is looked for any more"


async def test_when_unsent_answers_are_twice_too_much_who_has_most_is_cut_off(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.remoting.connections.unsent, "MAX_UNSENT_BYTES", 5_500_000)
    first = await ask_big_and_do_not_read(service, 5)
    second = await ask_big_and_do_not_read(service, 7)
    await until(lambda: len(service.server.connections) == 1)
    assert service.server.unsent.total_bytes <= 5 * len(BIG) + 10_000
    await take_big(first, 5)
    assert (await first.ask(max_offset(1))).code == 0
    for raw in (first, second):
        await raw.close()


async def test_bytes_that_end_a_turn_count_as_unsent_too(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cometmq.remoting.connections.unsent, "MAX_UNSENT_BYTES", 5_500_000)
    raw = await ask_big_and_do_not_read(service, 5)
    (connection,) = service.server.connections
    assert not connection.is_behind
    connection.write_last(RemotingCommand(code=0, body=BIG).encode())
    await until(lambda: connection.is_behind)
    await take_big(raw, 6)
    await raw.close()


async def test_bytes_that_end_a_turn_keep_their_place_behind_queued_ones(service: Service) -> None:
    raw = await Raw.connect(service)
    await raw.ask(RemotingCommand(code=34))
    (connection,) = service.kept
    frames = [RemotingCommand(code=0, opaque=number).encode() for number in range(5)]
    for number, frame in enumerate(frames):
        (connection.write if number in (1, 3) else connection.write_last)(frame)
    for number in range(5):
        answer = await raw.next()
        assert answer is not None
        assert answer.opaque == number
    await raw.close()


@pytest.mark.parametrize("last", [b"", b"GET / HTTP/1.1\r\n\r\n"], ids=["silent", "no frames"])
async def test_a_client_that_never_reads_cannot_stay(service: Service, last: bytes) -> None:
    raw, other = await Raw.connect(service), await Raw.connect(service)
    assert (await other.ask(max_offset(1))).code == 0
    cast(asyncio.Transport, raw.writer.transport).pause_reading()
    raw.writer.write(RemotingCommand(code=32).encode() * 7 + last)
    await until(lambda: service.big_answers == 7)
    assert len(service.server.connections) == 2
    for _ in range(5):
        service.clock.advance(30)
        assert (await other.ask(max_offset(1))).code == 0
    await until(lambda: len(service.server.connections) == 1)
    await raw.close()
    await other.close()


async def test_unfinished_frames_are_bounded_in_all_and_the_largest_goes_first(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.remoting.server_connection, "MAX_UNFINISHED_BYTES", 500_000)
    server = service.server
    whole = max_offset(1, body=bytes(100_000)).encode()
    honest = await Raw.connect(service)
    honest.writer.write(whole[:1000])
    await until(lambda: server.unfinished_bytes == 1000)
    greedy = [await Raw.connect(service) for _ in range(10)]
    for number, raw in enumerate(greedy):
        raw.writer.write(struct.pack(">II", 16_000_000, 100) + bytes(90_000 + number))
        await until(lambda: server.unfinished_bytes % 90_000 < 2_000 and server.unfinished_bytes > 80_000)
    await until(lambda: len(server.connections) == 6)
    assert server.unfinished_bytes <= 500_000
    honest.writer.write(whole[1000:])
    answer = await honest.next()
    assert answer is not None
    assert len(answer.body) == 100_000
    for raw in (*greedy, honest):
        await raw.close()
    await until(lambda: not server.connections)
    assert server.unfinished_bytes == 0
