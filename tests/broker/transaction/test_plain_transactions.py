"""The compiled core stores half messages, ends transactions and answers exactly as Python does."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.turn.side_by_side import SideBySide
from tests.broker.turn.test_plain_sends import CASES, both_opened, framed, header, send, text

from cometmq.core import CORE
from cometmq.message.names import TRANS_HALF_TOPIC
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand, decode_command
from cometmq.remoting.frame import JSON, ROCKETMQ, FrameDecoder
from cometmq.store.errors import StoreError

pytestmark = pytest.mark.skipif(CORE is None, reason="the compiled core is not installed (make test builds it)")

HALF = "KEYS\x01k1 k2\x02UNIQ_KEY\x017F0000010000\x02WAIT\x01true\x02TAGS\x01TagA\x02TRAN_MSG\x01true\x02PGROUP\x01g"
COMMIT, ROLLBACK = 8, 12


def half(opaque: int = 1, properties: str = HALF, **changed: Any) -> bytes:
    """The frame of a half message."""
    return send(opaque, properties=properties, **({"sysFlag": "4"} | changed))


def ending(offset: int, log_offset: int, verdict: int = COMMIT, **changed: str | None) -> dict[str, str]:
    """The fields of an END_TRANSACTION; ``None`` leaves one out."""
    fields: dict[str, str | None] = {"producerGroup": "g", "tranStateTableOffset": str(offset)}
    fields |= {"commitLogOffset": str(log_offset), "commitOrRollback": str(verdict)}
    fields |= {"fromTransactionCheck": "false", "msgId": "7F0000010000", "transactionId": "7F0000010000"}
    return {name: value for name, value in (fields | changed).items() if value is not None}


def end(fields: dict[str, str], opaque: int = 7, *, serialize: int = JSON, command_flag: int = 0) -> bytes:
    """The frame of an END_TRANSACTION."""
    return RemotingCommand(
        RequestCode.END_TRANSACTION, opaque, command_flag, "JAVA", ext_fields=fields, serialize_type=serialize
    ).encode()


def place(both: SideBySide, offset: int) -> tuple[int, int]:
    """The queue offset and the log offset of a half message."""
    unit = both.compiled.broker.store.queue(TRANS_HALF_TOPIC, 0).unit(offset)
    return offset, -1 if unit is None else unit[0]


def tables(both: SideBySide) -> list[Any]:
    """What the brokers say of their transactions; both the same."""
    found = []
    for side in both.sides:
        service = side.broker.transactions
        info = service.runtime_info()
        found.append((info, service.open.offsets(), service.open.progress(), service.open._changing))
    assert found[0] == found[1]
    return found


HALVES: dict[str, bytes] = {
    "plain": half(),
    "V1": half(v2=False),
    "binary": half(serialize=ROCKETMQ),
    "oneway": half(command_flag=2),
    "without the bit": half(sysFlag="0"),
    "with other bits": half(sysFlag="13"),
    "compressed": half(sysFlag="261"),
    "another case": half(properties="TRAN_MSG\x01TRUE\x02PGROUP\x01g"),
    "not true": half(properties="TRAN_MSG\x01false\x02PGROUP\x01g"),
    "no value": half(properties="TRAN_MSG\x01\x02PGROUP\x01g", sysFlag="0"),
    "twice": half(properties="TRAN_MSG\x01true\x02TRAN_MSG\x01false\x02PGROUP\x01g"),
    "no WAIT": half(properties="TRAN_MSG\x01true\x02PGROUP\x01g"),
    "WAIT is false": half(properties="WAIT\x01false\x02TRAN_MSG\x01true\x02PGROUP\x01g"),
    "WAIT is odd": half(properties="WAIT\x01x\0\x02TRAN_MSG\x01true\x02PGROUP\x01g"),
    "WAIT is empty": half(properties="WAIT\x01\x02TRAN_MSG\x01true\x02PGROUP\x01g"),
    "delayed": half(properties=HALF + "\x02DELAY\x013"),
    "an empty delay": half(properties=HALF + "\x02DELAY\x01"),
    "names a queue": half(properties=HALF + "\x02REAL_TOPIC\x01U\x02REAL_QID\x011"),
    "names a copy": half(properties=HALF + "\x02TRAN_PREPARED_QUEUE_OFFSET\x010"),
    "in a value": half(properties=HALF + "\x02a\x01TRAN_PREPARED_QUEUE_OFFSET"),
    "checked": half(properties=HALF + "\x02TRANSACTION_CHECK_TIMES\x013"),
    "empty pieces": half(properties="\x02\x02" + HALF + "\x02\x02"),
    "its own cluster": half(properties=HALF + "\x02CLUSTER\x01x"),
    "no group": half(properties="TRAN_MSG\x01true"),
    "groups": half(properties=HALF + "\x02PGROUP\x01g"),
    "another script": half(properties="TAGS\x01标签\x02KEYS\x01钥匙 😀\x02" + HALF[HALF.index("TRAN_MSG") :]),
    "keys twice": half(properties="KEYS\x01a\x02" + HALF),
    "no value of keys": half(properties="KEYS\x01\x02TAGS\x02TRAN_MSG\x01true\x02PGROUP\x01g"),
    "another topic": half(topic="U", queueId="0"),
    "no such queue": half(queueId="99"),
    "a retry topic": half(topic="%RETRY%g"),
    "no body": half(body=b""),
    "the largest body": half(body=b"x" * 4096),
    "the most properties": half(properties=HALF + "\x02a\x01" + "v" * 32_300),
    "too many properties": half(properties=HALF + "\x02a\x01" + "v" * 32_600),
    "more than any message": half(properties=HALF + "\x02a\x01" + "v" * 32_767),
}
"""Half messages by name."""


@pytest.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SideBySide:
    return await both_opened(str(tmp_path), monkeypatch)


@pytest.mark.parametrize("verdict", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("serialize", [JSON, ROCKETMQ])
async def test_every_form_of_a_half_message_is_stored_and_ended_alike(
    pair: SideBySide, verdict: int, serialize: int
) -> None:
    for name, frame in HALVES.items():
        pair.receive(0, send(10) + frame + send(11))
        pair.end_round(name)
    tables(pair)
    for offset in range(len(HALVES) + 1):
        pair.receive(1, send(12) + end(ending(*place(pair, offset), verdict), offset, serialize=serialize) + send(13))
        pair.end_round(offset)
        tables(pair)
    await pair.stop()


async def test_every_form_of_an_end_is_answered_alike(pair: SideBySide) -> None:
    def ends(at: tuple[int, int], wrong: int) -> dict[str, bytes]:
        fields = ending(*at)
        command = header(code=37, extFields=fields)
        return {
            "plain": end(fields),
            "twice": end(fields) + end(fields, 8),
            "both": end(fields) + end(ending(*at, ROLLBACK), 8),
            "rolled back, then committed": end(ending(*at, ROLLBACK)) + end(fields, 8),
            "oneway": end(fields, command_flag=2),
            "an answer": end(fields, command_flag=1),
            "unknown": end(ending(*at, 0)),
            "no verdict": end(ending(*at, 5)),
            "another group": end(ending(*at, producerGroup="h")),
            "no group": end(ending(*at, producerGroup=None)),
            "an empty group": end(ending(*at, producerGroup="")),
            "no id": end(ending(*at, msgId=None)),
            "few fields": end(ending(*at, transactionId=None, fromTransactionCheck=None)),
            "after a check": end(ending(*at, fromTransactionCheck="true")),
            "perhaps after one": end(ending(*at, fromTransactionCheck="perhaps")),
            "another offset": end(ending(at[0] + 1, at[1])),
            "another place": end(ending(at[0], wrong)),
            "inside a record": end(ending(at[0], at[1] + 4)),
            "far away": end(ending(at[0], 2**62)),
            "before all": end(ending(-1, -1)),
            "too large": end(ending(2**63, at[1])),
            "a plus": end(ending(at[0], at[1], tranStateTableOffset=f"+{at[0]}")),
            "numbers": framed(text(command | {"extFields": fields | {"commitOrRollback": 8}}), b""),
            "a body": framed(text(command), b"body"),
            "unknown fields": end(fields | {"zz": "1"}),
            "code is not first": framed(text(dict(reversed(command.items()))), b""),
            "binary, cut": framed(end(fields, serialize=ROCKETMQ)[8:60], b"", ROCKETMQ),
        }

    for offset, name in enumerate(ends((0, 0), 0)):
        pair.receive(0, half() + half())
        pair.end_round(name)
        at, other = place(pair, 2 * offset), place(pair, 2 * offset + 1)
        connection = pair.connect()
        pair.receive(connection, send(20) + ends(at, other[1])[name])
        pair.end_round(name)
        pair.receive(0, end(ending(*at), 8) + end(ending(*other, ROLLBACK), 9))
        pair.end_round(name)
        tables(pair)
    await pair.stop()


async def test_the_plain_case_is_the_cores(pair: SideBySide, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("Python puts what the core should take")

    broker = pair.compiled.broker
    with monkeypatch.context() as patched:
        patched.setattr(broker.turn, "put", refuse)
        for name in ("plain", "V1", "binary", "oneway", "no WAIT", "another topic"):
            pair.receive(0, HALVES[name])
        pair.end_round()
        pair.receive(0, end(ending(*place(pair, 0))) + end(ending(*place(pair, 1), ROLLBACK), serialize=ROCKETMQ))
        pair.end_round()
    assert broker.transactions.open.offsets() == [2, 3, 4, 5]
    assert (broker.transactions.ends.committed, broker.transactions.ends.rolled_back) == (1, 1)
    await pair.stop()


@pytest.mark.parametrize("others", [b"", send(20), half(21)])
async def test_the_ends_of_a_connection_are_answered_by_one_write(
    pair: SideBySide, monkeypatch: pytest.MonkeyPatch, others: bytes
) -> None:
    pair.receive(0, half(1) + half(2) + half(3))
    pair.end_round()
    writes: list[bytes] = []
    transport = pair.compiled.transports[0]
    monkeypatch.setattr(transport, "write", lambda data: writes.append(bytes(data)))
    ends = [end(ending(*place(pair, offset)), 7 + offset) for offset in range(3)]
    pair.compiled.receive(0, b"".join(ends) + others)
    pair.compiled.end_round()
    (written,) = writes
    answers = [decode_command(frame) for frame in FrameDecoder().feed(written)]
    assert {answer.opaque for answer in answers} >= {7, 8, 9}
    assert {answer.code for answer in answers} == {0}
    await pair.compiled.stop()
    await pair.python.stop()


@pytest.mark.parametrize("again", [0, 1], ids=["one connection", "two connections"])
@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("others", [b"", send(20)], ids=["alone", "with a send"])
async def test_ends_of_one_transaction_in_one_turn_are_answered_in_their_order(
    pair: SideBySide, again: int, first: int, others: bytes
) -> None:
    pair.receive(0, half(1) + half(2) + half(3))
    pair.end_round()
    for side in pair.sides:
        side.answers()
    one, two, three = (place(pair, offset) for offset in range(3))
    pair.receive(0, end(ending(*one, first), 7) + others)
    pair.receive(again, end(ending(*one), 8, serialize=ROCKETMQ) + end(ending(*one, ROLLBACK), 9, command_flag=2))
    pair.receive(0, end(ending(*two), 10) + end(ending(*two), 11) + end(ending(*three, ROLLBACK), 12))
    found = []
    for side in pair.sides:
        side.end_round()
        frames = [FrameDecoder().feed(written) for written in side.answers()]
        found.append([[decode_command(frame) for frame in of_one] for of_one in frames])
    assert found[0] == found[1]
    opaques = [[answer.opaque for answer in of_one if answer.opaque != 20] for of_one in found[0]]
    assert opaques == ([[7, 10, 11, 12], [8]] if again else [[7, 8, 10, 11, 12], []])
    assert {answer.code for of_one in found[0] for answer in of_one} == {0}
    tables(pair)
    await pair.stop()


async def test_an_end_in_the_turn_of_its_half_message_finds_none(pair: SideBySide) -> None:
    pair.receive(0, half())
    pair.end_round()
    size = place(pair, 0)
    following = pair.compiled.broker.store.max_physical_offset
    pair.receive(0, half(2) + end(ending(1, following)) + end(ending(*size)))
    pair.end_round()
    tables(pair)
    await pair.stop()


async def test_a_write_that_fails_leaves_transactions_open_alike(
    pair: SideBySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.receive(0, half(1) + half(2))
    pair.end_round()

    def fail() -> int:
        raise StoreError("the disk is full")

    ends = end(ending(*place(pair, 0))) + end(ending(*place(pair, 1), ROLLBACK), 8, serialize=ROCKETMQ)
    ends += end(ending(*place(pair, 0)), 10)
    for side in pair.sides:
        monkeypatch.setattr(side.broker.store.batch, "commit", fail)
    pair.receive(0, ends + half(3) + end(ending(*place(pair, 1)), 9, command_flag=2))
    pair.end_round()
    for side in pair.sides:
        monkeypatch.delattr(side.broker.store.batch, "commit")
    assert tables(pair)[0][1] == [0, 1]
    pair.receive(0, ends)
    pair.end_round()
    assert tables(pair)[0][1] == []
    await pair.stop()


async def test_brokers_that_take_no_more_transactions_refuse_them_alike(
    pair: SideBySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.broker.transaction.half_message.MAX_OPEN_TRANSACTIONS", 3)
    pair.receive(0, half(1) + half(2) + half(3) + half(4) + send(5))
    pair.end_round()
    assert tables(pair)[0][1] == [0, 1, 2]
    pair.receive(0, end(ending(*place(pair, 1))))
    pair.end_round()
    pair.receive(0, half(6) + half(7))
    pair.end_round()
    for side in pair.sides:
        side.broker.live.replace(dataclasses.replace(side.broker.config, reject_transaction_message=True))
    pair.receive(0, end(ending(*place(pair, 0))) + half(8) + send(9))
    pair.end_round()
    pair.receive(0, end(ending(*place(pair, 2))) + send(10))
    pair.end_round()
    tables(pair)
    await pair.stop()


@pytest.mark.parametrize("options", [{"flush_disk_type": "SYNC_FLUSH"}, {"message_index_enable": False}])
async def test_other_configurations_end_transactions_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    both = await both_opened(str(tmp_path), monkeypatch, **options)
    for side in both.sides:
        monkeypatch.setattr(side.broker.store, "when_flushed", lambda _, callback: callback(None))
    both.receive(0, half(1) + half(2) + HALVES["WAIT is false"])
    both.end_round()
    for offset in range(3):
        both.receive(0, end(ending(*place(both, offset)), offset))
        both.end_round()
    tables(both)
    await both.stop()


async def test_hosts_of_ipv6_are_stored_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = SideBySide(tmp_path, ip="2001:db8::1")
    await both.start(monkeypatch)
    both.receive(0, send(1) + half(2))
    both.end_round()
    both.receive(0, half(3))
    both.end_round()
    both.receive(0, end(ending(*place(both, 0))) + end(ending(*place(both, 1))))
    both.end_round()
    tables(both)
    await both.stop()


STEPS = st.one_of(
    st.sampled_from(sorted(HALVES)).map(HALVES.__getitem__),
    st.sampled_from(("plain", "binary", "a delay", "another topic", "no such topic")).map(CASES.__getitem__),
    st.tuples(st.integers(0, 12), st.sampled_from((COMMIT, COMMIT, ROLLBACK, 0)), st.sampled_from((JSON, ROCKETMQ))),
)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(st.tuples(STEPS, st.booleans()), max_size=40))
def test_any_mixture_is_stored_and_answered_alike(steps: list[tuple[Any, bool]]) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
            # Small files: turns roll into the next one.
            both = await both_opened(directory, patch, mapped_file_size_commit_log=64 * 1024)
            for step, ends_turn in steps:
                if isinstance(step, bytes):
                    both.receive(0, step)
                else:
                    offset, verdict, serialize = step
                    both.receive(1, end(ending(*place(both, offset), verdict), serialize=serialize))
                if ends_turn:
                    both.end_round(step)
            both.end_round()
            tables(both)
            await both.stop()

    asyncio.run(run())
