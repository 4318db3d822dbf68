"""Offsets of topics that do not exist: they go after a day, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.conftest import small_config
from tests.broker.wire import Wire

import cometmq.broker.tables.offset_expiry
import cometmq.broker.tables.offset_table
from cometmq.broker.controller import Broker
from cometmq.broker.limits import OFFSET_EXPIRY_SECONDS
from cometmq.broker.tables.consumer_offsets import ConsumerOffsetManager
from cometmq.broker.tables.offset_expiry import OffsetExpiry
from cometmq.message.names import TRANSACTION_GROUP
from cometmq.remoting.bodies import ConsumerData, HeartbeatData, TopicConfig, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import UpdateConsumerOffsetRequestHeader
from cometmq.testing import VirtualClock


async def test_offsets_of_no_topic_go_in_time_and_stay_gone(
    broker: Broker, wire: Wire, clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day_s = 1_200
    monkeypatch.setattr(cometmq.broker.tables.offset_expiry, "OFFSET_EXPIRY_SECONDS", day_s)
    broker.topics.put(TopicConfig(topic_name="There"))
    body = encode_body(HeartbeatData(client_id="c", consumer_data_set=[ConsumerData(group_name="live")]))
    for topic, group in (("There", "g"), ("Gone", "g"), ("Gone", "live"), ("%RETRY%g", "g")):
        header = UpdateConsumerOffsetRequestHeader(consumer_group=group, topic=topic, queue_id=0, commit_offset=5)
        assert (await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == ResponseCode.SUCCESS
    broker.offsets.set_offset(TRANSACTION_GROUP, "Gone", 0, 5)
    before = set(broker.offsets.table)
    for seconds in range(0, day_s + 300, 100):
        assert before <= set(broker.offsets.table) or seconds >= day_s
        assert (await wire.call(RequestCode.HEART_BEAT, body=body)).code == ResponseCode.SUCCESS
        clock.advance(100)
    kept = {"There@g", "Gone@live", f"Gone@{TRANSACTION_GROUP}"}
    assert set(broker.offsets.table) & before == kept
    await broker.stop()
    again = Broker(small_config(tmp_path), clock=clock)
    await again.start()
    assert set(again.offsets.table) & before == kept
    await again.stop()


def test_time_counts_anew_when_the_topic_or_a_member_was_there_and_slices_reach_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.tables.offset_table, "TABLE_ROWS_PER_SLICE", 3)
    clock = VirtualClock()
    offsets = ConsumerOffsetManager(tmp_path / "config" / "consumerOffset.json", clock=clock)
    topics: set[str] = set()
    expiry = OffsetExpiry(offsets, topics.__contains__, lambda _group: False, clock=clock)
    for number in range(10):
        offsets.commit("g", f"T{number}", 0, 1)

    def look_at_all() -> None:
        for _ in range(4):
            expiry.expire_next()

    look_at_all()
    clock.advance(OFFSET_EXPIRY_SECONDS - 1)
    topics.add("T3")
    look_at_all()
    topics.clear()
    assert len(offsets.table) == 10
    clock.advance(2)
    look_at_all()
    look_at_all()
    assert set(offsets.table) == {"T3@g"}
    clock.advance(OFFSET_EXPIRY_SECONDS)
    look_at_all()
    look_at_all()
    assert not offsets.table
    offsets.commit("g", "T1", 0, 1)
    assert offsets.query("g", "T1", 0) == 1
