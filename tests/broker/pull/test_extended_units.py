"""A broker on a store with ``enableConsumeQueueExt``: filters and delays go by tags codes, not by addresses."""

from __future__ import annotations

from pathlib import Path

from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.wire import records
from tests.helpers.contents import bodies, stored
from tests.helpers.unpack import unpack
from tests.helpers.waiting import until

from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.testing import VirtualClock


async def test_pulls_by_tag_and_by_sql_and_delay_levels(
    golden: Path, tmp_path: Path, start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    unpack(golden / "stores" / "ext" / "store.tar.gz", tmp_path)
    (tmp_path / "store" / "abort").unlink()
    waiting_ms = 1_795_408_145_000  # when the store was made
    clock.advance(max(0, waiting_ms - clock.now_ms()) / 1000)
    broker = await start_broker(
        mapped_file_size_commit_log=131072,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=100,
        max_index_num=300,
        enable_property_filter=True,
    )
    wire = await connect_to(broker)
    by_tag = [record.body for record in records(await wire.pull("Ext", queue_id=1, subscription="b"))]
    assert by_tag == [b"m%d" % number for number in range(1, 60, 2) if number % 3 == 1]
    sql = await wire.pull("Ext", queue_id=1, subscription="TAGS = 'b' AND a > 3", expression_type="SQL92")
    wanted = [b"m%d" % number for number in range(1, 60, 2) if number % 3 == 1 and number % 7 > 3]
    assert [record.body for record in records(sql)] == wanted
    last = stored(broker, SCHEDULE_TOPIC, 17)[0].store_timestamp + 7_200_000
    assert b"w" not in bodies(broker, "Ext"), "an address is no due time"
    await clock.skip((last - clock.now_ms()) / 1000 - 60)
    assert b"w" not in bodies(broker, "Ext")
    await clock.skip(61)
    await until(lambda: b"w" in bodies(broker, "Ext"))
    assert sorted(body for body in bodies(broker, "Ext") if body[:1] in b"dw") == [b"d0", b"d1", b"d2", b"w"]
