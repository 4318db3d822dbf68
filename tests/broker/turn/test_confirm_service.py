"""Sends of a set are answered once their positions are confirmed, once, in order and in time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo, small_config
from tests.broker.turn.side_by_side import Side
from tests.broker.turn.test_plain_sends import send
from tests.broker.wire import Wire, send_header
from tests.helpers.contents import bodies
from tests.helpers.waiting import until

import cometmq.broker.controller as controller
import cometmq.broker.lite.index as index
import cometmq.broker.master_parts as master_parts
from cometmq.broker.controller import Broker
from cometmq.broker.turn.confirm_service import ConfirmService
from cometmq.broker.turn.inner_message import InnerMessage, Stored
from cometmq.broker.turn.targets import RefusedError
from cometmq.broker.turn.waiters import SendWaiters
from cometmq.core import CORE
from cometmq.message.ids import decode_offset_msg_id
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.store.errors import StoreError
from cometmq.testing import VirtualClock

TIMEOUT_S = 3.0
OK, TIMEOUT = ResponseCode.SUCCESS, ResponseCode.FLUSH_SLAVE_TIMEOUT
NOT_AVAILABLE = ResponseCode.SERVICE_NOT_AVAILABLE
MESSAGE = InnerMessage("Inner", 0, b"body", "", 0, 0, 1234, bytes(8))


class Confirms:
    """The service, and the answers by position."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.service = ConfirmService(clock=self.clock, timeout_s=TIMEOUT_S)
        self.answers: list[tuple[int, ResponseCode]] = []
        self.internal: list[tuple[int, StoreError | None]] = []

    def wait(self, position: int) -> None:
        self.service.when_replicated(position, lambda code: self.answers.append((position, code)))
        self.service.when_safe(position, lambda error: self.internal.append((position, error)))


def test_answers_come_in_the_order_of_the_log() -> None:
    confirms = Confirms()
    for position in (10, 20, 30):
        confirms.wait(position)
    confirms.service.confirm(25)
    assert confirms.answers == [(10, OK), (20, OK)]
    assert confirms.internal == [(10, None), (20, None)]
    confirms.service.confirm(5)
    confirms.wait(22)
    assert confirms.answers[-1] == (22, OK)
    confirms.service.confirm(30)
    assert confirms.answers[-1] == (30, OK)


def test_a_request_is_answered_in_time_and_internal_work_goes_on_only_when_confirmed() -> None:
    confirms = Confirms()
    confirms.wait(10)
    confirms.clock.advance(2)
    confirms.wait(20)
    confirms.clock.advance(0.9)
    assert confirms.answers == []
    confirms.clock.advance(0.2)
    assert confirms.answers == [(10, TIMEOUT)]
    confirms.clock.advance(1.8)
    confirms.service.confirm(20)
    assert confirms.answers == [(10, TIMEOUT), (20, OK)]
    assert confirms.internal == [(10, None), (20, None)]
    confirms.clock.advance(60)
    assert len(confirms.answers) == 2


def test_what_is_given_up_is_answered_with_an_error_and_never_confirmed() -> None:
    confirms = Confirms()
    confirms.wait(10)
    confirms.service.give_up(NOT_AVAILABLE)
    assert confirms.answers == [(10, NOT_AVAILABLE)]
    [(_, error)] = confirms.internal
    assert isinstance(error, StoreError)
    confirms.wait(20)
    assert confirms.answers[-1] == (20, NOT_AVAILABLE)
    assert isinstance(confirms.internal[-1][1], StoreError)
    confirms.service.confirm(99)
    confirms.clock.advance(60)
    assert len(confirms.answers) == len(confirms.internal) == 2


# --- a broker -------------------------------------------------------------------------------------
class InSet:
    """A broker whose sends wait until they are confirmed, and a connection to it."""

    def __init__(self, broker: Broker, wire: Wire, confirms: ConfirmService) -> None:
        self.broker = broker
        self.wire = wire
        self.confirms = confirms

    async def post(self, topic: str = "T", body: bytes = b"x", **fields: Any) -> int:
        """Send without waiting; return the opaque once the message is stored."""
        end = self.broker.store.max_physical_offset
        command = self.wire.command(RequestCode.SEND_MESSAGE_V2, send_header(topic, **fields), body)
        self.wire.post(command)
        await until(lambda: self.broker.store.max_physical_offset > end)
        return command.opaque

    def confirm(self) -> None:
        self.confirms.confirm(self.broker.store.max_physical_offset)


@pytest.fixture(params=["core", "python"])
async def in_set(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    clock: VirtualClock,
    connect_to: ConnectTo,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[InSet]:
    if request.param == "python":
        for module in (controller, index, master_parts):
            monkeypatch.setattr(module, "CORE", None)
    elif CORE is None:
        pytest.skip("the compiled core is not installed (make test builds it)")
    confirms = ConfirmService(clock=clock, timeout_s=TIMEOUT_S)
    monkeypatch.setattr(
        controller, "SendWaiters", lambda store, _, answers, **options: SendWaiters(store, confirms, answers, **options)
    )
    broker = Broker(small_config(tmp_path), clock=clock)
    await broker.start()
    assert (broker.plain_sends is None) == (request.param == "python")
    wire = await connect_to(broker)
    confirms.confirm(0)
    yield InSet(broker, wire, confirms)
    confirms.give_up(NOT_AVAILABLE)
    await broker.stop()


async def test_a_send_is_answered_when_it_is_confirmed(in_set: InSet) -> None:
    first = await in_set.post()
    await in_set.wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert first not in in_set.wire.answers
    in_set.confirm()
    assert (await in_set.wire.answer(first)).code == OK


async def test_a_send_is_answered_with_a_timeout_once_and_is_stored(in_set: InSet, clock: VirtualClock) -> None:
    opaque = await in_set.post()
    clock.advance(TIMEOUT_S + 0.1)
    answer = await in_set.wire.answer(opaque)
    assert answer.code == TIMEOUT
    assert answer.ext_fields["msgId"]
    in_set.confirm()
    await in_set.wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert opaque not in in_set.wire.answers


async def test_a_send_that_is_given_up_can_be_sent_again(in_set: InSet) -> None:
    opaque = await in_set.post()
    in_set.confirms.give_up(NOT_AVAILABLE)
    answer = await in_set.wire.answer(opaque)
    assert (answer.code, "msgId" in answer.ext_fields) == (NOT_AVAILABLE, False)
    assert "no longer the master" in (answer.remark or "")


async def test_a_request_for_which_the_broker_stores_is_answered_in_time(in_set: InSet, clock: VirtualClock) -> None:
    opaque = await in_set.post("Failing")
    in_set.confirm()
    answer = await in_set.wire.answer(opaque)
    _, _, offset = decode_offset_msg_id(answer.ext_fields["msgId"])
    end = in_set.broker.store.max_physical_offset
    back = hand_back_command(in_set.wire, offset)
    in_set.wire.post(back)
    await until(lambda: in_set.broker.store.max_physical_offset > end)
    await in_set.wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert back.opaque not in in_set.wire.answers
    clock.advance(TIMEOUT_S + 0.1)
    answer = await in_set.wire.answer(back.opaque)
    assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert "not replicated within slaveTimeout" in (answer.remark or "")


async def test_internal_work_never_goes_on_as_if(in_set: InSet, clock: VirtualClock) -> None:
    outcomes: list[Stored | RefusedError] = []
    in_set.broker.turn.put_inner(MESSAGE, outcomes.append)
    in_set.broker.turn.end()
    clock.advance(60)
    assert outcomes == []
    in_set.confirms.give_up(NOT_AVAILABLE)
    [outcome] = outcomes
    assert isinstance(outcome, RefusedError)


async def test_a_member_that_may_not_append_refuses_before_its_log_grows(in_set: InSet) -> None:
    broker, wire = in_set.broker, in_set.wire
    opaque = await in_set.post()
    in_set.confirm()
    assert (await wire.answer(opaque)).code == OK
    end = broker.store.max_physical_offset
    broker.turn.forbid(RefusedError(NOT_AVAILABLE, "this member is following"))
    for properties in ("", "DELAY\x011", "TRAN_MSG\x01true\x02PGROUP\x01p"):
        answer = await wire.send("T", properties=properties)
        assert (answer.code, answer.remark) == (NOT_AVAILABLE, "this member is following")
    with pytest.raises(RefusedError, match="this member is following"):
        broker.turn.put_inner(MESSAGE, lambda _: None)
    assert broker.store.max_physical_offset == end
    broker.turn.forbid(None)
    opaque = await in_set.post()
    in_set.confirm()
    assert (await wire.answer(opaque)).code == OK


async def test_a_turn_that_is_open_takes_nothing_more_but_keeps_what_it_has(in_set: InSet) -> None:
    turn = in_set.broker.turn
    outcomes: list[Stored | RefusedError] = []
    turn.put_inner(MESSAGE, outcomes.append)
    turn.forbid(RefusedError(NOT_AVAILABLE, "no"))
    with pytest.raises(RefusedError, match="no"):
        turn.put_inner(MESSAGE, outcomes.append)
    turn.end()
    in_set.confirm()
    assert len(outcomes) == 1
    assert in_set.broker.store.stored_end("Inner", 0) == 1


@pytest.mark.parametrize("core", [CORE, None], ids=["core", "python"])
async def test_messages_of_one_round_after_the_prohibition_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, core: Any
) -> None:
    """The compiled core has begun a batch when the member learns that it may not append any more."""
    side = Side(tmp_path, 1, "127.0.0.1", {})
    await side.start(monkeypatch, core)
    side.receive(0, send(1, body=b"first", topic="T", queueId="0"))
    side.end_round()
    side.receive(0, send(2, body=b"before", topic="T", queueId="0"))
    side.broker.turn.forbid(RefusedError(NOT_AVAILABLE, "no"))
    side.receive(0, send(3, body=b"after", topic="T", queueId="0"))
    side.end_round()
    [answers] = side.answers()
    assert answers.count(b'"code":0') == 2
    assert answers.count(b'"code":14') == 1
    assert bodies(side.broker, "T") == [b"first", b"before"]
    await side.stop()


def hand_back_command(wire: Wire, offset: int) -> Any:
    """The request of a consumer that failed to handle a message."""
    return wire.command(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        ext={"offset": str(offset), "group": "consumers", "delayLevel": "1", "originTopic": "Failing"},
    )
