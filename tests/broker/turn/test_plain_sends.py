"""The compiled core stores and answers plain sends exactly as Python does: the same log, queues, index and answers."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import struct
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.turn.side_by_side import SideBySide

from cometmq.core import CORE
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.frame import JSON, ROCKETMQ
from cometmq.store.errors import StoreError

pytestmark = pytest.mark.skipif(CORE is None, reason="the compiled core is not installed (make test builds it)")

FIELDS = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
}
"""The fields of SEND_MESSAGE, and their names in SEND_MESSAGE_V2."""
PROPERTIES = "KEYS\x01k1\x02UNIQ_KEY\x017F0000010000\x02WAIT\x01true\x02TAGS\x01TagA\x02user\x01value"


def fields(short: bool = True, **changed: str | None) -> dict[str, str]:
    """The fields of a plain send; ``changed`` has the long names, ``None`` leaves one out."""
    values: dict[str, str | None] = {
        "producerGroup": "g",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "1",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "properties": PROPERTIES,
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }
    values |= changed
    return {FIELDS[name] if short else name: value for name, value in values.items() if value is not None}


def send(
    opaque: int = 1,
    body: bytes = b"hello",
    *,
    serialize: int = JSON,
    command_flag: int = 0,
    v2: bool = True,
    **changed: Any,
) -> bytes:
    """The frame of a send."""
    code = RequestCode.SEND_MESSAGE_V2 if v2 else RequestCode.SEND_MESSAGE
    ext = fields(v2, **changed)
    return RemotingCommand(
        code, opaque, command_flag, "JAVA", ext_fields=ext, body=body, serialize_type=serialize
    ).encode()


def pull(opaque: int, queue_id: int, offset: int, most: int, size: int | None, tags: str) -> bytes:
    """The frame of a pull that does not wait; ``size`` is the most bytes of records, for clients that say so."""
    ext = {"consumerGroup": "CID", "topic": "T", "queueId": str(queue_id), "queueOffset": str(offset)}
    ext |= {"maxMsgNums": str(most), "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
    ext |= {"subscription": tags, "subVersion": "0", "expressionType": "TAG"}
    if size is not None:
        ext["maxMsgBytes"] = str(size)
    return RemotingCommand(RequestCode.PULL_MESSAGE, opaque, 0, "JAVA", ext_fields=ext).encode()


def framed(header: bytes, body: bytes = b"hello", serialize: int = JSON) -> bytes:
    """The frame of any header."""
    return struct.pack(">iI", 4 + len(header) + len(body), serialize << 24 | len(header)) + header + body


def header(**changed: Any) -> dict[str, Any]:
    """A JSON header as a dict, to be spoilt."""
    found: dict[str, Any] = {"code": 310, "extFields": fields(), "flag": 0, "language": "JAVA", "opaque": 5}
    return found | {"serializeTypeCurrentRPC": "JSON", "version": 399} | changed


def text(value: Any, **options: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), **options).encode()


CASES: dict[str, bytes] = {
    "plain": send(),
    "V1": send(v2=False),
    "binary": send(serialize=ROCKETMQ),
    "binary V1": send(serialize=ROCKETMQ, v2=False),
    "oneway": send(command_flag=2),
    "an answer": send(command_flag=1),
    "another topic": send(topic="U"),
    "no such topic": send(topic="none", defaultTopic="none"),
    "a topic that nobody may send to": send(topic="SCHEDULE_TOPIC_XXXX"),
    "a retry topic": send(topic="%RETRY%g"),
    "no such queue": send(queueId="99"),
    "any queue": send(queueId="-1"),
    "no properties": send(properties=None),
    "empty properties": send(properties=""),
    "properties end in a separator": send(properties="a\x01b\x02"),
    "two separators": send(properties="a\x01b\x02\x02"),
    "only a separator": send(properties="\x02"),
    "no value": send(properties="a\x02b\x01\x02KEYS\x01\x02TAGS"),
    "no name": send(properties="\x01b\x02c\x01d"),
    "keys twice": send(properties="KEYS\x01a\x02KEYS\x01b c\x02KEYS\x01"),
    "many keys": send(properties="KEYS\x01" + " ".join(map(str, range(40)))),
    "blanks between keys": send(properties="KEYS\x01 a  b \x02UNIQ_KEY\x01"),
    "does not wait": send(properties="WAIT\x01false"),
    "waits twice": send(properties="WAIT\x01true\x02a\x01b\x02WAIT\x01false"),
    "waits in the middle": send(properties="a\x01b\x02WAIT\x01true\x02c\x01d"),
    "its own cluster": send(properties="CLUSTER\x01c\x02a\x01b"),
    "a tag of another script": send(properties="TAGS\x01标签\x02KEYS\x01钥匙 😀"),
    "the smallest hash": send(properties="TAGS\x01polygenelubricants\x02KEYS\x01polygenelubricants"),
    "a value with a name's end": send(properties="a\x01b\x01c"),
    "a delay": send(properties="DELAY\x013"),
    "a life time": send(properties="COMETMQ_TTL_MS\x015000\x02a\x01b"),
    "an end of a life": send(properties="a\x01b\x02COMETMQ_EXPIRES_MS\x015000"),
    "an empty delay": send(properties="DELAY\x01"),
    "a half message": send(properties="TRAN_MSG\x01true", sysFlag="4"),
    "a rolled back message": send(sysFlag="12"),
    "compressed": send(sysFlag="257"),
    "host bits": send(sysFlag="48"),
    "a batch": send(batch="true"),
    "an empty body": send(body=b""),
    "a body at the limit": send(body=b"x" * 4096),
    "a body over the limit": send(body=b"x" * 4097),
    "properties at the limit": send(properties="a\x01" + "v" * 32_700),
    "properties over the limit": send(properties="a\x01" + "v" * 32_767),
    "negative numbers": send(queueId="0", flag="-5", bornTimestamp="-1", reconsumeTimes="-2"),
    "large numbers": send(flag="2147483647", bornTimestamp="9223372036854775807", reconsumeTimes="2147483647"),
    "too large": send(flag="2147483648"),
    "far too large": send(bornTimestamp="9223372036854775808"),
    "a plus": send(flag="+1"),
    "zeros": send(flag="007", queueId="01"),
    "a blank": send(flag=" 1"),
    "a fraction": send(flag="1.0"),
    "an exponent": send(flag="1e1"),
    "underlined": send(flag="1_0"),
    "other digits": send(flag="\u0661"),
    "empty": send(flag=""),
    "a missing field": send(bornTimestamp=None),
    "no topic": send(topic=None),
    "booleans": send(unitMode="TRUE", batch="False"),
    "one and zero": send(unitMode="1", batch="0"),
    "maximum of retries": send(maxReconsumeTimes="3"),
    "unknown fields": framed(text(header(extFields=fields() | {"zz": "1", "traceId": "x"}))),
    "blanks": framed(json.dumps(header()).encode()),
    "lines": framed(json.dumps(header(), indent=1).encode() + b"\n"),
    "code is not first": framed(text(dict(reversed(header().items())))),
    "a remark": framed(text(header(remark="r"))),
    "nothing as remark": framed(text(header(remark=None))),
    "a language by number": framed(text(header(language=0))),
    "no language": framed(text(header(language=None))),
    "opaque as text": framed(text(header(opaque="5"))),
    "a negative opaque": framed(text(header(opaque=-1))),
    "a large opaque": framed(text(header(opaque=1 << 31))),
    "a version as a fraction": framed(text(header(version=1.0))),
    "binary in JSON": framed(text(header(serializeTypeCurrentRPC="ROCKETMQ"))),
    "numbers in fields": framed(text(header(extFields=fields() | {"e": 1, "k": False}))),
    "nothing in fields": framed(text(header(extFields=fields() | {"l": None}))),
    "no fields": framed(text(header(extFields=None))),
    "a list of fields": framed(text(header(extFields=[]))),
    "a field twice": framed(text(header()).replace(b'"e":"1"', b'"e":"1","e":"2"')),
    "opaque twice": framed(text(header()).replace(b'"opaque":5', b'"opaque":5,"opaque":6')),
    "fields twice": framed(text(header()).replace(b'"flag":0', b'"extFields":{},"flag":0')),
    "another code besides": framed(text(header()).replace(b'"flag":0', b'"code":10,"flag":0')),
    "escapes": framed(text(header(extFields=fields(properties='q\x01"\\/\n\t\r\x08\x0c\x7fé')))),
    "all as escapes": framed(text(header()).replace(b'"T"', b'"\\u0054"').replace(b'"opaque"', b'"\\u006fpaque"')),
    "a pair of surrogates": framed(text(header(extFields=fields(properties="a\x01😀")))),
    "half a pair": framed(text(header()).replace(b"TagA", b"\\ud83d")),
    "raw text of another script": framed(text(header(extFields=fields(properties="a\x01中文")), ensure_ascii=False)),
    "raw control": framed(text(header()).replace(b"\\u0001", b"\x01")),
    "not UTF-8": framed(text(header()).replace(b"TagA", b"\xff\xfe")),
    "a topic not in UTF-8": framed(text(header()).replace(b'"T"', b'"\xc3"')),
    "cut JSON": framed(text(header())[:-1]),
    "more behind": framed(text(header()) + b"}"),
    "a comma behind": framed(text(header()).replace(b'"version":399}', b'"version":399,}')),
    "no header": framed(b""),
    "an unknown form": framed(text(header()), serialize=2),
    "binary, cut": framed(send(serialize=ROCKETMQ)[8:40], serialize=ROCKETMQ),
    "binary, more behind": framed(send(serialize=ROCKETMQ, body=b"")[8:] + b"x", serialize=ROCKETMQ),
    "another request": RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO, 3).encode()[:8]
    + RemotingCommand(9_999, 3).encode()[8:],
    "no request": RemotingCommand(9_999, 77).encode(),
}
"""Frames by name. Some end their connection."""


def opened(opaque: int = 900) -> bytes:
    """Sends that make the topics and open their queues, so that the core knows them."""
    return b"".join(send(opaque + at, topic=topic, queueId=str(at % 4)) for at in range(4) for topic in ("T", "U"))


@pytest.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return await both_opened(str(tmp_path), monkeypatch)


async def test_every_form_of_a_send_is_stored_and_answered_alike(pair: SideBySide) -> None:
    for name, frame in CASES.items():
        first, second = pair.connect(), pair.connect()
        pair.receive(first, send(10) + frame + send(11))
        pair.receive(second, frame)
        pair.end_round(name)
        pair.receive(second, send(12))
        pair.end_round(name)
    await pair.stop()


@pytest.mark.parametrize("queue", range(4))
async def test_a_send_to_any_queue_follows_the_plain_ones_before_it(
    pair: SideBySide, monkeypatch: pytest.MonkeyPatch, queue: int
) -> None:
    """Python chooses a queue that the core has messages for; they keep their offsets and their places in it."""
    monkeypatch.setattr("random.randrange", lambda _: queue)
    found = pair.compiled.broker.store.queue("T", queue)
    before = found.max_offset()
    for number in range(3):
        pair.receive(0, send(10 + number, queueId=str(queue)))
        pair.receive(0, send(20 + number, queueId="-1"))
    pair.end_round()
    assert found.max_offset() == before + 6
    await pair.stop()


async def test_the_plain_case_is_the_cores(pair: SideBySide, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = ["plain", "V1", "binary", "oneway", "no properties", "many user fields", "a tag of another script"]
    put = pair.compiled.broker.turn.put

    def refuse(*_: Any) -> Any:
        raise AssertionError("Python puts what the core should take")

    monkeypatch.setattr(pair.compiled.broker.turn, "put", refuse)
    for name in taken:
        pair.receive(0, CASES.get(name, send()))
    pair.end_round()
    monkeypatch.setattr(pair.compiled.broker.turn, "put", put)
    await pair.stop()


FRAMES = st.one_of(
    st.sampled_from(sorted(CASES.values())),
    st.builds(
        send,
        opaque=st.integers(0, 2**31 - 1),
        body=st.binary(max_size=300),
        serialize=st.sampled_from((JSON, ROCKETMQ)),
        command_flag=st.sampled_from((0, 0, 2)),
        v2=st.booleans(),
        topic=st.sampled_from(("T", "U", "V")),
        queueId=st.integers(0, 3).map(str),
        properties=st.lists(
            st.tuples(
                st.sampled_from(("KEYS", "UNIQ_KEY", "TAGS", "WAIT", "user", "DELAY", "CLUSTER", "")),
                st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
            ),
            max_size=5,
        ).map(lambda pieces: "\x02".join(f"{name}\x01{value}" for name, value in pieces)),
    ),
)


async def both_opened(directory: str, patch: pytest.MonkeyPatch, **options: Any) -> SideBySide:
    both = SideBySide(Path(directory), max_message_size=4096, **options)
    await both.start(patch)
    both.receive(0, opened())
    both.end_round()
    return both


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    frames=st.lists(st.tuples(st.integers(0, 1), FRAMES), max_size=40),
    cuts=st.lists(st.integers(0, 6000), max_size=6),
    ends=st.sets(st.integers(0, 40), max_size=10),
    pulls=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(-1, 20),
            st.integers(-1, 33),
            st.none() | st.integers(0, 2000),
            st.sampled_from(("*", "TagA", "TagA || TagB", "TagC", "polygenelubricants", "")),
        ),
        max_size=12,
    ),
)
def test_any_stream_cut_anywhere_is_stored_and_answered_alike(
    frames: list[tuple[int, bytes]],
    cuts: list[int],
    ends: set[int],
    pulls: list[tuple[int, int, int, int | None, str]],
) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
            # Small files: turns roll into the next one.
            both = await both_opened(directory, patch, mapped_file_size_commit_log=64 * 1024)
            for at, (connection, frame) in enumerate(frames):
                begin = 0
                for cut in (*sorted(cut for cut in cuts if cut < len(frame)), len(frame)):
                    both.receive(connection, frame[begin:cut])
                    begin = cut
                if at in ends:
                    both.end_round()
            both.end_round()
            for number, (queue, offset, most, size, tags) in enumerate(pulls):
                wanted = pull(number, queue, offset, most, size, tags)
                both.receive(0, wanted)
                both.end_round(wanted)
            await both.stop()

    asyncio.run(run())


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_spoilt_bytes_are_answered_alike(seed: int) -> None:
    """Bytes are changed at random inside frames that are valid otherwise."""

    async def run() -> None:
        chance = random.Random(seed)
        with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
            both = await both_opened(directory, patch)
            for _ in range(250):
                frame = bytearray(CASES[chance.choice(("plain", "binary", "V1", "escapes", "a delay"))])
                for _ in range(chance.choice((1, 1, 2, 4))):
                    frame[chance.randrange(len(frame))] = chance.randrange(256)
                both.receive(both.connect(), bytes(frame))
                both.end_round(f"{seed}: {bytes(frame)!r}")
            await both.stop()

    asyncio.run(run())


@pytest.mark.parametrize("outcome", ["flushed", "late", "failed"])
async def test_sends_that_wait_for_their_flush_are_answered_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    both = SideBySide(tmp_path, flush_disk_type="SYNC_FLUSH")
    await both.start(monkeypatch)
    waiting: list[Callable[[StoreError | None], None]] = []
    for side in both.sides:
        monkeypatch.setattr(side.broker.store, "when_flushed", lambda _, callback: waiting.append(callback))
    both.receive(0, opened() + CASES["plain"] + CASES["binary"] + CASES["does not wait"] + CASES["oneway"])
    both.end_round()
    if outcome == "late":
        for side in both.sides:
            side.clock.advance(6)
        both.compare("late")
    for callback in waiting:
        callback(StoreError("the disk is gone") if outcome == "failed" else None)
    both.compare(outcome)
    monkeypatch.undo()
    await both.stop()


async def test_a_turn_that_cannot_be_written_is_refused_alike(
    pair: SideBySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> int:
        raise StoreError("the disk is full")

    for side in pair.sides:
        monkeypatch.setattr(side.broker.store.batch, "commit", fail)
    pair.receive(0, send(20) + send(21, serialize=ROCKETMQ) + CASES["a delay"] + send(22))
    pair.receive(1, send(23, command_flag=2))
    pair.end_round()
    for side in pair.sides:
        monkeypatch.delattr(side.broker.store.batch, "commit")
    pair.receive(0, send(24))
    pair.end_round()
    await pair.stop()


async def test_a_topic_that_changes_is_checked_again(pair: SideBySide) -> None:
    for side in pair.sides:
        topics = side.broker.topics
        table = topics.get("T")
        assert table is not None
        side.receive(0, send(30))
        topics.put(type(table)(topic_name="T", read_queue_nums=1, write_queue_nums=1, perm=2))
        side.receive(0, send(31, queueId="0") + send(32, queueId="3"))
        topics.delete("U")
        side.receive(0, send(33, topic="U", queueId="2"))
    pair.end_round()
    await pair.stop()


def test_topics_that_no_record_has_room_for_are_left_to_python() -> None:
    with pytest.raises(ValueError, match="255 bytes"):
        CORE.PlainSends(print, ([b""] * 5, [b""] * 5, b"", b"", b""), b"T", b"12345678", (1,) * 7, True, False).add(
            "x" * 256, None, 0, 0, None
        )


async def test_a_broker_that_has_stopped_is_collected_with_its_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = await both_opened(str(tmp_path), monkeypatch)
    gone = [weakref.ref(side.broker.store) for side in both.sides]
    await both.stop()
    del both
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
