"""A broker started on a real Apache broker's store says over the wire what the real one said."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.snapshots import unpacked
from tests.broker.wire import Wire, records

from cometmq.broker.controller import Broker
from cometmq.fastjson import loads
from cometmq.message.names import PERM_READ, TRANS_OP_HALF_TOPIC
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryMessageRequestHeader,
    SearchOffsetRequestHeader,
)
from cometmq.testing import VirtualClock

Manifest = dict[str, list[dict[str, Any]]]


@pytest.fixture(params=["clean", "killed"])
def packed(request: pytest.FixtureRequest, golden: Path) -> Path:
    return golden / "stores" / str(request.param)


@pytest.fixture
def manifest(packed: Path) -> Manifest:
    found: Manifest = defaultdict(list)
    with gzip.open(packed / "manifest.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            entry = json.loads(line)
            found[entry["kind"]].append(entry)
    return found


@pytest.fixture
async def broker(packed: Path, tmp_path: Path, manifest: Manifest) -> AsyncIterator[Broker]:
    """It runs at the time at which the real one stopped, so that what is delayed still waits."""
    config = unpacked(packed / "store.tar.gz", tmp_path)
    stopped_ms = max(entry["storeTimestamp"] for entry in manifest["message"])
    running = Broker(config, clock=VirtualClock(stopped_ms))
    await running.start()
    yield running
    await running.stop()


async def offset(wire: Wire, code: int, header: Any) -> int:
    return int((await wire.call(code, header)).ext_fields["offset"])


async def test_everything_is_served(broker: Broker, wire: Wire, manifest: Manifest) -> None:
    for entry in manifest["topic"]:
        topic = broker.topics.get(entry["topic"])
        assert topic is not None
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.order) == (
            entry["readQueueNums"],
            entry["writeQueueNums"],
            entry["perm"],
            entry["order"],
        )
    assert {entry["group"] for entry in manifest["group"]} <= set(broker.groups.table)
    ends = {(entry["topic"], str(entry["queueId"])): entry["maxOffset"] for entry in manifest["queue"]}
    assert loads((await wire.call(RequestCode.GET_ALL_CONSUMER_OFFSET)).body)["offsetTable"] == {
        f"{entry['topic']}@{entry['group']}": {
            queue_id: min(offset, ends.get((entry["topic"], queue_id), offset))  # a pull client went one too far
            for queue_id, offset in entry["offsets"].items()
        }
        for entry in manifest["consumerOffset"]
    }
    for entry in manifest["queue"]:
        where = {"topic": entry["topic"], "queue_id": entry["queueId"]}
        assert await offset(wire, RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(**where)) == entry["minOffset"]
        end = await offset(wire, RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(**where))
        if entry["topic"] == TRANS_OP_HALF_TOPIC:
            assert end >= entry["maxOffset"], "op messages that the crash left out are written at the start"
        else:
            assert end == entry["maxOffset"]
    for entry in manifest["searchOffset"]:
        header = SearchOffsetRequestHeader(
            topic=entry["topic"], queue_id=entry["queueId"], timestamp=entry["timestamp"]
        )
        assert await offset(wire, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header) == entry["offset"]


async def test_every_message_can_be_pulled(broker: Broker, wire: Wire, manifest: Manifest) -> None:
    expected: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for entry in manifest["message"]:
        expected[entry["topic"], entry["queueId"]].append(entry)
    pulled = 0
    for (name, queue_id), messages in expected.items():
        topic = broker.topics.get(name)
        if topic is None or not topic.perm & PERM_READ:
            continue
        at = messages[0]["queueOffset"]
        found: list[tuple[int, int, str]] = []
        while len(found) < len(messages):
            answer = await wire.pull(name, queue_id=queue_id, queue_offset=at)
            assert answer.code == ResponseCode.SUCCESS
            body = memoryview(answer.body)
            for record in records(answer):
                digest = hashlib.sha256(body[: record.size]).hexdigest()
                found.append((record.queue_offset, record.physical_offset, digest))
                body = body[record.size :]
            at = int(answer.ext_fields["nextBeginOffset"])
        assert found == [(m["queueOffset"], m["commitLogOffset"], m["recordSha256"]) for m in messages]
        pulled += len(found)
    assert pulled > 1000


async def test_messages_are_found_by_key(wire: Wire, manifest: Manifest) -> None:
    for entry in manifest["query"]:
        header = QueryMessageRequestHeader(
            topic=entry["topic"],
            key=entry["key"],
            max_num=64,
            begin_timestamp=0,
            end_timestamp=2**62,
            unique_key_query=entry["unique"],
        )
        answer = await wire.call(RequestCode.QUERY_MESSAGE, header)
        found = [record.physical_offset for record in records(answer)]
        assert set(entry["matching"]) <= set(found)


async def test_the_broker_goes_on_where_the_other_stopped(broker: Broker, wire: Wire, manifest: Manifest) -> None:
    queue = next(q for q in manifest["queue"] if q["topic"].startswith(("GoldTx", "Kill")) and q["maxOffset"] > 0)
    where = {"queue_id": queue["queueId"]}
    answer = await wire.send(queue["topic"], b"ours", **where)
    assert answer.ext_fields["queueOffset"] == str(queue["maxOffset"])
    pulled = await wire.pull(queue["topic"], queue_offset=queue["maxOffset"], **where)
    assert [record.body for record in records(pulled)] == [b"ours"]
