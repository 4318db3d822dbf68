"""Tools list lite topics in pages, and remove them before they expire: codes 30048 and 30049."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.lite.subscribing import GROUP, PARENT, Reader, bodies, make_group, make_parent, send
from tests.broker.snapshots import copy_store
from tests.broker.wire import Wire, send_header

import cometmq.broker.lite.lite_topics as module
from cometmq.broker.controller import Broker
from cometmq.broker.lite.index import kept
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.testing import VirtualClock


@pytest.fixture
async def reader(wire: Wire, clock: VirtualClock) -> Reader:
    await make_parent(wire)
    await make_group(wire)
    return Reader(wire, clock)


async def ask(wire: Wire, code: int, **fields: str) -> dict[str, Any]:
    answer = await wire.call(code, ext={"topic": PARENT, **fields})
    assert answer.code == 0, answer
    found: dict[str, Any] = json.loads(answer.body)
    return found


async def names(wire: Wire, **fields: str) -> list[str]:
    """All names, from all pages."""
    found: list[str] = []
    position = 0
    while position >= 0:
        page = await ask(wire, RequestCode.GET_LITE_TOPICS, position=str(position), **fields)
        found += [row["liteTopic"] for row in page["liteTopics"]]
        position = page["nextPosition"]
    return found


async def expire(wire: Wire, **fields: str) -> tuple[int, int, int]:
    """The numbers of lite topics that were removed, are read, and have unread messages."""
    body = await ask(wire, RequestCode.EXPIRE_LITE_TOPICS, **fields)
    assert body["nextPosition"] == -1
    return body["removed"], body["read"], body["unread"]


async def test_lite_topics_are_listed_with_their_offsets_and_clients(
    wire: Wire, reader: Reader, clock: VirtualClock
) -> None:
    await reader.sync("job-1")
    await send(wire, "job-1", b"0", b"1")
    now = clock.now_ms()
    page = await ask(wire, RequestCode.GET_LITE_TOPICS)
    row = {"liteTopic": "job-1", "minOffset": 0, "maxOffset": 2, "lastUpdateTimestamp": now, "subscribers": 1}
    assert page == {"liteTopics": [row], "nextPosition": -1}


@pytest.mark.parametrize("cost", [1, 4_000])
async def test_pages_have_each_name_with_the_prefix_once(
    wire: Wire, reader: Reader, monkeypatch: pytest.MonkeyPatch, cost: int
) -> None:
    monkeypatch.setattr(module, "_COST_OF_SLICE", cost)
    monkeypatch.setattr(module, "MAX_SEARCHED_LITE_TOPICS", 7)
    wanted = [f"job-{number}" for number in range(20)]
    for name in wanted:
        await send(wire, name, b"x")
        await send(wire, f"other{name}", b"x")
    for most in ("1", "3", "1000", "-5"):
        assert await names(wire, prefix="job-", maxNum=most) == wanted
    assert len(await names(wire)) == 40
    assert await names(wire, prefix="nothing") == []
    assert len((await ask(wire, RequestCode.GET_LITE_TOPICS, position="-3"))["liteTopics"]) == 7
    assert (await ask(wire, RequestCode.GET_LITE_TOPICS, position=str(2**62)))["nextPosition"] == -1


async def test_what_a_client_reads_or_has_not_read_is_kept(wire: Wire, reader: Reader) -> None:
    await reader.sync("read", "subscribed", "held")
    await send(wire, "read", b"1")
    await reader.ack(*await reader.pop())
    await send(wire, "held", b"2")
    assert len(await reader.pop()) == 1
    await reader.sync("subscribed")
    await send(wire, "unread", b"3")
    assert await expire(wire, prefix="") == (1, 2, 1)
    assert sorted(await names(wire)) == ["held", "subscribed", "unread"]
    assert await expire(wire, liteTopic="nothing") == (0, 0, 0)
    assert await expire(wire, liteTopic="unread") == (0, 0, 1)
    assert await expire(wire, liteTopic="unread", withUnread="true") == (1, 0, 0)
    assert await expire(wire, prefix="", withUnread="true") == (0, 2, 0)
    await reader.sync("unread")
    await send(wire, "unread", b"new")
    (message,) = await reader.pop()
    assert (message.body, message.offset) == (b"new", 0)


async def test_a_message_after_the_removal_survives_a_crash(
    reader: Reader, start_broker: StartBroker, connect_to: ConnectTo, tmp_path: Path
) -> None:
    wire = reader.wire
    await reader.sync("a", "b")
    await send(wire, "a", b"a0", b"a1")
    await send(wire, "b", b"b0")
    await reader.ack(*await reader.pop())
    await reader.sync()
    assert await expire(wire, prefix="") == (2, 0, 0)
    await send(wire, "a", b"again")
    copy_store(tmp_path / "store", tmp_path / "again")
    restarted = await start_broker(store_path_root_dir=str(tmp_path / "again"))
    again = Reader(await connect_to(restarted), reader.clock)
    assert await names(again.wire) == ["a"]
    await again.sync("a", "b")
    assert bodies(await again.pop()) == [b"again"]


async def test_a_message_in_the_same_turn_is_kept(wire: Wire, reader: Reader) -> None:
    """Requests in one packet are handled in one turn, before their messages are stored."""
    await send(wire, "a", b"0")
    header = send_header(PARENT, properties="__LITE_TOPIC\x01a")
    one = wire.command(RequestCode.SEND_MESSAGE_V2, header, b"1")
    removal = wire.command(RequestCode.EXPIRE_LITE_TOPICS, ext={"topic": PARENT, "prefix": "", "withUnread": "true"})
    wire.post(one)
    wire.post(removal)
    assert (await wire.answer(one.opaque)).code == 0
    found = json.loads((await wire.answer(removal.opaque)).body)
    assert (found["removed"], found["read"]) == (0, 1)
    await reader.sync("a")
    assert bodies(await reader.pop()) == [b"0", b"1"]


async def test_nothing_is_removed_while_the_snapshot_is_written(
    wire: Wire, reader: Reader, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(wire, "a", b"0")
    monkeypatch.setattr(broker.lite._snapshot, "is_saving", True)
    answer = await wire.call(RequestCode.EXPIRE_LITE_TOPICS, ext={"topic": PARENT, "prefix": "", "withUnread": "true"})
    assert answer.code == ResponseCode.SYSTEM_BUSY
    monkeypatch.setattr(broker.lite._snapshot, "is_saving", False)
    with kept(broker.lite.indexes.of(PARENT)):
        answer = await wire.call(RequestCode.EXPIRE_LITE_TOPICS, ext={"topic": PARENT, "liteTopic": "a"})
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert await names(wire) == ["a"]


@pytest.mark.parametrize("code", [RequestCode.GET_LITE_TOPICS, RequestCode.EXPIRE_LITE_TOPICS])
@pytest.mark.usefixtures("reader")
async def test_wrong_questions_are_refused(wire: Wire, code: int) -> None:
    for fields, refusal in (
        ({"topic": "No"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": "TBW102"}, ResponseCode.INVALID_PARAMETER),
    ):
        assert (await wire.call(code, ext=fields)).code == refusal
    both = {"topic": PARENT, "liteTopic": "a", "prefix": "a"}
    assert (await wire.call(RequestCode.EXPIRE_LITE_TOPICS, ext=both)).code == ResponseCode.INVALID_PARAMETER
    neither = await wire.call(RequestCode.EXPIRE_LITE_TOPICS, ext={"topic": PARENT})
    assert neither.code == ResponseCode.INVALID_PARAMETER


async def test_a_deleted_group_keeps_nothing(wire: Wire, reader: Reader) -> None:
    await reader.sync("a")
    await send(wire, "a", b"0")
    await reader.ack(*await reader.pop())
    await reader.sync()
    await send(wire, "a", b"1")
    assert await expire(wire, liteTopic="a") == (0, 0, 1)
    fields = {"groupName": GROUP, "cleanOffset": "true"}
    assert (await wire.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext=fields)).code == 0
    assert await expire(wire, liteTopic="a", withUnread="true") == (1, 0, 0)
