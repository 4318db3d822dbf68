"""Brokers that refuse for a while or are away, played by a server of our own: real ones are busy only by chance."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.send.busy_broker import NO_ANSWER, Broker
from tests.helpers.waiting import real_time

from cometmq.client import Message, PartlySentError, Producer, ProducerConfig, SendStatus
from cometmq.client.errors import BrokerError, ClientError, SendFailedError
from cometmq.client.retries import RETRY_RESPONSE_CODES
from cometmq.errors import CometMQError
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.server import RemotingServer


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = Broker()
    await broker.server.start("127.0.0.1", 0)
    yield broker
    await broker.server.stop()


async def test_a_busy_broker_is_asked_again_until_it_takes_the_message(broker: Broker) -> None:
    broker.codes = [ResponseCode.SYSTEM_BUSY] * 5
    async with Producer("p", broker.address, config=ProducerConfig(retry_backoff_s=0.01)) as producer:
        assert (await producer.send(Message("T", b"x"))).queue_offset == 5
    assert len(broker.asked) == 6


async def test_a_broker_that_stays_busy_fails_the_send_in_time(broker: Broker) -> None:
    broker.codes = [ResponseCode.SYSTEM_BUSY] * 1000
    async with Producer("p", broker.address, config=ProducerConfig(retry_backoff_s=0.01)) as producer:
        with pytest.raises(SendFailedError, match="SYSTEM_BUSY") as caught:
            await producer.send(Message("T", b"x"), timeout_s=0.3)
    assert caught.value.code == ResponseCode.SYSTEM_BUSY


async def test_a_refusal_that_another_broker_may_not_share_goes_to_the_other_one(broker: Broker) -> None:
    broker.codes = [ResponseCode.SERVICE_NOT_AVAILABLE]
    async with Producer("p", broker.address) as producer:
        await producer.send(Message("T", b"x"))
    assert sorted(map(str, broker.asked)) == ["a", "b"]


async def test_other_refusals_are_raised_at_once(broker: Broker) -> None:
    broker.codes = [ResponseCode.MESSAGE_ILLEGAL]
    async with Producer("p", broker.address) as producer:
        with pytest.raises(BrokerError, match="told to") as caught:
            await producer.send(Message("T", b"x"))
    assert (caught.value.code, len(broker.asked)) == (13, 1)


async def test_attempts_are_counted(broker: Broker) -> None:
    broker.codes = [ResponseCode.SYSTEM_ERROR] * 3
    async with Producer("p", broker.address) as producer:
        with pytest.raises(SendFailedError, match="3 attempts") as caught:
            await producer.send(Message("T", b"x"))
    assert len(caught.value.attempts) == 3
    assert isinstance(caught.value.cause, BrokerError)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, SendStatus.SEND_OK),
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
async def test_every_status_is_told(broker: Broker, code: int, status: SendStatus) -> None:
    broker.codes = [code]
    async with Producer("p", broker.address) as producer:
        assert (await producer.send(Message("T", b"x"))).status is status
    assert len(broker.asked) == 1


async def test_a_status_that_is_not_ok_can_lead_to_another_attempt(broker: Broker) -> None:
    broker.codes = [10]
    config = ProducerConfig(retry_another_broker_when_not_store_ok=True)
    async with Producer("p", broker.address, config=config) as producer:
        assert (await producer.send(Message("T", b"x"))).status is SendStatus.SEND_OK
    assert len(broker.asked) == 2


async def test_a_message_that_is_stored_less_safely_stays_sent_when_no_further_attempt_is_better(
    broker: Broker,
) -> None:
    broker.codes = [12, ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL]
    config = ProducerConfig(retry_another_broker_when_not_store_ok=True)
    async with Producer("p", broker.address, config=config) as producer:
        assert (await producer.send(Message("T", b"x"))).status is SendStatus.FLUSH_SLAVE_TIMEOUT
    assert len(broker.asked) == 3


@pytest.mark.parametrize("code", [int(code) for code in RETRY_RESPONSE_CODES])
async def test_every_answer_of_javas_set_leads_to_the_other_broker(broker: Broker, code: int) -> None:
    broker.codes = [code]
    async with Producer("p", broker.address) as producer:
        await producer.send(Message("T", b"x"))
    assert sorted(map(str, broker.asked)) == ["a", "b"]


async def test_single_messages_and_messages_side_by_side_have_attempts_of_their_own(broker: Broker) -> None:
    config = ProducerConfig(retry_times_when_send_failed=0, retry_times_when_send_async_failed=3, retry_backoff_s=0.01)
    async with Producer("p", broker.address, config=config) as producer:
        broker.codes = [ResponseCode.SYSTEM_ERROR]
        with pytest.raises(BrokerError):
            await producer.send(Message("T", b"x"))
        broker.codes = [ResponseCode.SYSTEM_ERROR] * 3
        assert len(await producer.send_many([Message("T", b"x")])) == 1
        broker.codes = [ResponseCode.SYSTEM_ERROR]
        with pytest.raises(PartlySentError):
            await producer.send_batch([Message("T", b"x")])
    assert len(broker.asked) == 6


@pytest.mark.parametrize("code", [NO_ANSWER, ResponseCode.SYSTEM_ERROR])
async def test_messages_side_by_side_go_to_the_other_broker_too(broker: Broker, code: int) -> None:
    broker.codes = [code]
    config = ProducerConfig(send_msg_max_timeout_per_request_s=0.1)
    async with Producer("p", broker.address, config=config) as producer:
        (sent,) = await producer.send_many([Message("T", b"x")])
    assert sorted(map(str, broker.asked)) == ["a", "b"]
    assert sent.queue.broker_name == broker.asked[-1]


@pytest.mark.parametrize("away", [{"a": None, "b": None}, {"a": 1, "b": 1}], ids=["unknown", "slaves only"])
async def test_brokers_that_restart_are_waited_for_while_time_remains(
    broker: Broker, away: dict[str, int | None]
) -> None:
    port = broker.server.port
    config = ProducerConfig(send_timeout_s=30, retry_backoff_s=0.02)
    async with Producer("p", broker.address, config=config) as producer:
        await producer.send(Message("T", b"before"))
        present, broker.roles = broker.roles, away
        with contextlib.suppress(CometMQError):
            await producer.instance.routes.refresh("T")
        await broker.server.stop()
        sending = [
            asyncio.create_task(producer.send(Message("T", b"meanwhile"))),
            asyncio.create_task(producer.send(Message("T", b"meanwhile"), sharding_key="k")),
        ]
        await real_time(0.3)  # some tries meanwhile: none of them may end the send
        assert not any(task.done() for task in sending)
        broker.server = RemotingServer(broker.server.processors)
        await broker.server.start("127.0.0.1", port)
        broker.roles = present
        assert [(await task).status for task in sending] == [SendStatus.SEND_OK] * 2


async def test_brokers_that_stay_away_fail_the_send_when_its_time_is_up(broker: Broker) -> None:
    config = ProducerConfig(retry_backoff_s=0.02)
    async with Producer("p", broker.address, config=config) as producer:
        await producer.send(Message("T", b"before"))
        await broker.server.stop()
        with pytest.raises(SendFailedError, match="attempts in 0") as caught:
            await producer.send(Message("T", b"x"), timeout_s=0.5)
    assert 2 < len(caught.value.attempts) < 40, "with pauses, also where brokers are taken in turn"


async def test_a_failure_isolates_a_broker_but_a_bad_message_does_not(broker: Broker) -> None:
    config = ProducerConfig(send_latency_fault_enable=True)
    async with Producer("p", broker.address, config=config) as producer:
        broker.codes = [ResponseCode.MESSAGE_ILLEGAL]
        with pytest.raises(BrokerError):
            await producer.send(Message("T", b"bad"))
        for _ in range(4):
            await producer.send(Message("T", b"x"))
        assert set(broker.asked[1:]) == {"a", "b"}
        broker.asked.clear()
        broker.codes = [ResponseCode.SYSTEM_ERROR]
        for _ in range(4):
            await producer.send(Message("T", b"x"))
    failed, *others = broker.asked
    assert failed not in others


# --- any answers, against a model -----------------------------------------------------------------

STATUSES = {0: SendStatus.SEND_OK, 10: SendStatus.FLUSH_DISK_TIMEOUT, 12: SendStatus.FLUSH_SLAVE_TIMEOUT}
BUSY, ILLEGAL = int(ResponseCode.SYSTEM_BUSY), int(ResponseCode.MESSAGE_ILLEGAL)
ANSWERS = [*STATUSES, BUSY, ILLEGAL, int(ResponseCode.SYSTEM_ERROR), int(ResponseCode.SERVICE_NOT_AVAILABLE)]


def model(codes: list[int], retries: int, again_when_not_ok: bool) -> tuple[SendStatus | int, int]:
    """The status, or the code of the error, that a send ends with after these answers; and how many it took."""
    stored: SendStatus | None = None
    counted = 0
    for asked, code in enumerate([*codes, 0], 1):
        status = STATUSES.get(code)
        if status is SendStatus.SEND_OK or (status is not None and not again_when_not_ok):
            return status, asked
        stored = status or stored
        counted += code != BUSY
        if code == ILLEGAL or (code != BUSY and counted > retries):
            return stored or code, asked
    raise AssertionError("the last answer is a success")


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(ANSWERS), max_size=7), st.integers(0, 3), st.booleans(), st.sampled_from(["send", "many"])
)
def test_any_answers_end_as_the_rules_say(codes: list[int], retries: int, again_when_not_ok: bool, way: str) -> None:
    other = 0 if retries else 3
    config = ProducerConfig(
        send_timeout_s=60,
        retry_times_when_send_failed=retries if way == "send" else other,
        retry_times_when_send_async_failed=retries if way == "many" else other,
        retry_backoff_s=0,
        retry_another_broker_when_not_store_ok=again_when_not_ok,
    )

    async def run() -> tuple[SendStatus | int, int]:
        broker = Broker()
        await broker.server.start("127.0.0.1", 0)
        broker.codes = [*codes]
        ended: SendStatus | int
        try:
            async with Producer("p", broker.address, config=config) as producer:
                message = Message("T", b"x")
                result = await producer.send(message) if way == "send" else (await producer.send_many([message]))[0]
                ended = result.status
        except ClientError as error:
            ended = error.code or 0
        finally:
            await broker.server.stop()
        return ended, len(broker.asked)

    assert asyncio.run(run()) == model(codes, retries, again_when_not_ok)
