"""The server's transport, spoken to over raw sockets."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import socket
import struct
from functools import partial
from typing import Any, cast

import pytest
from tests.helpers.request_hooks import add_hooks
from tests.helpers.waiting import until
from tests.remoting.serving import BIG, Raw, Service, max_offset

from cometmq.limits import MAX_REMARK_CHARS, ROUND_OF_ALL_BYTES, ROUND_OF_ALL_SECONDS, ROUND_SECONDS
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.frame import ROCKETMQ
from cometmq.remoting.headers import NoHeader
from cometmq.remoting.processors import Request, Response, RpcHook, RpcRejectedError
from cometmq.remoting.server import RemotingServer, ServerLimits
from cometmq.remoting.server_connection import InvokeError, ServerConnection


async def test_an_answer_has_the_opaque_a_version_and_the_form_of_its_request(
    service: Service,
) -> None:
    raw = await Raw.connect(service)
    for serialize_type in (0, ROCKETMQ):
        answer = await raw.ask(max_offset(77, serialize_type=serialize_type, body=b"echo"))
        assert (answer.code, answer.opaque, answer.flag) == (0, 77, 1)
        assert answer.ext_fields == {"offset": "40"}
        assert answer.body == b"echo"
        assert answer.version >= 232
        assert answer.serialize_type == serialize_type
    await raw.close()


async def test_a_panic_of_the_compiled_core_ends_its_connection_and_nothing_else(service: Service) -> None:
    """PyO3 raises a panic as an exception that no ``except Exception`` catches."""

    class Panic(BaseException):
        pass

    def panic(data: bytes, at: int) -> int:
        raise Panic

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)
    other = await Raw.connect(service)
    assert (await other.ask(max_offset(1))).code == 0
    service.server.new_taker = lambda connection: panic
    for data in (max_offset(1).encode(), max_offset(1).encode()[:5]):
        raw = await Raw.connect(service)
        raw.writer.write(data)
        assert await raw.next() is None
        await raw.close()
    assert (await other.ask(max_offset(2))).code == 0
    await other.close()
    loop.set_exception_handler(None)


async def test_a_connection_that_ends_leaves_memory_at_once_with_what_it_had_sent(service: Service) -> None:
    """Without a search for garbage, which is rare in a server and may find megabytes of unread bytes otherwise."""

    def take_nothing(connection: ServerConnection, data: bytes, at: int) -> int:
        return at

    service.server.new_taker = lambda connection: partial(take_nothing, connection)
    gc.collect()
    others = {id(one) for one in gc.get_objects() if isinstance(one, ServerConnection)}  # of clusters that tests share
    gc.disable()
    try:
        for ending in (b"", max_offset(2).encode()[:-1]):
            raw = await Raw.connect(service)
            assert (await raw.ask(max_offset(1))).code == 0
            raw.writer.write(ending)
            await raw.close()
            await until(lambda: not service.server.connections)
            await asyncio.sleep(0)
            left = [one for one in gc.get_objects() if isinstance(one, ServerConnection) and id(one) not in others]
            assert not left
    finally:
        gc.enable()


async def test_an_unknown_code_is_answered_in_rocketmqs_words(service: Service) -> None:
    raw = await Raw.connect(service)
    answer = await raw.ask(RemotingCommand(code=9999, opaque=1))
    assert (answer.code, answer.remark) == (3, " request type 9999 not supported")
    await raw.close()


async def test_a_header_whose_code_is_not_in_front_is_understood(service: Service) -> None:
    raw = await Raw.connect(service)
    header = b'{"opaque":5,"extFields":{"queueId":2,"topic":"T"},"version":1,"flag":0,"code":30}'
    raw.writer.write(struct.pack(">ii", 4 + len(header), len(header)) + header)
    answer = await raw.next()
    assert answer is not None
    assert answer.ext_fields == {"offset": "20"}
    await raw.close()


async def test_a_missing_or_mistyped_field_is_named_and_the_connection_goes_on(
    service: Service,
) -> None:
    raw = await Raw.connect(service)
    for serialize_type in (0, ROCKETMQ):
        answer = await raw.ask(RemotingCommand(code=30, opaque=1, serialize_type=serialize_type))
        assert answer.code == 1
        assert "topic" in (answer.remark or "")
        answer = await raw.ask(max_offset(2, "many", serialize_type=serialize_type))
        assert answer.code == 1
        assert "queueId" in (answer.remark or "")
    assert (await raw.ask(max_offset(3))).code == 0
    await raw.close()


async def test_a_processor_that_raises_is_answered_and_the_server_lives(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    raw = await Raw.connect(service)
    answer = await raw.ask(RemotingCommand(code=31, opaque=1))
    assert answer.code == 1
    assert "broken on purpose" in (answer.remark or "")
    assert (await raw.ask(max_offset(2))).code == 0
    await raw.close()


async def test_a_oneway_request_is_handled_and_never_answered(service: Service) -> None:
    raw = await Raw.connect(service)
    for command in (max_offset(1), RemotingCommand(code=31), RemotingCommand(code=9999), RemotingCommand(code=30)):
        command.flag = 2
        raw.writer.write(command.encode())
    assert (await raw.ask(max_offset(5))).opaque == 5
    await raw.close()


async def test_requests_that_arrive_together_are_committed_together(service: Service) -> None:
    raw = await Raw.connect(service)
    raw.writer.write(b"".join(RemotingCommand(code=33, opaque=n).encode() for n in range(20)))
    answers = [await raw.next() for _ in range(20)]
    assert [answer.opaque for answer in answers if answer] == list(range(20))
    assert service.turns == [20]
    await raw.close()


async def test_a_client_that_asks_a_thousand_times_at_once_makes_nobody_wait(service: Service) -> None:
    greedy, other = await Raw.connect(service), await Raw.connect(service)
    greedy.writer.write(b"".join(RemotingCommand(code=35, opaque=n).encode() for n in range(1000)))
    assert (await other.ask(max_offset(1))).code == 0
    assert service.worked_before_answer < 100
    answers = [await greedy.next() for _ in range(1000)]
    assert [answer.opaque for answer in answers if answer] == list(range(1000))
    assert (await greedy.ask(max_offset(7))).opaque == 7, "it is read again afterwards"
    await greedy.close()
    await other.close()


async def test_of_requests_that_take_long_one_is_run_before_others_have_their_turn(service: Service) -> None:
    greedy, other = await Raw.connect(service), await Raw.connect(service)
    greedy.writer.write(RemotingCommand(code=37).encode() * 12)
    assert (await other.ask(max_offset(1))).code == 0
    assert service.worked_before_answer <= 2, "not all twelve, nor as many as are handled between two looks"
    for _ in range(12):
        assert await greedy.next() is not None
    await greedy.close()
    await other.close()


async def test_a_remark_is_never_longer_than_clients_take(service: Service) -> None:
    raw = await Raw.connect(service)
    for serialize_type in (0, ROCKETMQ):
        answer = await raw.ask(RemotingCommand(code=38, body=b"x" * 2_000_000, serialize_type=serialize_type))
        assert answer.remark == "x" * MAX_REMARK_CHARS
    await raw.close()


async def test_clients_that_ask_a_thousand_times_at_once_take_turns(service: Service) -> None:
    raws = [await Raw.connect(service) for _ in range(3)]
    for raw in raws:
        raw.writer.write(b"".join(RemotingCommand(code=35, opaque=n).encode() for n in range(400)))
    for raw in raws:
        assert [answer.opaque for answer in [await raw.next() for _ in range(400)] if answer] == list(range(400))
    last = {conn: len(service.worked) - service.worked[::-1].index(conn) for conn in service.worked}
    assert len(last) == 3
    assert min(last.values()) > 3 * 400 - 3 * 100, "all three end at nearly the same time"
    for raw in raws:
        await raw.close()


async def test_many_clients_that_ask_a_lot_share_the_time_of_a_round_and_none_is_left_out(service: Service) -> None:
    raws = [await Raw.connect(service) for _ in range(40)]
    rounds: list[float] = []
    note_round = lambda: rounds.append(service.clock.monotonic())  # noqa: E731
    service.server.end_of_round = (*service.server.end_of_round, note_round)
    for raw in raws:
        raw.writer.write(b"".join(RemotingCommand(code=35, opaque=n).encode() for n in range(60)))
    for raw in raws:
        assert [answer.opaque for answer in [await raw.next() for _ in range(60)] if answer] == list(range(60))
    lasting = [end - begin for begin, end in itertools.pairwise(rounds)]
    assert max(lasting) <= ROUND_OF_ALL_SECONDS + 2 * ROUND_SECONDS
    last = {conn: len(service.worked) - service.worked[::-1].index(conn) for conn in service.worked}
    assert min(last.values()) > 40 * 30, "all end in the second half"
    for raw in raws:
        await raw.close()


async def test_clients_that_get_a_lot_share_the_bytes_of_a_round_and_none_is_left_out(service: Service) -> None:
    """Finding a megabyte in the log takes microseconds, but writing it to a socket a millisecond."""
    raws = [await Raw.connect(service) for _ in range(60)]
    written: list[int] = []
    note_bytes = lambda: written.append(sum(one._out_bytes for one in service.server.connections))  # noqa: E731
    service.server.end_of_round = (*service.server.end_of_round, note_bytes)
    for raw in raws:
        raw.writer.write(b"".join(RemotingCommand(code=32, opaque=n).encode() for n in range(2)))

    async def read(raw: Raw) -> None:
        assert [answer.opaque for answer in [await raw.next() for _ in range(2)] if answer] == [0, 1]

    await asyncio.gather(*map(read, raws))
    assert sum(written) > 120 * len(BIG)
    assert max(written) < ROUND_OF_ALL_BYTES + 2 * len(BIG) + 1_000
    for raw in raws:
        await raw.close()


async def test_a_heartbeat_does_not_wait_for_all_clients_that_asked_for_messages_before(service: Service) -> None:
    raws = [await Raw.connect(service) for _ in range(200)]
    other = await Raw.connect(service)
    for raw in raws:
        raw.writer.write(RemotingCommand(code=RequestCode.PULL_MESSAGE).encode() * 2)
    assert (await other.ask(max_offset(1))).code == 0
    rounds = 3  # that in which it is read, one of those that ask for messages, and its own
    assert service.big_before_answer <= rounds * (ROUND_OF_ALL_BYTES // len(BIG) + 2)
    for raw in raws:
        cast(asyncio.Transport, raw.writer.transport).abort()
    await other.close()
    await until(lambda: not service.server.connections)


async def test_a_pull_does_not_wait_for_all_other_requests_that_have_arrived(service: Service) -> None:
    raws = [await Raw.connect(service) for _ in range(30)]
    puller = await Raw.connect(service)
    for raw in raws:
        raw.writer.write(RemotingCommand(code=35).encode() * 100)
    puller.writer.write(RemotingCommand(code=RequestCode.PULL_MESSAGE).encode())
    await until(lambda: service.big_answers)
    assert service.worked_before_answer < 30 * 100 // 8
    for raw in (*raws, puller):
        cast(asyncio.Transport, raw.writer.transport).abort()
    await until(lambda: not service.server.connections)


async def test_a_client_that_sends_on_while_it_waits_for_its_turn_is_not_read_on(service: Service) -> None:
    raw = await Raw.connect(service)
    raw.writer.write(RemotingCommand(code=35).encode() * 100_000)
    await until(lambda: service.worked)
    (connection,) = service.server.connections
    most = 0
    for _ in range(200):
        await asyncio.sleep(0)
        most = max(most, connection._decoder.pending)
    assert most <= 2 * 256 * 1024, "what two reads of the event loop give"
    cast(asyncio.Transport, raw.writer.transport).abort()
    await until(lambda: not service.server.connections)


async def test_a_request_that_fails_among_those_that_waited_ends_its_connection_only(service: Service) -> None:
    raws = [await Raw.connect(service) for _ in range(4)]
    for number, raw in enumerate(raws):
        broken = RemotingCommand(code=36).encode() if number < 2 else b""
        raw.writer.write(RemotingCommand(code=35).encode() * 20 + broken + RemotingCommand(code=35).encode() * 80)
    for raw in raws[2:]:
        for _ in range(100):
            assert await raw.next() is not None
    await until(lambda: len(service.server.connections) == 2)
    for raw in raws:
        await raw.close()


@pytest.mark.parametrize("language", [b"{}", b"[1]", b"1.5", b"true", b"null", b'"RUST"', b"12345"])
async def test_a_language_of_whatever_kind_is_passed_over(service: Service, language: bytes) -> None:
    raw = await Raw.connect(service)
    header = b'{"code":30,"language":' + language + b',"extFields":{"topic":"T","queueId":3},"opaque":1}'
    raw.writer.write(struct.pack(">ii", 4 + len(header), len(header)) + header)
    answer = await raw.next()
    assert answer is not None
    assert answer.ext_fields == {"offset": "30"}
    await raw.close()


@pytest.mark.parametrize("answer", ["small", "big"])
async def test_a_client_that_goes_while_its_requests_wait_harms_nobody(service: Service, answer: str) -> None:
    raw, other = await Raw.connect(service), await Raw.connect(service)
    more = RemotingCommand(code=32).encode() if answer == "big" else b""
    raw.writer.write((RemotingCommand(code=35).encode() * 20 + more) * 20)
    await until(lambda: service.worked)
    cast(asyncio.Transport, raw.writer.transport).abort()
    assert (await other.ask(max_offset(1))).code == 0
    await until(lambda: len(service.server.connections) == 1)
    await other.close()


async def test_a_silent_connection_is_closed_after_two_minutes_and_a_talking_one_is_not(service: Service) -> None:
    silent, talking = await Raw.connect(service), await Raw.connect(service)
    for _ in range(5):
        assert (await talking.ask(max_offset(1))).code == 0
        service.clock.advance(30)
    assert await silent.next() is None
    assert (await talking.ask(max_offset(1))).code == 0
    await silent.close()
    await talking.close()


async def test_a_frame_that_never_ends_is_given_up(service: Service) -> None:
    raw = await Raw.connect(service)
    frame = max_offset(1).encode()
    raw.writer.write(frame[:20])
    await raw.writer.drain()
    await until(lambda: any(c.frame_sweeps >= 0 for c in service.server.connections))
    for sent in range(21, 24):  # one more byte now and then does not help
        service.clock.advance(10)
        raw.writer.write(frame[sent - 1 : sent])
        await until(lambda: service.server.unfinished_bytes == sent)  # noqa: B023 - awaited here
    service.clock.advance(10)
    assert await raw.next() is None
    await raw.close()


@pytest.mark.parametrize(
    "bad", [b"\xff" * 100, b"GET / HTTP/1.1\r\n\r\n", b'\0\0\0\x10\0\0\0\x0c{"code":nope', b"\x16\x03\x01\0\xf4"]
)
async def test_bytes_that_are_no_frames_end_their_connection_only(service: Service, bad: bytes) -> None:
    raw, other = await Raw.connect(service), await Raw.connect(service)
    raw.writer.write(bad)
    raw.writer.write_eof()
    assert await raw.next() is None
    assert (await other.ask(max_offset(1))).code == 0
    await raw.close()
    await other.close()


async def test_more_connections_than_the_limit_are_refused_and_others_live() -> None:
    service = Service()
    service.server = RemotingServer(service.table, limits=ServerLimits(max_connections=2), clock=service.clock)
    await service.server.start("127.0.0.1", 0)
    first, second, third = [await Raw.connect(service) for _ in range(3)]
    assert (await first.ask(max_offset(1))).code == 0
    assert (await second.ask(max_offset(1))).code == 0
    assert await third.next() is None
    for raw in (first, second, third):
        await raw.close()
    await service.server.stop()


async def test_the_server_asks_a_client_and_gets_its_answer(service: Service) -> None:
    raw = await Raw.connect(service)
    await raw.ask(RemotingCommand(code=34, opaque=1))
    asked = asyncio.ensure_future(service.kept[0].invoke(307, NoHeader(), b"?", timeout_s=10))
    request = await raw.next()
    assert request is not None
    assert (request.code, request.body, request.flag) == (307, b"?", 0)
    raw.writer.write(RemotingCommand(code=0, opaque=request.opaque, flag=1, body=b"!").encode())
    assert (await asked).body == b"!"
    late = asyncio.ensure_future(service.kept[0].invoke(307, NoHeader(), timeout_s=10))
    await raw.next()
    service.clock.advance(11)
    with pytest.raises(InvokeError, match="within 10 s"):
        await late
    gone = asyncio.ensure_future(service.kept[0].invoke(307, NoHeader(), timeout_s=10))
    await raw.next()
    await raw.close()
    with pytest.raises(InvokeError, match="closed"):
        await gone
    assert service.closed == service.kept


async def test_hooks_see_requests_and_answers_and_may_refuse(service: Service) -> None:
    seen: list[tuple[str, int]] = []

    def refuse(peer: str, request: Request[Any], body: bytes) -> None:
        if request.opaque == 13:
            raise RpcRejectedError(16, "not you")

    def see(peer: str, request: Request[Any], response: Response) -> None:
        seen.append((peer, response.code))

    add_hooks(service.server, RpcHook(before=refuse), RpcHook(after=see))
    raw = await Raw.connect(service)
    assert (await raw.ask(max_offset(1))).code == 0
    refused = await raw.ask(max_offset(13))
    assert (refused.code, refused.remark) == (16, "not you")
    assert [code for _, code in seen] == [0, 16]
    assert (await raw.ask(RemotingCommand(code=33, opaque=2))).code == 0
    assert len(seen) == 3, "an answer at the end of a turn is seen too"
    assert seen[0][0].startswith("127.0.0.1:")
    await raw.close()


async def test_a_header_with_two_codes_never_gets_past_hooks_as_the_other(service: Service) -> None:
    def refuse(peer: str, request: Request[Any], body: bytes) -> None:
        if request.code == 34:
            raise RpcRejectedError(16, "not you")

    add_hooks(service.server, RpcHook(before=refuse))
    for fields in (b"", b',"version":null'):
        raw = await Raw.connect(service)
        header = b'{"code":34,"opaque":1' + fields + b',"code":30}'
        raw.writer.write(struct.pack(">ii", 4 + len(header), len(header)) + header)
        assert await raw.next() is None
        await raw.close()
    assert not service.kept


async def test_fuzzed_frames_never_end_the_server(service: Service) -> None:
    rng = random.Random(20_000)
    good = [max_offset(1).encode(), max_offset(2, serialize_type=ROCKETMQ).encode(), RemotingCommand(code=33).encode()]
    for _ in range(400):
        raw = await Raw.connect(service)
        mutated = bytearray(rng.choice(good) * rng.randint(1, 3))
        for _ in range(rng.randint(1, 6)):
            choice = rng.random()
            at = rng.randrange(len(mutated))
            if choice < 0.5:
                mutated[at] = rng.randrange(256)
            elif choice < 0.75:
                del mutated[at : at + rng.randint(1, 9)]
            else:
                mutated[at:at] = rng.randbytes(rng.randint(1, 9))
            if not mutated:
                mutated = bytearray(b"\0")
        raw.writer.write(bytes(mutated))
        raw.writer.write_eof()
        raw.writer.close()
    other = await Raw.connect(service)
    assert (await other.ask(max_offset(1))).code == 0
    await other.close()


async def test_clients_that_all_connect_at_once_are_taken_from_the_kernel_at_once(service: Service) -> None:
    """As after a restart: a full queue of the kernel drops clients, which try again only after a second and more."""
    clients = [socket.create_connection(("127.0.0.1", service.server.port)) for _ in range(400)]
    try:
        for _ in range(5):
            await asyncio.sleep(0)
        assert service.server._open == len(clients)
        for client in clients:
            client.sendall(max_offset(1).encode())
        await until(lambda: len(service.server.connections) == len(clients))
        for client in clients:
            client.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(client, 4_096)
    finally:
        for client in clients:
            client.close()
