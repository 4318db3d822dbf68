"""The small files of a broker, damaged in every way: it starts, serves its messages, and says what it did."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo, small_config
from tests.broker.send.sequences import open_producer, send
from tests.broker.wire import records
from tests.helpers.contents import bodies
from tests.helpers.waiting import until

from cometmq import fastjson
from cometmq.broker.controller import Broker
from cometmq.remoting.bodies import MessageQueue, SubscriptionData, SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import QueryConsumerOffsetRequestHeader
from cometmq.testing import VirtualClock

FILES = (
    "config/topics.json",
    "config/subscriptionGroup.json",
    "config/consumerOffset.json",
    "config/consumerFilter.json",
    "config/delayOffset.json",
    "comet/deletedTopics.json",
    "comet/delayOffset.json",
    "comet/locks.json",
    "comet/position.json",
    "comet/producers.json",
    "comet/timer/position.json",
    "checkpoint",
)
SMALL = {"mapped_file_size_commit_log": 64 * 1024, "mapped_file_size_consume_queue": 20 * 100, "max_index_num": 100}


def with_numbers(value: Any, number: Any) -> Any:
    """JSON with every number replaced."""
    if isinstance(value, dict):
        return {key: with_numbers(each, number) for key, each in value.items()}
    if isinstance(value, list):
        return [with_numbers(each, number) for each in value]
    return number if isinstance(value, int) and not isinstance(value, bool) else value


def directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir(parents=True)
    (path / "inside").write_text("kept")


def numbers(number: Any) -> Callable[[Path], object]:
    def damage(path: Path) -> object:
        try:
            table = fastjson.loads(path.read_bytes())
        except (OSError, fastjson.FastjsonError):
            return path.write_text("{}")
        return path.write_bytes(fastjson.dumps(with_numbers(table, number)))

    return damage


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * 20),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if path.exists() else b"{"),
    "list": lambda path: path.write_text("[]"),
    "null": lambda path: path.write_text("null"),
    "no keys": lambda path: path.write_text("{}"),
    "texts": numbers("many"),
    "negative": numbers(-5),
    "huge": numbers(10**30),
    "deep": lambda path: path.write_text("[" * 100_000),
    "directory": directory,
}
BACKUPS: dict[str, Callable[[Path], object]] = {
    "no bak": lambda path: path.unlink(missing_ok=True),
    "bad bak": lambda path: path.write_bytes(b"{"),
    "directory as bak": directory,
    "good bak": lambda _: None,
}


async def started(root: Path, clock: VirtualClock) -> Broker:
    broker = Broker(small_config(root, **SMALL), clock=clock)
    await broker.start()
    return broker


@pytest.fixture
async def used(tmp_path: Path, clock: VirtualClock, connect_to: ConnectTo) -> Path:
    """A stopped store in which everything is in use; of its waiting messages some are delivered."""
    root = tmp_path / "used"
    broker = await started(root, clock)
    broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=6, write_queue_nums=6))
    broker.topics.put(TopicConfig(topic_name="Late"))
    broker.groups.put(SubscriptionGroupConfig(group_name="g", retry_max_times=3))
    wire = await connect_to(broker)
    for number in range(4):
        await wire.send("T", b"%d" % number, queue_id=number % 2 * 5)
    broker.offsets.commit("g", "T", 0, 1)
    broker.filters.register("g", [SubscriptionData(topic="T", sub_string="a = 1", expression_type="SQL92")])
    broker.locks.try_lock("g", "client", [MessageQueue("T", "broker-a", 0)])
    broker.topics.put(TopicConfig(topic_name="Gone"))
    await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "Gone"})
    run = await open_producer(wire)
    await send(wire, range(2), epoch=run.epoch)
    for body, waits in ((b"a", "DELAY\x011"), (b"b", "DELAY\x011"), (b"c", "TIMER_DELAY_MS\x011000")):
        await wire.send("Late", body, properties=f"{waits}\x02UNIQ_KEY\x01{body.decode()}")
    await clock.run_for(2)
    await until(lambda: len(bodies(broker, "Late")) == 3)
    for body, waits in ((b"d", "DELAY\x013"), (b"e", "TIMER_DELAY_MS\x0130000")):
        await wire.send("Late", body, properties=f"{waits}\x02UNIQ_KEY\x01{body.decode()}")
    await clock.run_for(2)
    await broker.schedule.save()
    await broker.producers.save()
    await broker.stop()
    return root


def cases() -> list[tuple[tuple[str, ...], str, str]]:
    """Files, their damage, and their .bak: every file alone in some ways, all of them at once in every way."""
    found: list[tuple[tuple[str, ...], str, str]] = [(FILES, damage, "bad bak") for damage in DAMAGES]
    damages = list(DAMAGES)
    for number, name in enumerate(FILES):
        found += [((name,), damage, "no bak") for damage in damages[number % 4 :: 4]]
        if name.startswith("config/"):
            backups = [backup for backup in BACKUPS if backup != "no bak"]
            found += [((name,), damages[number + at], backup) for at, backup in enumerate(backups)]
    return found


@pytest.mark.parametrize("part", range(6))
async def test_a_damaged_file_keeps_no_broker_from_starting_and_no_message_from_being_served(
    tmp_path: Path, used: Path, clock: VirtualClock, connect_to: ConnectTo, part: int
) -> None:
    for number, (names, damage, backup) in enumerate(cases()[part::6]):
        root = tmp_path / f"{number}"
        shutil.copytree(used, root)
        for name in names:
            assert (root / "store" / name).exists()
            BACKUPS[backup](root / "store" / f"{name}.bak")
            DAMAGES[damage](root / "store" / name)
        case = f"{damage} {', '.join(names)}, {backup}"
        await check(root, clock, connect_to, case, group_is_known=len(names) == 1)


async def check(root: Path, clock: VirtualClock, connect_to: ConnectTo, case: str, *, group_is_known: bool) -> None:
    broker = await started(root, clock)
    wire = await connect_to(broker)
    for queue_id in (0, 5):
        answer = await wire.pull("T", queue_id=queue_id)
        assert answer.code == ResponseCode.SUCCESS, case
        found = [record.body for record in records(answer)]
        assert found == ([b"1", b"3"] if queue_id else [b"0", b"2", b"0", b"1"]), case
    assert (await open_producer(wire)).lanes["T/0"].next == 2, case
    topic = broker.topics.get("T")
    assert topic is not None, case
    assert topic.read_queue_nums >= 6, case
    assert (broker.groups.get("g") is not None) >= group_is_known, case
    query = QueryConsumerOffsetRequestHeader(consumer_group="g", topic="T", queue_id=0)
    offset = await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, query)
    assert (offset.code, offset.ext_fields.get("offset") in ("0", "1")) == (ResponseCode.SUCCESS, True), case
    assert (await wire.send("New", b"new")).code == ResponseCode.SUCCESS, case
    await clock.run_for(31)
    await until(lambda: len(bodies(broker, "Late")) >= 5)
    assert sorted(bodies(broker, "Late")) == [b"a", b"b", b"c", b"d", b"e"], case
    await broker.stop()
    again = await started(root, clock)
    assert again.topics.get("T") is not None, case
    assert again.topics.get("New") is not None, case
    assert (again.groups.get("g") is not None) >= group_is_known, case
    assert again.topics.is_whole, case
    assert again.groups.is_whole, case
    assert sorted(bodies(again, "Late")) == [b"a", b"b", b"c", b"d", b"e"], case
    await again.stop()


async def test_a_damaged_table_of_topics_hides_nothing_when_queues_are_rebuilt(
    tmp_path: Path, used: Path, clock: VirtualClock, connect_to: ConnectTo
) -> None:
    """Its .bak is good, and older than the topic."""
    topics = used / "store" / "config" / "topics.json"
    topics.with_name("topics.json.bak").write_text('{"topicConfigTable":{"Old":{"topicName":"Old"}}}')
    topics.write_text(topics.read_text()[:-200])
    shutil.rmtree(used / "store" / "consumequeue")
    (used / "store" / "comet" / "position.json").unlink()
    (used / "store" / "abort").touch()
    await check(used, clock, connect_to, "rebuilt", group_is_known=True)


async def test_groups_and_offsets_that_a_damage_took_pass_over_no_message(
    tmp_path: Path, used: Path, clock: VirtualClock, connect_to: ConnectTo
) -> None:
    """A group that had an offset in a queue that is not young any more begins at its first message, not at the last."""
    (used / "store" / "config" / "consumerOffset.json").write_text("{")
    (used / "store" / "config" / "consumerOffset.json.bak").unlink(missing_ok=True)
    broker = await started(used, clock)
    wire = await connect_to(broker)
    for _ in range(40):
        await wire.send("T", bytes(4_000))
    await clock.run_for(40)
    for file in (used / "store" / "commitlog").iterdir():
        os.utime(file, (1, 1))
    broker.store.delete_expired_files()
    first = broker.store.queue("T", 0).min_offset()
    assert first > 0
    query = QueryConsumerOffsetRequestHeader(consumer_group="g", topic="T", queue_id=0)
    answer = await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, query)
    assert answer.ext_fields["offset"] == str(first)
    query = QueryConsumerOffsetRequestHeader(consumer_group="other", topic="T", queue_id=0)
    assert (await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, query)).code == ResponseCode.QUERY_NOT_FOUND
    await broker.stop()
