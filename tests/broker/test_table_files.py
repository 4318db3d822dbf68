"""The files of the broker's tables at start: what cannot be read keeps the broker from starting empty."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.conftest import small_config

from cometmq.broker.controller import Broker
from cometmq.broker.table_file import TableFileError
from cometmq.clock import VirtualClock
from cometmq.remoting.bodies import SubscriptionGroupConfig, TopicConfig


@pytest.mark.parametrize("text", ["{", "[]"], ids=["cut", "another form"])
@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json", "consumerOffset.json"])
async def test_a_table_that_cannot_be_read_keeps_the_broker_from_starting(
    tmp_path: Path, clock: VirtualClock, name: str, text: str
) -> None:
    config = small_config(tmp_path)
    first = Broker(config, clock=clock)
    await first.start()
    first.topics.put(TopicConfig(topic_name="T"))
    first.groups.put(SubscriptionGroupConfig(group_name="g"))
    first.offsets.commit("g", "T", 0, 5)
    await first.stop()
    file = Path(config.store_path_root_dir) / "config" / name
    whole = file.read_bytes()
    file.write_text(text)
    file.with_name(f"{name}.bak").write_text(text)

    with pytest.raises(TableFileError, match=rf"{name} cannot be read: .*repair it or put back a copy"):
        await Broker(config, clock=clock).start()
    assert file.read_text() == text, "what is left of the table was changed"

    file.write_bytes(whole)
    repaired = Broker(config, clock=clock)
    await repaired.start()
    assert repaired.topics.get("T") is not None
    assert repaired.groups.get("g") is not None
    assert repaired.offsets.of_queues("g", "T") == {0: 5}
    await repaired.stop()
