"""Pulls below a broker's first offset, answered from an archive that the job wrote from the same store."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.broker.archived.archiving import (
    MESSAGES,
    archive_store,
    delete_old_messages,
    header_of,
    is_readable,
    read_all,
    send_many,
)
from tests.broker.archived.conftest import Archived, MakeArchived
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.wire import pull_header, records
from tests.helpers.waiting import until

from cometmq.broker.limits import ARCHIVE_ANSWER_SECONDS, ARCHIVE_OPENING_SECONDS
from cometmq.message.record import decode_record, iter_records
from cometmq.remoting.admin_headers import CreateTopicRequestHeader, DeleteTopicRequestHeader
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.testing import VirtualClock, free_port


async def test_a_consumer_gets_every_record_once_and_byte_for_byte(archived: Archived) -> None:
    low, high = archived.broker.store.extent("T", 0)
    assert 0 < low < high == MESSAGES
    assert b"".join(await read_all(archived.wire, "T", 0, high)) == b"".join(archived.stored)


async def test_an_answer_has_the_offsets_of_archive_and_store(archived: Archived) -> None:
    for offset in (0, archived.low):
        answer = await archived.wire.pull("T", queue_offset=offset, max_msg_nums=5)
        assert (answer.code, header_of(answer)) == (
            ResponseCode.SUCCESS,
            {"suggestWhichBrokerId": 0, "nextBeginOffset": offset + 5, "minOffset": 0, "maxOffset": MESSAGES},
        )


async def test_a_pull_may_ask_for_fewer_bytes(archived: Archived) -> None:
    answer = await archived.wire.pull("T", queue_offset=3, max_msg_bytes=1)
    assert answer.body == archived.stored[3]


@pytest.mark.parametrize(
    ("expression", "kind"), [("tag-1", "TAG"), ("tag-1 || other", "TAG"), ("TAGS = 'tag-1'", "SQL92")]
)
async def test_filters_hold_for_archived_messages(make_archived: MakeArchived, expression: str, kind: str) -> None:
    archived = await make_archived(enable_property_filter=True)
    got: list[int] = []
    offset = 0
    while offset < archived.low:
        answer = await archived.wire.pull("T", queue_offset=offset, subscription=expression, expression_type=kind)
        got += [record.queue_offset for record in records(answer)] if answer.body else []
        offset = header_of(answer)["nextBeginOffset"]
    assert [number for number in got if number < archived.low] == list(range(1, archived.low, 3))


async def test_metrics_count_what_was_read(make_archived: MakeArchived) -> None:
    archived = await make_archived(metrics_exporter_type="PROM", metrics_prom_exporter_port=0)
    await archived.wire.pull("T", queue_offset=0, max_msg_nums=5)
    monitor = archived.broker.monitor
    assert monitor is not None
    lines = [
        line.split("{")[0] + line.split("}")[1]
        for line in b"".join(monitor.pieces()).decode().splitlines()
        if "}" in line
    ]
    assert {"cometmq_archive_readable 1", "cometmq_archive_messages_read_total 5"} <= set(lines)


async def test_a_lag_counts_archived_messages(make_archived: MakeArchived) -> None:
    archived = await make_archived(metrics_exporter_type="PROM", metrics_prom_exporter_port=0)
    archived.broker.offsets.set_offset("slow", "T", 0, 3)
    monitor = archived.broker.monitor
    assert monitor is not None
    (lag,) = [
        line.rpartition(" ")[2]
        for line in b"".join(monitor.pieces()).decode().splitlines()
        if line.startswith("rocketmq_consumer_lag_messages") and '"slow"' in line
    ]
    assert int(lag) == MESSAGES - 3


async def test_nothing_matches_and_the_next_pull_goes_on(archived: Archived) -> None:
    answer = await archived.wire.pull("T", queue_offset=0, subscription="other")
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert 0 < header_of(answer)["nextBeginOffset"] <= archived.low


async def test_the_reader_is_killed_and_consumers_go_on_without_an_error(archived: Archived) -> None:
    first = await archived.wire.pull("T", queue_offset=0)
    os.kill(archived.messages.process.pid or 0, signal.SIGKILL)
    await until(lambda: archived.messages.process.pid is None)
    waiting = asyncio.ensure_future(archived.wire.pull("T", queue_offset=1))
    await until(lambda: waiting.done(), clock=archived.clock)
    if waiting.result().code == ResponseCode.PULL_NOT_FOUND:  # again later
        assert header_of(waiting.result())["nextBeginOffset"] == 1
    assert archived.messages.process.restarts == 1
    await until(lambda: archived.messages.process.pid is not None, clock=archived.clock)
    rest = await read_all(archived.wire, "T", header_of(first)["nextBeginOffset"], archived.low)
    assert bytes(first.body) + b"".join(rest) == b"".join(archived.stored[: archived.low])


async def test_a_reader_that_does_not_answer_lets_clients_ask_again(archived: Archived) -> None:
    pid = archived.messages.process.pid or 0
    waiting = archived.wire.command(RequestCode.PULL_MESSAGE, pull_header("T", queue_offset=7))
    os.kill(pid, signal.SIGSTOP)
    archived.wire.post(waiting)
    assert (await archived.wire.pull("T", queue_offset=archived.low)).code == ResponseCode.SUCCESS
    assert waiting.opaque not in archived.wire.answers
    archived.clock.advance(ARCHIVE_ANSWER_SECONDS + 1)
    answer = await archived.wire.answer(waiting.opaque)
    os.kill(pid, signal.SIGCONT)
    assert (answer.code, header_of(answer)["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, 7)


def cut_first_file(lake: Path) -> None:
    """Cut off the end of the file with the first messages."""
    file = min(lake.glob("topic=*/*/*.parquet"), key=lambda path: path.name)
    os.truncate(file, file.stat().st_size // 2)


async def test_a_file_that_is_cut_off_stops_its_readers_only_and_is_named(
    make_archived: MakeArchived, caplog: pytest.LogCaptureFixture
) -> None:
    archived = await make_archived(change=cut_first_file)
    waiting = archived.wire.command(RequestCode.PULL_MESSAGE, pull_header("T", queue_offset=0))
    archived.wire.post(waiting)
    await until(lambda: "restore it from a backup" in caplog.text)
    archived.clock.advance(ARCHIVE_ANSWER_SECONDS + 1)
    answer = await archived.wire.answer(waiting.opaque)
    assert (answer.code, header_of(answer)["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, 0)
    assert (await archived.wire.pull("T", queue_offset=archived.low)).code == ResponseCode.SUCCESS


async def test_a_damaged_record_in_the_store_does_not_keep_consumers_from_the_archive(archived: Archived) -> None:
    """The last archived message, with which the archive is compared."""
    position = decode_record(archived.stored[-1]).physical_offset
    files = (archived.broker.store.config.root / "commitlog").iterdir()
    log_file = max((path for path in files if int(path.name) <= position), key=lambda path: int(path.name))
    with log_file.open("r+b") as file:
        file.seek(position - int(log_file.name) + 200)
        file.write(bytes(1_000))
    assert (await archived.wire.pull("T", queue_offset=0, max_msg_nums=1)).body == archived.stored[0]


async def test_without_an_archive_there_is_the_brokers_own_first_offset(
    make_archived: MakeArchived, start_broker: StartBroker, connect_to: ConnectTo, caplog: pytest.LogCaptureFixture
) -> None:
    archived = await make_archived()
    await archived.broker.stop()
    broker = await start_broker(archive_read=str(archived.lake.parent / "absent"))
    wire = await connect_to(broker)
    await until(lambda: "create one: cometmq pipeline archive" in caplog.text)
    answer = await wire.pull("T", queue_offset=0)
    assert (answer.code, header_of(answer)["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, archived.low)


async def test_an_attribute_excludes_a_topic(archived: Archived) -> None:
    header = CreateTopicRequestHeader("T", "TBW102", 4, 4, 6, "SINGLE_TAG", order=False, attributes="+archive.read=off")
    assert (await archived.wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == ResponseCode.SUCCESS
    answer = await archived.wire.pull("T", queue_offset=0)
    assert (answer.code, header_of(answer)["minOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, archived.low)


async def test_after_a_gap_consumers_continue_at_the_first_message_of_the_store(
    make_archived: MakeArchived, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def archive_half(lake: Path) -> None:
        """Archive the first log file only."""
        copy = tmp_path / "copy" / "commitlog"
        copy.mkdir(parents=True)
        first = min((tmp_path / "store" / "commitlog").iterdir())
        (copy / first.name).write_bytes(first.read_bytes())
        archive_store(tmp_path / "copy", lake)

    archived = await make_archived(archived=archive_half)
    got = b"".join(await read_all(archived.wire, "T", 0, MESSAGES))
    offsets = [record.queue_offset for record in iter_records(got)]
    end = offsets.index(archived.low)
    assert offsets == [*range(end), *range(archived.low, MESSAGES)]
    assert 0 < end < archived.low
    assert f"has offsets {end} to {archived.low - 1}" in caplog.text


async def test_a_topic_that_was_created_again_gets_nothing_of_the_earlier_one(
    start_broker: StartBroker,
    connect_to: ConnectTo,
    clock: VirtualClock,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also when the broker does not know of the deletion, since its store is a new one."""
    earlier = await start_broker()
    await send_many(await connect_to(earlier), "T", clock)
    archive_store(tmp_path / "store", tmp_path / "lake")
    await earlier.stop()
    (tmp_path / "store").rename(tmp_path / "earlier")
    clock.advance(60)
    broker = await start_broker()
    await send_many(await connect_to(broker), "T", clock, 900)
    low = await delete_old_messages(broker, clock)
    await broker.stop()
    broker = await start_broker(archive_read=str(tmp_path / "lake"))
    await until(lambda: is_readable(broker))
    answer = await (await connect_to(broker)).pull("T", queue_offset=0)
    assert (answer.code, header_of(answer)["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, low)
    assert "belong to another topic of this name" in caplog.text


async def test_a_topic_that_the_broker_deleted_gets_nothing_of_the_archive_when_it_is_created_again(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, tmp_path: Path
) -> None:
    """Not even its first offset: the broker knows when it deleted the topic."""
    broker = await start_broker()
    wire = await connect_to(broker)
    await send_many(wire, "T", clock)
    archive_store(tmp_path / "store", tmp_path / "lake")
    clock.advance(1)
    deletion = DeleteTopicRequestHeader(topic="T")
    assert (await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, deletion)).code == ResponseCode.SUCCESS
    await send_many(wire, "T", clock, 900)
    low = await delete_old_messages(broker, clock)
    await broker.stop()
    broker = await start_broker(archive_read=str(tmp_path / "lake"))
    await until(lambda: is_readable(broker))
    answer = await (await connect_to(broker)).pull("T", queue_offset=0)
    assert (answer.code, header_of(answer)["minOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, low)


async def test_a_storage_that_does_not_answer_lets_consumers_wait_some_minutes_and_then_go_on(
    make_archived: MakeArchived, start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    archived = await make_archived()
    await archived.broker.stop()
    broker = await start_broker(
        archive_read="s3://lake/orders",
        archive_read_storage=f"endpoint=http://127.0.0.1:{free_port()},accessKeyId=a,secretAccessKey=b,region=us-east-1",
    )
    wire = await connect_to(broker)
    waiting = wire.command(RequestCode.PULL_MESSAGE, pull_header("T", queue_offset=3))
    wire.post(waiting)
    assert (await wire.pull("T", queue_offset=archived.low)).code == ResponseCode.SUCCESS
    assert waiting.opaque not in wire.answers
    clock.advance(ARCHIVE_ANSWER_SECONDS + 1)
    answer = await wire.answer(waiting.opaque)
    assert (answer.code, header_of(answer)["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, 3)
    clock.advance(ARCHIVE_OPENING_SECONDS)  # the broker closes idle connections, too
    answer = await (await connect_to(broker)).pull("T", queue_offset=3)
    assert (answer.code, header_of(answer)["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, archived.low)


async def test_a_client_that_pulls_too_often_is_told_to_wait(
    archived: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.broker.archived.archived_messages.MAX_ARCHIVE_QUESTIONS", 0)
    answer = await archived.wire.pull("T", queue_offset=0)
    assert (answer.code, "[OVERLOAD]" in (answer.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
