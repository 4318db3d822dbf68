"""Whatever fails while records are put or written: a request leaves all of its records, or none and a clear answer."""

from __future__ import annotations

import errno
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo, small_config
from tests.broker.send.retrying import hand_back, sent
from tests.broker.transacting import COMMIT, TOPIC, Half, end, end_header, half_properties
from tests.broker.wire import Wire, send_header
from tests.helpers.contents import bodies, stored

import cometmq.store.write_batch
from cometmq.broker.controller import Broker
from cometmq.broker.turn.inner_message import InnerMessage, Stored
from cometmq.broker.turn.targets import RefusedError
from cometmq.message.batch import BatchPiece, encode_batch
from cometmq.message.names import SCHEDULE_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import ConsumerSendMsgBackRequestHeader
from cometmq.store.disk import Disk
from cometmq.testing import VirtualClock

INT32 = (-(2**31), -1, 0, 2**31 - 1)
INT64 = (-(2**63), -1, 0, 2**63 - 1)
LOG_FILE_BYTES = 16 * 1024


class FailsOnce:
    """Calls a function; the call of a number, from 1 on, raises instead."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.at = 0
        self.calls = 0
        self.failures = 0
        self.error: BaseException = RuntimeError("on purpose")

    def fail(self, at: int, error: BaseException) -> None:
        self.at, self.calls, self.error = at, 0, error

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            self.failures += 1
            raise self.error
        return self._function(*args, **named)


class WeakDisk(Disk):
    """Writes half of what it is given and fails, at the call that ``writes`` is told."""

    def __init__(self) -> None:
        self.writes = FailsOnce(super().write)

    def write(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
        try:
            self.writes(fd, data, at)
        except BaseException:
            super().write(fd, memoryview(data)[: len(data) // 2], at)
            raise


def check_contiguous(broker: Broker) -> None:
    """Every unit of every queue names a record that says itself that it stands there."""
    for topic, queues in broker.store.queues().items():
        for queue_id, queue in queues.items():
            assert queue.next_offset == queue.committed, (topic, queue_id)
            offsets = [record.queue_offset for record in stored(broker, topic, queue_id)]
            assert offsets == list(range(queue.max_offset())), (topic, queue_id)
            assert all(record.topic == topic for record in stored(broker, topic, queue_id))


async def restarted(broker: Broker, tmp_path: Path, clock: VirtualClock, **options: Any) -> Broker:
    await broker.stop()
    again = Broker(small_config(tmp_path, **options), clock=clock)
    await again.start()
    return again


# --- fields at their extremes ------------------------------------------------------------------------------------


async def test_a_message_that_failed_as_often_as_the_field_holds_is_a_dead_letter_like_others(
    broker: Broker, wire: Wire, tmp_path: Path, clock: VirtualClock
) -> None:
    record = await sent(broker, wire, reconsume_times=2**31 - 1)
    assert (await hand_back(wire, record.physical_offset)).code == ResponseCode.SUCCESS
    await wire.send("Other", b"of another topic")
    assert (await hand_back(wire, (await sent(broker, wire)).physical_offset, delay_level=-1)).code == 0
    running = broker
    for _ in range(2):
        dead = stored(running, "%DLQ%workers")
        assert [(letter.reconsume_times, letter.body) for letter in dead] == [(2**31 - 1, b"body"), (1, b"body")]
        check_contiguous(running)
        running = await restarted(running, tmp_path, clock)
    await running.stop()


@pytest.mark.parametrize("times", INT32)
@pytest.mark.parametrize("most", [None, *INT32])
async def test_hand_backs_of_any_count_are_stored_once(
    broker: Broker, wire: Wire, times: int, most: int | None
) -> None:
    record = await sent(broker, wire, reconsume_times=times)
    answer = await hand_back(wire, record.physical_offset, max_reconsume_times=most)
    assert answer.code == ResponseCode.SUCCESS
    places = [(SCHEDULE_TOPIC, level) for level in range(18)] + [("%RETRY%workers", 0), ("%DLQ%workers", 0)]
    assert sum(len(bodies(broker, topic, queue_id)) for topic, queue_id in places) == 1
    check_contiguous(broker)


EXTREMES: list[dict[str, Any]] = [
    *({"flag": value} for value in INT32),
    *({"sys_flag": value} for value in INT32),
    *({"queue_id": value} for value in INT32),
    *({"reconsume_times": value} for value in INT32),
    *({"max_reconsume_times": value} for value in INT32),
    *({"default_topic_queue_nums": value} for value in INT32),
    *({"born_timestamp": value} for value in INT64),
    *(
        {"properties": properties}
        for properties in ("a\x01" + "b" * 32_700, "a\x01" + "b" * 40_000, "\x00", "a\x01\x00")
    ),
    *({"topic": "t" * length} for length in (127, 128, 255, 256)),
    {"topic": "%RETRY%" + "g" * 120, "reconsume_times": 2**31 - 1, "max_reconsume_times": 0},
]
WAITING = ["", "DELAY\x0118\x02", "DELAY\x01-2147483648\x02", "TIMER_DELAY_MS\x011\x02", half_properties("k")]


@pytest.mark.parametrize("waiting", WAITING, ids=["plain", "level", "level below", "timer", "half"])
async def test_sends_with_any_value_are_stored_whole_or_refused_with_a_code(
    broker: Broker, wire: Wire, connect_to: ConnectTo, tmp_path: Path, clock: VirtualClock, waiting: str
) -> None:
    for fields in EXTREMES:
        fields = {"topic": "T", "properties": "", **fields}
        fields["properties"] = waiting + fields["properties"]
        before = broker.store.max_physical_offset
        for batch in (False, True):
            body = b"one" if not batch else encode_batch([BatchPiece(-(2**31), b"b", ""), BatchPiece(7, b"c", "")])
            answer = await wire.send(body=body, batch=batch or None, **fields)
            assert "Error:" not in (answer.remark or ""), fields
            if answer.code != ResponseCode.SUCCESS:
                assert broker.store.max_physical_offset == before, fields
            before = broker.store.max_physical_offset
    check_contiguous(broker)
    await clock.run_for(5)
    again = await restarted(broker, tmp_path, clock)
    check_contiguous(again)
    other = await connect_to(again)
    assert (await other.send("T", b"last")).code == ResponseCode.SUCCESS
    assert bodies(again, "T")[-1] == b"last"
    await again.stop()


@pytest.mark.parametrize(
    "wrong",
    [
        {"reconsume_times": 2**31},
        {"flag": 2**31},
        {"born_timestamp": 2**63},
        {"prepared_transaction_offset": -(2**63) - 1},
        {"topic": "a/b"},
        {"topic": "t" * 128},
        {"queue_id": -1},
        {"queue_id": 2**31},
        {"properties": "\ud800"},
        {"properties": "a\x01" + "b" * 32_764 + "\x00"},
    ],
    ids=str,
)
async def test_what_a_service_cannot_store_leaves_the_turn_as_it_was(broker: Broker, wrong: dict[str, Any]) -> None:
    good: dict[str, Any] = {
        "topic": "Inner",
        "queue_id": 0,
        "body": b"body",
        "properties": "KEYS\x01k",
        "flag": 0,
        "sys_flag": 0,
        "born_timestamp": 1,
        "born_host": bytes(20),
    }
    outcomes: list[Stored | RefusedError] = []
    bad = InnerMessage(**(good | wrong))
    for times in range(2):
        with pytest.raises(RefusedError, match="message is illegal"):
            broker.turn.put_inner(bad, outcomes.append)
        broker.turn.put_inner(InnerMessage(**(good | {"body": b"%d" % times})), outcomes.append)
        with pytest.raises(RefusedError):
            broker.turn.put_together([InnerMessage(**good), bad], outcomes.append)
        assert broker.turn.put_due([bad, InnerMessage(**good), bad], outcomes.append) == 1
    broker.turn.end()
    assert all(isinstance(outcome, Stored) for outcome in outcomes)
    assert len(outcomes) == 4
    assert bodies(broker, "Inner") == [b"0", b"body", b"1", b"body"]
    check_contiguous(broker)


async def test_a_turn_that_refused_its_only_message_does_not_date_the_next_one(
    broker: Broker, clock: VirtualClock
) -> None:
    with pytest.raises(RefusedError):
        broker.turn.put_inner(InnerMessage("Inner", 0, b"", "", 2**31, 0, 0, bytes(8)), lambda _: None)
    broker.turn.end()
    clock.advance(3600)
    broker.turn.put_inner(InnerMessage("Inner", 0, b"", "", 0, 0, 0, bytes(8)), lambda _: None)
    broker.turn.end()
    assert stored(broker, "Inner")[0].store_timestamp == clock.now_ms()


async def test_a_topic_of_rocketmq_5_that_is_too_long_for_our_records_takes_no_messages(
    start_broker: Callable[..., Any], connect_to: ConnectTo, tmp_path: Path
) -> None:
    """Its queue is known, from a store of RocketMQ 5; a half message may name it."""
    long = "t" * 200
    directory = tmp_path / "store" / "consumequeue" / long / "0"
    directory.mkdir(parents=True)
    (directory / f"{0:020}").write_bytes(bytes(20 * 10_000))
    broker = await start_broker()
    with pytest.raises(RefusedError, match="too long"):
        broker.turn.put_inner(InnerMessage(long, 0, b"", "", 0, 0, 0, bytes(8)), lambda _: None)
    assert (await (await connect_to(broker)).send("T")).code == ResponseCode.SUCCESS


# --- faults inside -----------------------------------------------------------------------------------------------


@pytest.fixture
async def on_weak_disk(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[tuple[Broker, WeakDisk]]:
    disk = WeakDisk()
    broker = Broker(small_config(tmp_path, mapped_file_size_commit_log=LOG_FILE_BYTES), clock=clock, disk=disk)
    await broker.start()
    yield broker, disk
    await broker.stop()


class Traffic:
    """Requests of all kinds in one turn, and what their answers promise."""

    def __init__(self, wire: Wire, failed_at: int) -> None:
        self.wire = wire
        self.failed_at = failed_at
        self.served: list[bytes] = []
        """In topic T."""
        self.handed_back = 0
        self.committed: list[bytes] = []
        self.halves: list[bytes] = []
        self.open: list[tuple[bytes, Half]] = []
        self.round = 0

    async def turn(self) -> None:
        """Post requests by one write; note what is answered."""
        self.round += 1
        name = b"%d " % self.round
        wire = self.wire
        batch = [name + b"b%d" % piece for piece in range(3)]
        half_body, half = self.open.pop(0) if self.open else (b"", None)
        new_half = name + b"half"
        commands = {
            "first": wire.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), name + b"first"),
            "batch": wire.command(
                RequestCode.SEND_BATCH_MESSAGE,
                send_header("T", batch=True),
                encode_batch(BatchPiece(0, body, f"KEYS\x01{number}") for number, body in enumerate(batch)),
            ),
            "back": wire.command(
                RequestCode.CONSUMER_SEND_MSG_BACK,
                ConsumerSendMsgBackRequestHeader(
                    offset=self.failed_at, group="workers", delay_level=-1, origin_msg_id="x", origin_topic="F"
                ),
            ),
            "half": wire.command(
                RequestCode.SEND_MESSAGE_V2, send_header(TOPIC, properties=half_properties(f"h{self.round}")), new_half
            ),
            "last": wire.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), name + b"last" + bytes(3000)),
        }
        if half is not None:
            commands["end"] = wire.command(RequestCode.END_TRANSACTION, end_header(half, COMMIT))
        wire.writer.write(b"".join(command.encode() for command in commands.values()))
        for kind, command in commands.items():
            answer = await wire.answer(command.opaque, 5)
            good = answer.code == ResponseCode.SUCCESS
            assert good or answer.code in (
                ResponseCode.SYSTEM_ERROR,
                ResponseCode.SERVICE_NOT_AVAILABLE,
                ResponseCode.MESSAGE_ILLEGAL,
            )
            if kind == "end":
                assert half is not None
                if good:
                    self.committed.append(half_body)
                else:
                    self.open.append((half_body, half))
            elif kind == "half" and good:
                place = int(answer.ext_fields["queueOffset"]), int(answer.ext_fields["msgId"][16:], 16)
                self.halves.append(new_half)
                self.open.append((new_half, Half(f"h{self.round}", *place)))
            elif kind == "back":
                self.handed_back += good
            elif good:
                self.served += {"batch": batch, "first": [command.body], "last": [command.body]}[kind]

    def check(self, broker: Broker) -> None:
        """Answered messages are served, refused ones are not."""
        check_contiguous(broker)
        assert bodies(broker, "T") == self.served
        assert len(bodies(broker, "%DLQ%workers")) == self.handed_back
        assert bodies(broker, TOPIC) == self.committed
        assert bodies(broker, TRANS_HALF_TOPIC) == self.halves
        assert len(bodies(broker, TRANS_OP_HALF_TOPIC)) == len(self.committed)


FAULTS: dict[str, tuple[str, BaseException]] = {
    "crc": ("cometmq.store.write_batch.crc32", MemoryError("on purpose")),
    "head": ("cometmq.store.write_batch._HEAD_V4", struct.error("on purpose")),
    "unit": ("cometmq.store.write_batch._UNIT", struct.error("on purpose")),
    "length": ("cometmq.store.write_batch._SHORT", TypeError("on purpose")),
    "next file": ("cometmq.store.log.commit_log.CommitLog.next_segment", RuntimeError("on purpose")),
    "disk is full": ("disk", OSError(errno.ENOSPC, "on purpose")),
    "disk is broken": ("disk", OSError(errno.EIO, "on purpose")),
    "write raises": ("disk", RuntimeError("on purpose")),
    "topics": ("cometmq.broker.turn.targets.SendTargets.save_topics", TypeError("on purpose")),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_is_answered_is_served_and_what_is_refused_is_not_whichever_step_fails(
    on_weak_disk: tuple[Broker, WeakDisk],
    connect_to: ConnectTo,
    tmp_path: Path,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    broker, disk = on_weak_disk
    wire = await connect_to(broker)
    failed = await wire.send("F", b"failed")
    traffic = Traffic(wire, int(failed.ext_fields["msgId"][16:], 16))
    await traffic.turn()
    where, error = FAULTS[fault]
    if where == "disk":
        fails = disk.writes
    elif where.rpartition(".")[0] == "cometmq.store.write_batch":
        name = where.rpartition(".")[2]
        fails = FailsOnce(getattr(cometmq.store.write_batch, name))
        monkeypatch.setattr(cometmq.store.write_batch, name, fails)
    else:
        owner, _, name = where.rpartition(".")
        module, _, cls = owner.rpartition(".")
        kind = getattr(__import__(module, fromlist=[cls]), cls)
        fails = FailsOnce(getattr(kind, name))
        monkeypatch.setattr(kind, name, lambda self: fails(self))
    for step in range(1, 13):
        fails.fail(1 if fault == "next file" else step, error)
        await traffic.turn()
        fails.at = 0
        traffic.check(broker)
    assert fails.failures
    await traffic.turn()
    traffic.check(broker)
    for body, half in traffic.open:
        assert (await end(wire, half, COMMIT)).code == ResponseCode.SUCCESS
        traffic.committed.append(body)
    traffic.open.clear()
    monkeypatch.undo()
    again = await restarted(broker, tmp_path, clock, mapped_file_size_commit_log=LOG_FILE_BYTES)
    traffic.check(again)
    await again.stop()
