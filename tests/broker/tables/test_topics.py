"""The table of topics and the table of groups: built-in entries, files, versions, damage."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.broker.conftest import small_config

from cometmq import fastjson
from cometmq.broker.config import LiveConfig
from cometmq.broker.tables.groups import SubscriptionGroupManager
from cometmq.broker.tables.topics import TopicConfigManager, describe_topic, perm_text
from cometmq.message.names import SYSTEM_GROUPS
from cometmq.remoting.bodies import SubscriptionGroupConfig, TopicConfig
from cometmq.testing import VirtualClock

Tables = tuple[TopicConfigManager, SubscriptionGroupManager]


def load(directory: Path, clock: VirtualClock, **options: object) -> Tables:
    live = LiveConfig(small_config(directory, **options))
    topics = TopicConfigManager(live, directory / "config" / "topics.json", clock=clock)
    groups = SubscriptionGroupManager(live, directory / "config" / "subscriptionGroup.json", clock=clock)
    topics.load()
    groups.load()
    return topics, groups


def test_built_in_topics_are_apaches(tmp_path: Path, clock: VirtualClock) -> None:
    topics, _ = load(tmp_path, clock)
    shape = {name: (topic.read_queue_nums, topic.write_queue_nums, topic.perm) for name, topic in topics.table.items()}
    assert shape == {
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
        "rmq_sys_wheel_timer": (1, 1, 6),  # of Apache it has none
        "SELF_TEST_TOPIC": (1, 1, 6),
        "DefaultCluster": (16, 16, 7),
        "DefaultCluster_REPLY_TOPIC": (1, 1, 6),
        "broker-a": (1, 1, 7),
        "TBW102": (8, 8, 7),
        "BenchmarkTest": (1024, 1024, 6),
        "OFFSET_MOVED_EVENT": (1, 1, 6),
    }


def test_built_in_topics_follow_the_configuration(tmp_path: Path, clock: VirtualClock) -> None:
    topics, _ = load(
        tmp_path, clock, auto_create_topic_enable=False, trace_topic_enable=True, cluster_topic_enable=False
    )
    assert topics.get("TBW102") is None
    assert topics.get("RMQ_SYS_TRACE_TOPIC") is not None
    cluster = topics.get("DefaultCluster")
    assert cluster is not None
    assert cluster.perm == 1


def test_built_in_groups_are_apaches(tmp_path: Path, clock: VirtualClock) -> None:
    _, groups = load(tmp_path, clock)
    assert set(groups.table) == set(SYSTEM_GROUPS)
    assert groups.table["TOOLS_CONSUMER"].retry_max_times == 16


def test_each_change_makes_a_version_and_a_file(tmp_path: Path, clock: VirtualClock) -> None:
    topics, groups = load(tmp_path, clock)
    heard: list[str] = []
    topics.on_change.append(heard.append)
    groups.on_change.append(heard.append)
    clock.advance(1)
    topics.put(TopicConfig(topic_name="T"))
    groups.put(SubscriptionGroupConfig(group_name="g"))
    assert topics.delete("T")
    assert not topics.delete("T")
    assert heard == ["T", "g", "T"]
    assert topics.version.counter == 2
    assert topics.version.timestamp == clock.now_ms()
    again, groups_again = load(tmp_path, clock)
    assert again.version == topics.version
    assert dict(again.table) == dict(topics.table)
    assert dict(groups_again.table) == dict(groups.table)


def test_file_is_apaches(tmp_path: Path, clock: VirtualClock) -> None:
    topics, _ = load(tmp_path, clock)
    topics.put(TopicConfig(topic_name="T", read_queue_nums=3, write_queue_nums=2))
    text = (tmp_path / "config" / "topics.json").read_text()
    assert text.startswith('{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"timestamp":')
    assert fastjson.loads(text)["topicConfigTable"]["T"] == {
        "order": False,
        "perm": 6,
        "readQueueNums": 3,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 2,
    }


def test_names_that_could_leave_the_store_are_left_out(tmp_path: Path, clock: VirtualClock) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text(
        '{"topicConfigTable":{"../x":{"topicName":"../x"},"A":{"topicName":"../x"},"B":{"topicName":"B"}}}'
    )
    (tmp_path / "config" / "subscriptionGroup.json").write_text(
        '{"subscriptionGroupTable":{"../g":{"groupName":"../g"},"h":{"groupName":"h"}}}'
    )
    live = LiveConfig(small_config(tmp_path))
    topics = TopicConfigManager(live, tmp_path / "config" / "topics.json", clock=clock)
    groups = SubscriptionGroupManager(live, tmp_path / "config" / "subscriptionGroup.json", clock=clock)
    assert [line.split("'")[1] for line in topics.load()] == ["../x", "A"]
    assert [line.split("'")[1] for line in groups.load()] == ["../g"]
    assert topics.get("B") is not None
    assert topics.get("../x") is None
    assert groups.get("h") is not None
    assert groups.get("../g") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "topics.json: cannot be used: .*; moved to"),
        ('{"topicConfigTable":[]}', "topicConfigTable is not a JSON object; moved to"),
        ('{"topicConfigTable":{"T":{"perm":"x"}}}', "ignored topic 'T'"),
        ('{"topicConfigTable":{"T":{"topicName":"T","readQueueNums":-1}}}', "readQueueNums=-1"),
        ('{"topicConfigTable":{"T":{"topicName":"T","perm":1e99}}}', "ignored topic 'T'"),
    ],
)
def test_file_that_cannot_be_read_is_told_and_not_whole(
    tmp_path: Path, clock: VirtualClock, text: str, why: str
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text(text)
    topics = TopicConfigManager(LiveConfig(small_config(tmp_path)), tmp_path / "config" / "topics.json", clock=clock)
    findings = topics.load()
    assert re.search(why, findings[0])
    assert topics.get("T") is None
    assert not topics.is_whole


def test_file_that_cannot_be_read_is_replaced_by_its_copy(tmp_path: Path, clock: VirtualClock) -> None:
    topics, _ = load(tmp_path, clock)
    for name in ("A", "B"):
        topics.put(TopicConfig(topic_name=name))
        topics.writer.save_last()
    (tmp_path / "config" / "topics.json").write_text("")
    again, _ = load(tmp_path, clock)
    assert again.get("A") is not None


def test_broker_whose_name_is_no_topic(tmp_path: Path, clock: VirtualClock) -> None:
    topics, _ = load(tmp_path, clock, broker_name="host.example", broker_cluster_name="a/b")
    assert not [name for name in topics.table if "." in name or "/" in name]


def test_disk_that_cannot_be_written_does_not_stop_the_broker(tmp_path: Path, clock: VirtualClock) -> None:
    topics, groups = load(tmp_path, clock)
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a directory should be")
    live = LiveConfig(small_config(tmp_path))
    topics = TopicConfigManager(live, blocked / "config" / "topics.json", clock=clock)
    groups = SubscriptionGroupManager(live, blocked / "config" / "groups.json", clock=clock)
    topics.put(TopicConfig(topic_name="T"))
    groups.put(SubscriptionGroupConfig(group_name="g"))
    assert topics.get("T") is not None
    blocked.unlink()
    topics.save()
    groups.save()
    assert (blocked / "config" / "topics.json").exists()
    assert (blocked / "config" / "groups.json").exists()


@pytest.mark.parametrize(("perm", "text"), [(6, "RW-"), (7, "RWX"), (4, "R--"), (2, "-W-"), (0, "---")])
def test_permissions_as_text(perm: int, text: str) -> None:
    assert perm_text(perm) == text


def test_topic_as_text() -> None:
    assert describe_topic(TopicConfig(topic_name="T", order=True)) == (
        "TopicConfig [topicName=T, readQueueNums=16, writeQueueNums=16, perm=RW-, topicFilterType=SINGLE_TAG, "
        "topicSysFlag=0, order=true]"
    )


def test_a_replicated_message_gives_a_retry_topic_the_queue_it_lacks(tmp_path: Path, clock: VirtualClock) -> None:
    topics, _ = load(tmp_path, clock)
    topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
    assert topics.note_queue("%RETRY%g_T", 2)
    assert topics.note_queue("%RETRY%g_T", 5)
    assert topics.is_unsaved("%RETRY%g_T")
    assert not topics.note_queue("%RETRY%g_T", 5)
    assert not topics.note_queue("T", 5)
    found = {name: topics.table[name] for name in ("T", "%RETRY%g_T")}
    assert {name: (row.read_queue_nums, row.write_queue_nums) for name, row in found.items()} == {
        "T": (1, 1),
        "%RETRY%g_T": (6, 6),
    }
