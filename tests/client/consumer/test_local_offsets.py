from __future__ import annotations

from pathlib import Path

from cometmq.client.consumer.offset_store import LocalOffsets
from cometmq.remoting.bodies import MessageQueue

Q0, Q1 = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def test_the_file_is_where_java_keeps_it_and_as_java_writes_it(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path, "1.2.3.4@DEFAULT", "g")
    offsets.save({Q0: 5})
    path = tmp_path / "1.2.3.4@DEFAULT" / "g" / "offsets.json"
    text = "".join(path.read_text().split())
    assert text == '{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}'


def test_offsets_of_other_queues_stay(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path, "c", "g")
    offsets.save({Q0: 5})
    offsets.save({Q1: 7})
    assert offsets.load() == {Q0: 5, Q1: 7}


def test_a_damaged_file_is_replaced_by_the_one_before(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path, "c", "g")
    offsets.save({Q0: 5})
    offsets.save({Q0: 6})
    offsets.path.write_text("{oops")
    assert offsets.load() == {Q0: 5}


def test_a_new_consumer_has_none(tmp_path: Path) -> None:
    assert LocalOffsets(tmp_path, "c", "g").load() == {}
