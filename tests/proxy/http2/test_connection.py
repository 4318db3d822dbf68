"""Windows of HTTP/2, without sockets: what a client has no room for waits, and costs nothing until there is room."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from cometmq.clock import SYSTEM_CLOCK
from cometmq.proxy.http2 import frames
from cometmq.proxy.http2.connection import Http2Connection
from cometmq.proxy.http2.frames import frame
from cometmq.proxy.http2.hpack import encode_headers
from cometmq.proxy.http2.stream import Inbound, Stream
from cometmq.proxy.limits import HTTP2_CONTROL_FRAMES, MAX_STREAMS

TRAILERS = b"trailers"


class Server(Inbound):
    """Takes streams and remembers them."""

    def __init__(self, first_window: int) -> None:
        self.streams: dict[int, Stream] = {}
        self.waiting = self.unfinished = self.cancelled = 0
        self.connection = Http2Connection(self._opened, lambda: None, self._waits, self._unfinish, SYSTEM_CLOCK)
        self.got: dict[int, bytes] = defaultdict(bytes)
        self.complete: set[int] = set()
        self.frames_of_data = 0
        self.receive(frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: first_window}))

    def _opened(self, stream: Stream, _headers: dict[str, str], _size: int) -> Inbound:
        self.streams[stream.id] = stream
        return self

    def _waits(self, change: int) -> None:
        self.waiting += change

    def _unfinish(self, change: int) -> None:
        self.unfinished += change

    def receive_data(self, chunk: bytes) -> None:
        """Drop it."""

    def receive_end(self) -> None:
        """Do nothing."""

    def cancel(self) -> None:
        """Count it."""
        self.cancelled += 1

    def open(self, number: int) -> Stream:
        block = encode_headers((":method", "POST"))
        self.receive(frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, number, block))
        return self.streams[number]

    def receive(self, data: bytes) -> None:
        self.connection.add_bytes(data)
        while self.connection.handle_frames(1_000):
            pass
        self._read()

    def _read(self) -> None:
        out, self.connection.out = b"".join(self.connection.out), []
        at = 0
        while at < len(out):
            high, low, kind, _, stream = frames.HEAD.unpack_from(out, at)
            end = at + frames.HEAD_BYTES + (high << 8 | low)
            if kind == frames.DATA:
                assert stream not in self.complete
                self.frames_of_data += 1
                self.got[stream] += out[at + frames.HEAD_BYTES : end]
            elif kind == frames.HEADERS:
                self.complete.add(stream)
            at = end


def more(stream: int, size: int) -> bytes:
    return frames.window_update(stream, size)


@pytest.mark.parametrize("seed", range(8))
def test_every_byte_is_sent_once_in_order_and_never_beyond_the_windows(seed: int) -> None:
    chance = random.Random(seed)
    server = Server(first_window=chance.choice((0, 1, 1_000)))
    sent: dict[int, bytes] = {}
    room = dict.fromkeys(range(1, 13, 2), server.connection._first_window)
    whole = 65_535
    for number in room:
        stream = server.open(number)
        parts = [chance.randbytes(chance.choice((0, 1, 700, 40_000))) for _ in range(chance.randrange(1, 5))]
        sent[number] = b"".join(parts)
        for part in parts:
            stream.send_data(part)
        stream.end(TRAILERS)
    for _ in range(3_000):
        number, size = chance.choice((0, *room)), chance.choice((1, 100, 5_000))
        if number:
            room[number] += size
        else:
            whole += size
        server.receive(more(number, size))
        assert all(sent[number].startswith(got) and len(got) <= room[number] for number, got in server.got.items())
        assert sum(map(len, server.got.values())) <= whole
    for number in (0, *room):
        server.receive(more(number, 1_000_000))
    assert {number: server.got[number] for number in sent} == sent
    assert server.complete == set(sent)
    assert (server.waiting, server.connection.streams) == (0, {})


def test_a_window_of_one_byte_more_is_no_work_for_a_thousand_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(first_window=1_000_000)
    for number in range(1, 2_001, 2):
        server.open(number).send_data(bytes(1_000))
    before, pumps = server.frames_of_data, 0
    pump = Stream.pump

    def counted(stream: Stream) -> None:
        nonlocal pumps
        pumps += 1
        pump(stream)

    monkeypatch.setattr(Stream, "pump", counted)
    for _ in range(500):
        server.receive(more(0, 1))
    assert server.frames_of_data - before == 500
    assert pumps <= 1_000


def test_headers_that_are_not_complete_are_counted_until_the_connection_ends() -> None:
    server = Server(first_window=0)
    server.receive(frame(frames.HEADERS, 0, 1, bytes(1_000)) + frame(frames.CONTINUATION, 0, 1, bytes(500)))
    assert server.unfinished == 1_500
    server.connection.cancel_streams()
    assert server.unfinished == 0


def test_calls_that_cross_a_goaway_are_ignored_and_others_go_on() -> None:
    server = Server(first_window=65_535)
    open_ = server.open(1)
    server.connection.send_goaway()
    block = encode_headers((":method", "POST"))
    server.receive(frame(frames.HEADERS, frames.END_HEADERS, 3, block))
    server.receive(frame(frames.DATA, 0, 3, b"a") + more(3, 5))
    server.receive(frame(frames.DATA, frames.END_STREAM, 3, b"b") + frames.reset(3, frames.ErrorCode.CANCEL))
    assert list(server.streams) == [1]
    open_.send_data(b"answer")
    open_.end(TRAILERS)
    server.receive(b"")
    assert server.got[1] == b"answer"


def test_calls_that_cross_an_announced_goaway_are_handled_until_the_client_confirms_it() -> None:
    server = Server(first_window=65_535)
    connection = server.connection
    server.open(1)
    connection.announce_goaway()
    goaway, ping = connection.out[0][:17], connection.out[0][17:]
    assert goaway == frames.goaway(2**31 - 1, frames.ErrorCode.NO_ERROR)
    server.open(3)
    server.receive(frame(frames.PING, frames.ACK, 0, b"of other"))
    server.open(5)
    connection.add_bytes(frame(frames.PING, frames.ACK, 0, ping[frames.HEAD_BYTES :]))
    connection.handle_frames(1)
    assert connection.out == [frames.goaway(5, frames.ErrorCode.NO_ERROR)]
    for number in (1, 3, 5):
        assert not connection.is_over
        server.streams[number].end(TRAILERS)
    assert connection.is_over


def test_a_confirmation_of_nothing_ends_nothing() -> None:
    server = Server(first_window=65_535)
    server.receive(frame(frames.PING, frames.ACK, 0, b"lastping"))
    assert server.open(1)


@pytest.mark.parametrize("updates", [1, 3])
def test_the_answer_of_a_taken_call_uses_the_window_given_to_its_stream_alone(updates: int) -> None:
    """The client has taken back its first window between the call and its answer."""
    server = Server(2**20)
    server.connection.take_calls = lambda _decoder, buffer, _at, _last: (len(buffer), 1, 0, 1, False)
    server.receive(frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, b"a call"))
    server.receive(frames.settings({frames.INITIAL_WINDOW_SIZE: 2}))
    for _ in range(updates):
        server.receive(more(1, 6 // updates))
    server.connection.send_answer(1, b"headers", b"12345678", TRAILERS)
    sent = frame(frames.HEADERS, frames.END_HEADERS, 1, b"headers") + frame(frames.DATA, 0, 1, b"12345678")
    end = frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, TRAILERS)
    assert b"".join(server.connection.out) == sent + end
    assert not server.waiting


def test_updates_for_streams_that_have_ended_are_not_kept_without_limit() -> None:
    server = Server(2)
    server.connection.take_calls = lambda _decoder, buffer, at, _last: (at, 1, 0, 0, False)
    for number in range(1, 4 * MAX_STREAMS, 2):
        server.connection.streams.pop(number, None)
        server.open(number)
        server.connection.close_stream(server.streams[number])
        server.receive(more(number, 1))
    assert len(server.connection._given) <= MAX_STREAMS


def test_an_update_before_the_first_window_is_lowered_counts_for_a_taken_call() -> None:
    server = Server(65_535)
    server.connection.take_calls = lambda _decoder, buffer, _at, _last: (len(buffer), 1, 0, 1, False)
    server.receive(frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, b"a call"))
    server.receive(more(1, 10) + frames.settings({frames.INITIAL_WINDOW_SIZE: 0}))
    server.connection.send_answer(1, b"headers", b"12345678", TRAILERS)
    assert frame(frames.DATA, 0, 1, b"12345678") in b"".join(server.connection.out)
    assert not server.waiting


def test_the_end_of_a_window_comes_back_after_it_was_negative() -> None:
    """A client that lowers its first window below what was sent has to give back the difference first."""
    server = Server(1_000)
    stream = server.open(1)
    stream.send_data(bytes(1_000))
    server.receive(frames.settings({frames.INITIAL_WINDOW_SIZE: 100}))
    stream.send_data(b"")
    assert (stream.window, server.waiting) == (-900, 0)
    stream.send_data(bytes(500))
    server.receive(more(1, 900))
    assert (len(server.got[1]), stream.window, server.waiting) == (1_000, 0, 500)
    server.receive(more(1, 500))
    stream.end(TRAILERS)
    server.receive(b"")
    assert (len(server.got[1]), server.complete) == (1_500, {1})


def test_settings_are_acknowledged_before_data_uses_them() -> None:
    """hyper-h2 counts data against its old window until the acknowledgement arrives."""
    server = Server(10)
    server.open(1).send_data(bytes(20))
    server.receive(b"")
    server.connection.add_bytes(frames.settings({frames.INITIAL_WINDOW_SIZE: 1_000}))
    server.connection.handle_frames(10)
    acknowledged, *data = server.connection.out
    assert acknowledged == frame(frames.SETTINGS, frames.ACK, 0)
    assert data == [frame(frames.DATA, 0, 1, bytes(10))]


def test_a_first_window_that_makes_a_window_too_large_ends_the_connection() -> None:
    server = Server(1_000)
    server.open(1)
    server.receive(more(1, 2**31 - 1_001))
    with pytest.raises(frames.Http2Error, match="too large"):
        server.receive(frames.settings({frames.INITIAL_WINDOW_SIZE: 1_001}))


def test_calls_whose_windows_overflow_are_cancelled_and_a_flood_of_them_ends() -> None:
    """A client that makes the server reset its streams gets as far as one that resets them itself."""
    server = Server(65_535)
    server.open(1)
    server.receive(more(1, 2**31 - 1))
    assert (server.cancelled, list(server.connection.streams)) == (1, [])

    def flood() -> None:
        for number in range(3, 3 * HTTP2_CONTROL_FRAMES, 2):
            server.open(number)
            server.receive(more(number, 2**31 - 1))

    with pytest.raises(frames.Http2Error) as end:
        flood()
    assert end.value.code == frames.ErrorCode.ENHANCE_YOUR_CALM
