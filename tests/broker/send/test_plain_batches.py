"""The compiled core stores and answers batches exactly as Python does: the same log, queues, index and answers."""

from __future__ import annotations

import asyncio
import random
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.turn.side_by_side import SideBySide

import cometmq.broker.send.large_batches as large_batches
from cometmq.core import CORE
from cometmq.message.compression import compress
from cometmq.message.producer_sequence import ProducerSequence
from cometmq.message.sysflag import CompressionType, with_compression
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.frame import JSON, ROCKETMQ
from cometmq.remoting.headers import OpenProducerRequestHeader, SendMessageRequestHeaderV2, to_ext
from cometmq.store.errors import StoreError

pytestmark = pytest.mark.skipif(CORE is None, reason="the compiled core is not installed (make test builds it)")

PROPERTIES = "KEYS\x01k1 k2\x02UNIQ_KEY\x017F0000010000\x02WAIT\x01true\x02TAGS\x01TagA\x02user\x01value"


def piece(body: bytes = b"hello", properties: str | bytes = PROPERTIES, flag: int = 7) -> bytes:
    """One message of a batch."""
    stored = properties if isinstance(properties, bytes) else properties.encode()
    size = 22 + len(body) + len(stored)
    return struct.pack(">iiiii", size, 1, 2, flag, len(body)) + body + struct.pack(">h", len(stored)) + stored


def batch(
    body: bytes,
    opaque: int = 1,
    *,
    code: RequestCode = RequestCode.SEND_BATCH_MESSAGE,
    command_flag: int = 0,
    serialize: int = JSON,
    **changed: Any,
) -> bytes:
    """The frame of a batch."""
    header = SendMessageRequestHeaderV2("g", "T", "TBW102", 4, 1, 0, 1_700_000_000_000, 0, batch=True)
    for name, value in changed.items():
        setattr(header, name, value)
    fields = to_ext(header)
    return RemotingCommand(
        code, opaque, command_flag, "JAVA", ext_fields=fields, body=body, serialize_type=serialize
    ).encode()


def sequenced(messages: int, first: int, body: bytes | None = None, *, epoch: int = 1) -> bytes:
    """The frame of a batch whose producer numbers its messages."""
    sequence = ProducerSequence("p", 0, epoch, first, messages, 5)
    return batch(body or piece() * messages, properties=f"PRODUCER_SEQUENCE\x01{sequence.text()}")


def opened() -> bytes:
    """The frame that opens the producer of :func:`sequenced`."""
    ext = to_ext(OpenProducerRequestHeader(producer="p", batch=0))
    return RemotingCommand(RequestCode.OPEN_PRODUCER, 3, 0, "JAVA", ext_fields=ext).encode()


TAKEN: dict[str, bytes] = {
    "one": batch(piece()),
    "many": batch(b"".join(piece(b"%d" % number, f"UNIQ_KEY\x01{number:X}") for number in range(700))),
    "binary": batch(piece() * 2, serialize=ROCKETMQ),
    "not as a batch": batch(piece() * 2, batch=False),
    "large messages": batch(piece(bytes(2000)) * 3),
    "oneway": batch(piece(), command_flag=2),
    "oneway, binary": batch(piece() * 2, command_flag=2, serialize=ROCKETMQ),
    "properties of the batch": batch(piece() * 2, properties="a\x01b\x02"),
    "as Java writes them": batch(piece() * 2, properties="WAIT\x01true\x02UNIQ_KEY\x017F000001\x02"),
    "only a separator": batch(piece(), properties="\x02"),
    "an empty delay of the batch": batch(piece(), properties="DELAY\x01"),
    "no properties at all": batch(piece(), properties=None),
    "the batch does not wait": batch(piece(), properties="WAIT\x01false"),
    "a message does not wait": batch(piece(properties="WAIT\x01false\x02a\x01b")),
    "no properties": batch(piece(properties="")),
    "no body": batch(piece(b"")),
    "no value": batch(piece(properties="a\x02KEYS\x01\x02TAGS")),
    "another script": batch(piece("正文".encode(), "TAGS\x01标签\x02KEYS\x01钥匙 😀")),
    "retried": batch(piece(), reconsume_times=3),
    "in a message group": batch(piece(properties="__SHARDINGKEY\x01g") * 2),
    "a type of compression alone": batch(piece(), sys_flag=0x300),
    "host bits": batch(piece(), sys_flag=48),
}
PLAIN: dict[str, bytes] = {
    **TAKEN,
    "by code 310": batch(piece() * 2, code=RequestCode.SEND_MESSAGE_V2),
    "two separators behind": batch(piece() * 2, properties="a\x01b\x02\x02"),
    "any queue": batch(piece() * 3, queue_id=-1),
    "compressed as a whole": batch(
        compress(piece() * 9, CompressionType.ZLIB, 5), sys_flag=with_compression(0, CompressionType.ZLIB)
    ),
}
LEFT: dict[str, bytes] = {
    "no message": batch(b""),
    "a life time": batch(piece() + piece(properties="COMETMQ_TTL_MS\x015000")),
    "a delay": batch(piece() + piece(properties="DELAY\x013")),
    "a half message": batch(piece(properties="TRAN_MSG\x01true")),
    "of a transaction": batch(piece(), sys_flag=4),
    "waits twice": batch(piece(properties="WAIT\x01true\x02a\x01b\x02WAIT\x01false")),
    "its own cluster": batch(piece(properties="CLUSTER\x01c\x02a\x01b")),
    "two separators": batch(piece(properties="a\x01b\x02\x02")),
    "many keys": batch(piece(properties="KEYS\x01" + " ".join(map(str, range(40))))),
    "no UTF-8": batch(piece(properties=b"\xff")),
    "cut": batch((piece() * 2)[:-1]),
    "more than there is": batch(piece() + b"\x00" * 5),
    "a size too small": batch(struct.pack(">i", 21) + piece()[4:]),
    "a negative size": batch(struct.pack(">i", -1) + piece()[4:]),
    "a negative body": batch(piece()[:16] + struct.pack(">i", -1) + piece()[20:]),
    "negative properties": batch(piece()[:25] + struct.pack(">h", -1) + piece()[27:]),
    "large properties": batch(piece(properties="a\x01" + "b" * 32_760)),
    "too many": batch(piece(b"", "") * 10_001),
    "no such topic": batch(piece(), topic="none", default_topic="none"),
    "a retry topic": batch(piece(), topic="%RETRY%g"),
    "no such queue": batch(piece(), queue_id=99),
    "a priority": batch(piece(properties="_SYS_MSG_PRIORITY_\x013") * 2),
    "a priority of the batch": batch(piece(), properties="_SYS_MSG_PRIORITY_\x013"),
    "a delay of the batch": batch(piece(), properties="DELAY\x013"),
    "a lite topic": batch(piece() + piece(properties="__LITE_TOPIC\x01l")),
    "a lite topic of the batch": batch(piece(), properties="__LITE_TOPIC\x01l"),
    "a half batch": batch(piece(), properties="TRAN_MSG\x01true"),
    "the batch waits twice": batch(piece(), properties="WAIT\x01true\x02WAIT\x01false"),
    "the batch's own cluster": batch(piece(), properties="CLUSTER\x01c"),
    "no sequence": batch(piece(), properties="PRODUCER_SEQUENCE\x01x"),
    "the name of a sequence": batch(piece(), properties="a\x01PRODUCER_SEQUENCE"),
    "compressed, but not so": batch(piece(), sys_flag=1),
    "neither true nor false": batch(piece()).replace(b'"m":"true"', b'"m":"1234"'),
    "no queue": batch(piece()).replace(b'"e":"1"', b'"z":"1"'),
    "as large as may be": batch(piece(bytes(400_000 - 22), "")),
    "a byte too large": batch(piece(bytes(400_000 - 21), "")),
    "an answer": batch(piece(), command_flag=1),
}
"""Those that Python stores or refuses; the core takes some of their records."""


COUNTED = ("rocketmq_messages_in_total", "rocketmq_throughput_in_total", "rocketmq_message_size", "rocketmq_rpc")
FRAMES = [frame for frame in (*PLAIN.values(), *LEFT.values()) if len(frame) < 100_000]


def plain_send() -> bytes:
    """The frame of one message."""
    return batch(b"hello", code=RequestCode.SEND_MESSAGE_V2, batch=False, properties=PROPERTIES)


async def both(directory: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> SideBySide:
    """Start the two brokers, both with the topic T."""
    pair = SideBySide(directory, max_message_size=400_000, **options)
    await pair.start(monkeypatch)
    pair.receive(0, batch(piece()))
    pair.end_round()
    return pair


def refuse(*_: Any) -> Any:
    raise AssertionError("a plain batch came to Python")


@pytest.mark.parametrize("ip", ["127.0.0.1", "::1"])
async def test_every_form_of_a_batch_is_stored_and_answered_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ip: str
) -> None:
    pair = await both(tmp_path, monkeypatch, ip=ip)
    for name, frame in {**PLAIN, **LEFT}.items():
        pair.receive(0, frame)
        pair.end_round(name)
    for frame in (*PLAIN.values(), *LEFT.values()):  # in one turn
        pair.receive(1, frame)
    pair.end_round()
    await pair.stop()


async def test_plain_batches_are_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = await both(tmp_path, monkeypatch)
    monkeypatch.setattr(large_batches, "decode_batch", refuse)
    for name, frame in PLAIN.items():
        pair.compiled.receive(0, frame)
        pair.compiled.end_round()
        assert "oneway" in name or b"msgId" in pair.compiled.answers()[0], name
    monkeypatch.undo()
    await pair.compiled.stop()
    await pair.python.stop()


async def test_the_core_takes_plain_batches_from_the_bytes_of_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = await both(tmp_path, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(pair.compiled.broker.turn, "all_or_none", refuse)
        for number, (name, frame) in enumerate(TAKEN.items()):
            pair.receive(number % 2, frame)
            if number % 3 == 0:
                pair.end_round(name)
        pair.receive(0, b"".join(TAKEN.values()))
        pair.end_round()
    await pair.stop()


async def test_metrics_count_batches_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = await both(tmp_path, monkeypatch, metrics_exporter_type="PROM", metrics_prom_exporter_port=0)
    for frame in TAKEN.values():
        pair.receive(0, frame)
        pair.receive(1, plain_send())
        pair.end_round()
    found = []
    for side in pair.sides:
        assert side.broker.monitor is not None
        lines = b"".join(side.broker.monitor.pieces()).decode().splitlines()
        found.append([line for line in lines if line.startswith(COUNTED) and "_sum" not in line])
    assert found[0] == found[1]
    batches = [line for line in found[0] if "_count" in line and 'request_code="send_batch_message"' in line]
    answered = [name for name in TAKEN if not name.startswith("oneway")]
    assert [line.split()[-1] for line in batches] == [f"{len(answered) + 1}"]
    await pair.stop()


@pytest.mark.parametrize("outcome", ["flushed", "late", "failed"])
async def test_batches_that_wait_for_their_flush_are_answered_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    pair = await both(tmp_path, monkeypatch, flush_disk_type="SYNC_FLUSH")
    for side in pair.sides:
        await side.broker.store.wait_flushed(side.broker.store.max_physical_offset)
    pair.compare()
    waiting: list[Callable[[StoreError | None], None]] = []
    with monkeypatch.context() as patched:
        for side in pair.sides:
            patched.setattr(side.broker.store, "when_flushed", lambda _, callback: waiting.append(callback))
        for frame in TAKEN.values():
            pair.receive(0, frame)
        pair.end_round()
        if outcome == "late":
            for side in pair.sides:
                side.clock.advance(6)
            pair.compare("late")
        for callback in waiting:
            callback(StoreError("the disk is gone") if outcome == "failed" else None)
        pair.compare(outcome)
    await pair.stop()


async def test_a_turn_of_batches_that_cannot_be_written_is_refused_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = await both(tmp_path, monkeypatch)

    def fail() -> int:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patched:
        for side in pair.sides:
            patched.setattr(side.broker.store.batch, "commit", fail)
        for frame in (*TAKEN.values(), plain_send(), *LEFT.values()):
            pair.receive(0, frame)
        pair.end_round()
    pair.receive(0, TAKEN["many"])
    pair.end_round()
    await pair.stop()


async def test_batches_of_a_numbered_producer_are_stored_once_by_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = await both(tmp_path, monkeypatch)
    for frame in (
        opened(),
        sequenced(2, 0),
        sequenced(2, 0),  # again
        sequenced(3, 2),
        sequenced(4, 4),  # the first of them is stored
        sequenced(2, 20),  # a gap
        sequenced(3, 8, piece() * 2),  # not as many as it says
        sequenced(2, 8, epoch=0),
        sequenced(2, 8),
        opened(),
        sequenced(2, 10),  # fenced
    ):
        pair.receive(0, frame)
        pair.end_round()
    await pair.stop()


@pytest.mark.parametrize("options", [{"flush_disk_type": "SYNC_FLUSH"}, {"message_index_enable": False}])
async def test_other_configurations_store_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    pair = await both(tmp_path, monkeypatch, **options)
    for frame in PLAIN.values():
        pair.receive(0, frame)
    for side in pair.sides:
        side.end_round()
        await side.broker.store.wait_flushed(side.broker.store.max_physical_offset)
    pair.compare()
    await pair.stop()


async def test_batches_go_on_in_the_next_log_file_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = await both(tmp_path, monkeypatch, mapped_file_size_commit_log=256 * 1024)
    for number in range(30):
        pair.receive(number % 2, batch(b"".join(piece(bytes(1000 + 7 * n)) for n in range(40)), number))
        if number % 3 == 0:
            pair.end_round(number)
    pair.end_round()
    await pair.stop()


pieces = st.builds(
    piece,
    st.binary(max_size=40),
    st.text("aKEYSTAGWI \x01\x02中", max_size=24) | st.sampled_from([PROPERTIES, "DELAY\x013", "WAIT\x01x", ""]),
    st.integers(-(2**31), 2**31 - 1),
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_any_stream_of_batches_and_sends_is_stored_and_answered_alike(seed: int) -> None:
    """Some frames are spoilt, and the stream arrives in any pieces."""

    async def run(directory: str, patch: pytest.MonkeyPatch) -> None:
        chance = random.Random(seed)
        # What does not fit into a round is handled in the next one: both still choose the same queue.
        patch.setattr("random.randrange", lambda _: 1)
        pair = await both(Path(directory), patch, mapped_file_size_commit_log=1024 * 1024)
        for _ in range(60):
            stream = bytearray()
            for _ in range(chance.choice((1, 1, 2, 5))):
                frame = bytearray(chance.choice((plain_send(), *FRAMES)))
                if chance.random() < 0.4:
                    end = min(len(frame), chance.choice((400, len(frame))))  # the header, the first messages
                    for _ in range(chance.choice((1, 1, 3))):
                        frame[chance.randrange(4, end)] = chance.randrange(256)
                stream += frame
            connection = pair.connect()
            while stream:
                cut = chance.choice((chance.randrange(1, 60), len(stream), len(stream)))
                pair.receive(connection, bytes(stream[:cut]))
                del stream[:cut]
            if chance.random() < 0.6:
                pair.end_round(seed)
        pair.end_round(seed)
        await pair.stop()

    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        asyncio.run(run(directory, patch))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.lists(pieces, max_size=5), st.integers(0, 40), st.booleans()), max_size=12))
def test_any_batches_are_stored_and_answered_alike(batches: list[tuple[list[bytes], int, bool]]) -> None:
    async def run(directory: str, patch: pytest.MonkeyPatch) -> None:
        pair = await both(Path(directory), patch)
        for messages, damage, ends in batches:
            body = bytearray(b"".join(messages))
            if damage < len(body) and damage % 3 == 0:
                body[damage] ^= random.Random(damage).randrange(1, 256)
            pair.receive(0, batch(bytes(body), properties="x\x01y"))
            if ends:
                pair.end_round()
        pair.end_round()
        await pair.stop()

    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        asyncio.run(run(directory, patch))
