"""A change of a large table costs its own row, in the file and in what nameservers and slaves get."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from tests.broker.conftest import small_config
from tests.broker.wire import Connect

from cometmq import fastjson
from cometmq.broker.config import LiveConfig
from cometmq.broker.controller import Broker
from cometmq.broker.limits import TABLE_ROWS_PER_SLICE
from cometmq.broker.tables.groups import SubscriptionGroupManager
from cometmq.broker.tables.journaled_file import JournaledFile
from cometmq.broker.tables.topics import TopicConfigManager
from cometmq.broker.tables.versioned_table import RowTexts
from cometmq.remoting.bodies import (
    DataVersion,
    RegisterBrokerBody,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigSerializeWrapper,
    encode_body,
    encode_table,
    to_builtins,
)
from cometmq.testing import VirtualClock

TOPICS = 10_000
HOLD_MS = 50.0


def cpu_ms(work: Callable[[], object]) -> float:
    """Processor time of this thread for one call, the best of three."""
    took = []
    for _ in range(3):
        before = time.thread_time()
        work()
        took.append((time.thread_time() - before) * 1000)
    return min(took)


@pytest.fixture
def topics(tmp_path: Path, clock: VirtualClock) -> TopicConfigManager:
    """A table of 10,000 topics, in its file."""
    topics = TopicConfigManager(LiveConfig(small_config(tmp_path)), tmp_path / "config" / "topics.json", clock=clock)
    topics.load()
    save, topics.on_due = topics.on_due, lambda: None
    for number in range(TOPICS):
        topics.put(TopicConfig(topic_name=f"a-topic-of-some-length-{number}"))
    topics.on_due = save
    topics.save()
    return topics


def test_one_more_of_ten_thousand_topics_writes_and_formats_one_row(
    topics: TopicConfigManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes as the first, and no text of a row but its own when the file is written whole."""
    formatted: list[object] = []
    plain = fastjson.dumps_pretty

    def dumps_pretty(value: object, depth: int = 0) -> bytes:
        formatted.append(value)
        return plain(value, depth)

    monkeypatch.setattr(fastjson, "dumps_pretty", dumps_pretty)
    topics.put(TopicConfig(topic_name="one-more"))
    topics.put(TopicConfig(topic_name="one-more", perm=4))
    topics.delete("a-topic-of-some-length-5")
    journal = tmp_path / "comet" / "tables" / "topics.1.journal"
    assert len(journal.read_bytes()) < 3 * 300
    assert cpu_ms(lambda: topics.put(TopicConfig(topic_name="one-more"))) < HOLD_MS
    assert formatted == []
    topics.writer.save_last()
    assert len(formatted) == 2, "the row, and the version"
    assert (tmp_path / "config" / "topics.json").read_bytes() == plain(to_builtins(topics.wrapper()))
    assert not journal.exists()


def test_the_whole_table_for_nameservers_and_slaves_holds_nobody_up(topics: TopicConfigManager) -> None:
    assert encode_table(topics.wrapper()) == encode_body(topics.wrapper())
    assert cpu_ms(lambda: encode_table(topics.wrapper())) < HOLD_MS
    assert (
        cpu_ms(
            lambda: encode_table(
                RegisterBrokerBody(topic_config_serialize_wrapper=topics.wrapper(), filter_server_list=[])
            )
        )
        < HOLD_MS
    )


def test_no_text_of_a_topic_is_mistaken_for_a_missing_value() -> None:
    hostile = {'"attributes":null,': 'x","attributes":null,"y', "stateVersion": '"stateVersion":null,'}
    table = {
        "T": TopicConfig(topic_name='"attributes":null,', attributes=hostile, topic_filter_type='"attributes":null,'),
        "U": TopicConfig(topic_name="U", attributes={}),
        "V": TopicConfig(topic_name="V"),
    }
    for version in (DataVersion(counter=1, timestamp=2), DataVersion(counter=1, timestamp=2, state_version=3)):
        wrapper = TopicConfigSerializeWrapper(data_version=version, topic_config_table=table)
        assert encode_table(wrapper) == encode_body(wrapper)


def test_a_slave_takes_a_large_table_in_slices_and_again_only_what_differs(
    topics: TopicConfigManager, tmp_path: Path, clock: VirtualClock
) -> None:
    path = tmp_path / "slave" / "config" / "topics.json"
    slave = TopicConfigManager(LiveConfig(small_config(tmp_path)), path, clock=clock)
    slave.load()
    whole = topics.table.items()
    assert sum(1 for _ in slave.take_over(whole, topics.version)) == len(topics.table) // TABLE_ROWS_PER_SLICE + 1
    assert (slave.version, slave.table) == (topics.version, topics.table)
    topics.put(TopicConfig(topic_name="one-more"))
    topics.delete("a-topic-of-some-length-5")
    changed = [("one-more", topics.table["one-more"])]
    assert sum(1 for _ in slave.take_over(changed, topics.version, ["a-topic-of-some-length-5"])) == 2
    assert slave.table == topics.table
    again = TopicConfigManager(LiveConfig(small_config(tmp_path)), path, clock=clock)
    assert again.load() == []
    assert (again.version, again.table) == (topics.version, topics.table)
    slave.writer.save_last()
    assert fastjson.loads(path.read_bytes()) == to_builtins(topics.wrapper())
    path.unlink()
    list(slave.take_over(topics.table.items(), topics.version))
    slave.save()
    assert not path.exists(), "nothing differs"
    assert not list((tmp_path / "slave" / "comet" / "tables").iterdir())


def test_groups_are_written_as_in_one_piece(tmp_path: Path, clock: VirtualClock) -> None:
    path = tmp_path / "config" / "subscriptionGroup.json"
    groups = SubscriptionGroupManager(LiveConfig(small_config(tmp_path)), path, clock=clock)
    groups.load()
    groups.put(SubscriptionGroupConfig(group_name="g"))
    groups.put(SubscriptionGroupConfig(group_name="h", retry_max_times=3))
    groups.delete("g")
    groups.writer.save_last()
    assert path.read_bytes() == fastjson.dumps_pretty(to_builtins(groups.wrapper()))
    assert encode_table(groups.wrapper()) == encode_body(groups.wrapper())


def test_a_start_formats_no_row_and_parses_each_once(
    topics: TopicConfigManager, tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row was written as JSON, parsed again and formatted: 2 s for 100,000 topics."""
    topics.writer.save_last()
    path = tmp_path / "config" / "topics.json"
    before = path.read_bytes()
    again = TopicConfigManager(LiveConfig(small_config(tmp_path)), path, clock=clock)
    with monkeypatch.context() as patched:
        patched.setattr(fastjson, "dumps_pretty", lambda *_: pytest.fail("formatted"))
        patched.setattr(fastjson, "dumps", lambda value: b"{}" if "counter" in value else pytest.fail("written"))
        assert again.load() == []
    assert len(again.table) == len(topics.table)
    again.version = topics.version
    assert b"".join(again._pieces()) == before


def test_a_table_without_rows_is_an_empty_map() -> None:
    text = b"".join(RowTexts("topicConfigTable").pieces(DataVersion(), {}))
    assert text == fastjson.dumps_pretty(to_builtins(TopicConfigSerializeWrapper()))


async def test_topics_of_many_sends_of_a_turn_share_one_write(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each is in the file before its message is answered."""
    writes: list[int] = []
    plain = JournaledFile.append

    def append(self: JournaledFile, changes: Iterable[bytes]) -> bool:
        changes = list(changes)
        if self.path.name == "topics.json":
            writes.append(len(fastjson.loads(changes[0])["topicConfigTable"]))
        return plain(self, changes)

    monkeypatch.setattr(JournaledFile, "append", append)
    assert (await (await connect()).send("First")).code == 0
    writes.clear()
    before = len(broker.topics.table)
    others = broker.server.end_of_round
    monkeypatch.setattr(broker.server, "end_of_round", [])  # a turn that does not end until all have sent
    sends = [asyncio.ensure_future((await connect()).send(f"New{number}")) for number in range(20)]
    while len(broker.topics.table) < before + 20:
        await asyncio.sleep(0)
    assert writes == []
    broker.server.end_of_round = others
    broker.server.schedule_round()
    answers = await asyncio.gather(*sends)
    assert {answer.code for answer in answers} == {0}
    assert writes == [20]
