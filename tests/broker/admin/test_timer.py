"""Administrators list waiting messages one by one: GET_WAITING_MESSAGES (30038)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.conftest import StartBroker
from tests.broker.wire import Wire
from tests.store.timer.timer_logs import entry, opened

import cometmq.broker.admin.messages
import cometmq.store.timer.waiting
from cometmq.broker.controller import Broker
from cometmq.fastjson import loads
from cometmq.remoting.admin_headers import GetWaitingMessagesRequestHeader
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import RecallMessageRequestHeader
from cometmq.store.timer.day import DAY_MS
from cometmq.store.timer.unit import Units, text_hash
from cometmq.store.timer.waiting import Wanted, list_waiting
from cometmq.testing import VirtualClock

DAY_S = DAY_MS // 1000


async def send_later(wire: Wire, name: str, delay_s: float, topic: str = "Later", queue_id: int = 0) -> dict[str, str]:
    text = f"UNIQ_KEY\x01{name}\x02TIMER_DELAY_MS\x01{int(delay_s * 1000)}"
    answer = await wire.send(topic, name.encode(), queue_id=queue_id, properties=text)
    assert answer.code == ResponseCode.SUCCESS
    return answer.ext_fields


async def page(wire: Wire, **fields: Any) -> dict[str, Any]:
    answer = await wire.call(RequestCode.GET_WAITING_MESSAGES, GetWaitingMessagesRequestHeader(**fields))
    assert answer.code == ResponseCode.SUCCESS, answer
    body: dict[str, Any] = loads(answer.body)
    return body


async def names(wire: Wire, **fields: Any) -> list[str]:
    """Of all pages, whichever size they have."""
    found: list[str] = []
    while True:
        part = await page(wire, **fields)
        found += [message["uniqKey"] for message in part["messages"]]
        if "nextDue" not in part:
            return found
        fields |= {"begin_time": part["nextDue"], "position": part["nextPosition"]}


async def test_nothing_waits(wire: Wire) -> None:
    assert await page(wire) == {"messages": []}


async def test_a_waiting_message_is_described(wire: Wire, clock: VirtualClock) -> None:
    due_ms = clock.now_ms() + 90_000
    await send_later(wire, "K0", 60)
    await send_later(wire, "K1", 90, queue_id=2)
    await clock.run_for(2)
    described = (await page(wire))["messages"][1]
    assert described.pop("size") > 100
    assert described == {
        "topic": "Later",
        "queueId": 2,
        "due": due_ms,
        "uniqKey": "K1",
        "position": 1,
        "born": 1_700_000_000_000,
    }


async def test_they_come_in_the_order_of_due_times_near_and_far(
    start_broker: StartBroker, connect_to: Any, clock: VirtualClock
) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)
    for delay_s in (3 * DAY_S, 40, 0.5, 3 * DAY_S, 500, 41, DAY_S, 400 * DAY_S):
        await send_later(wire, f"{delay_s:g}", delay_s)
    await clock.run_for(2)  # what was due first is gone, and the others are in the timer log
    expected = ["40", "41", "500", "86400", "259200", "259200", "3.456e+07"]
    for most in (1, 2, 5, 100):
        assert await names(wire, max_num=most) == expected
    await clock.skip(39)
    await broker.stop()
    again = await connect_to(await start_broker())
    await clock.run_for(2)
    assert await names(again, max_num=2) == expected[2:]


async def test_by_topic_and_due_time(wire: Wire, clock: VirtualClock) -> None:
    now_ms = clock.now_ms()
    for number in range(6):
        await send_later(wire, f"K{number}", 100 + number, topic="Even" if number % 2 == 0 else "Odd")
    await clock.run_for(2)
    assert await names(wire, topic="Odd", max_num=1) == ["K1", "K3", "K5"]
    assert await names(wire, begin_time=now_ms + 102_000, end_time=now_ms + 104_000) == ["K2", "K3"]
    assert await names(wire, topic="Odd", begin_time=now_ms + 104_000) == ["K5"]
    assert await names(wire, topic="Nobody") == []
    assert await names(wire, begin_time=now_ms + 200_000) == await names(wire, end_time=-1) == []


async def test_what_was_taken_back_is_not_listed(wire: Wire, clock: VirtualClock) -> None:
    handles = [(await send_later(wire, f"K{number}", delay))["recallHandle"] for number, delay in enumerate((30, 900))]
    await send_later(wire, "K2", 900)
    for handle in handles:
        header = RecallMessageRequestHeader(topic="Later", recall_handle=handle, producer_group="producers")
        assert (await wire.call(RequestCode.RECALL_MESSAGE, header)).code == ResponseCode.SUCCESS
    await clock.run_for(2)
    assert await names(wire) == ["K2"]


async def test_an_answer_is_bounded_whatever_is_asked_for(
    wire: Wire, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.admin.messages, "MAX_LISTED_WAITING", 3)
    sent = [f"K{number}" for number in range(10)]
    for name in sent:
        await send_later(wire, name, 1000)
    await send_later(wire, "last", 3 * DAY_S)
    await clock.run_for(2)
    assert len((await page(wire, max_num=2**31 - 1))["messages"]) == 3
    assert await names(wire, max_num=-1) == [*sent, "last"]
    monkeypatch.setattr(cometmq.store.timer.waiting, "MAX_LISTED_WAITING_BYTES", 1)
    assert len((await page(wire))["messages"]) == 1
    assert await names(wire) == [*sent, "last"]
    monkeypatch.setattr(cometmq.store.timer.waiting, "MAX_LISTED_WAITING_BYTES", 1 << 20)
    monkeypatch.setattr(cometmq.store.timer.waiting, "MAX_SEARCHED_WAITING", 1)
    assert (await page(wire, topic="Nobody"))["nextDue"] > clock.now_ms()
    assert await names(wire, topic="Later") == [*sent, "last"]


async def test_those_who_look_are_bounded(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cometmq.broker.admin.messages, "MAX_TIMER_LOOKS", 2)
    codes = (RequestCode.GET_WAITING_MESSAGES, RequestCode.GET_TIMER_METRICS) * 10
    asked = [wire.command(code) for code in codes]
    wire.writer.write(b"".join(command.encode() for command in asked))
    found = [(await wire.answer(command.opaque)).code for command in asked]
    assert found[:2] == [ResponseCode.SUCCESS] * 2
    assert ResponseCode.SYSTEM_BUSY in found[2:]
    assert await page(wire) == {"messages": []}


async def test_a_damaged_record_is_listed_by_what_is_left_of_it(
    broker: Broker, wire: Wire, clock: VirtualClock, tmp_path: Path
) -> None:
    await send_later(wire, "K0", 1000)
    await clock.run_for(2)
    (data,) = (tmp_path / "store/comet/timer").glob("*.data")
    data.write_bytes(bytes(data.stat().st_size))
    (listed,) = (await page(wire))["messages"]
    assert (listed["topic"], listed["queueId"], listed["uniqKey"], listed["position"]) == ("?", -1, "", 0)


async def test_a_timer_log_that_cannot_be_read_is_an_error(
    broker: Broker, wire: Wire, clock: VirtualClock, tmp_path: Path
) -> None:
    await send_later(wire, "K0", 1000)
    await clock.run_for(2)
    shutil.rmtree(tmp_path / "store/comet/timer")
    answer = await wire.call(RequestCode.GET_WAITING_MESSAGES, GetWaitingMessagesRequestHeader())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "No such file" in (answer.remark or "")


DUES = st.integers(0, 12).map(lambda sixth: sixth * DAY_MS // 6)


@settings(max_examples=60, deadline=None)
@given(
    sent=st.lists(st.tuples(DUES, st.sampled_from("AB"), st.booleans()), max_size=30),
    low=DUES,
    width=DUES,
    most=st.integers(1, 8),
    topic=st.sampled_from([None, "A", "B"]),
)
def test_pages_put_together_are_what_waits(
    tmp_path_factory: pytest.TempPathFactory,
    sent: list[tuple[int, str, bool]],
    low: int,
    width: int,
    most: int,
    topic: str | None,
) -> None:
    log = opened(tmp_path_factory.mktemp("timer"))
    log.append([entry(serial, due, topic=name, unique=str(serial)) for serial, (due, name, _) in enumerate(sent)])
    still = [serial for serial, (_, _, waits) in enumerate(sent) if waits]

    def chosen(units: Units) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = np.isin(units["serial"], still)
        return found if topic is None else found & (units["topic"] == text_hash(topic))

    found: list[tuple[int, int]] = []
    place: tuple[int, int] | None = (low, 0)
    while place is not None:
        listed, place = list_waiting(log, Wanted(place, low + width, most), chosen)
        assert len(listed) <= most
        found += [(one.due_ms, one.serial) for one in listed]
    assert found == sorted(
        (due, serial)
        for serial, (due, name, waits) in enumerate(sent)
        if waits and topic in (None, name) and low <= due < low + width
    )
    log.close()
