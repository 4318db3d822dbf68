"""Transaction producers and brokers that ask oddly, much, or not at all; played by a server of our own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.helpers.waiting import until

from cometmq.client import Message, MessageExt, SendStatus, TransactionConfig, TransactionProducer, TransactionState
from cometmq.client.errors import BrokerError
from cometmq.message.names import TRACE_TOPIC
from cometmq.message.record import encode_record
from cometmq.message.trace_record import EndTransaction, decode_trace
from cometmq.remoting.bodies import BrokerData, HeartbeatData, QueueData, TopicRouteData, decode_body, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    GetRouteInfoRequestHeader,
    NoHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
    UnregisterClientRequestHeader,
)
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server import RemotingServer
from cometmq.remoting.server_connection import ServerConnection

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
GROUP = "bank"


class Broker:
    """A nameserver and a broker on one port; answers half messages with ``code`` and remembers their ends."""

    def __init__(self) -> None:
        self.code = 0
        self.end_code = 0
        self.sent: list[SendMessageRequestHeaderV2] = []
        self.ends: list[EndTransactionRequestHeader] = []
        self.traces: list[bytes] = []
        self.producers: dict[str, ServerConnection] = {}
        table = ProcessorTable()
        table.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader, self._route)
        table.register(RequestCode.HEART_BEAT, NoHeader, self._hello)
        table.register(RequestCode.UNREGISTER_CLIENT, UnregisterClientRequestHeader, lambda *_: Response())
        table.register(RequestCode.SEND_MESSAGE_V2, SendMessageRequestHeaderV2, self._send)
        table.register(RequestCode.END_TRANSACTION, EndTransactionRequestHeader, self._end)
        self.server = RemotingServer(table)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def _route(self, connection: Any, request: Request[GetRouteInfoRequestHeader], body: bytes) -> Response:
        route = TopicRouteData(
            broker_datas=[BrokerData(cluster="c", broker_name="a", broker_addrs={0: self.address})],
            queue_datas=[QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6)],
        )
        return Response(body=encode_body(route))

    def _hello(self, connection: ServerConnection, request: Request[Any], body: bytes) -> Response:
        for producer in decode_body(HeartbeatData, body).producer_data_set:
            self.producers[producer.group_name] = connection
        return Response()

    def _send(self, connection: Any, request: Request[SendMessageRequestHeaderV2], body: bytes) -> Response:
        if request.header.topic == TRACE_TOPIC:
            self.traces.append(body)
            return Response(0, SendMessageResponseHeader(f"{'0' * 16}{77:016X}", 0, 5))
        self.sent.append(request.header)
        if self.code not in (0, 10, 11, 12):
            return Response(self.code, remark="told to")
        return Response(self.code, SendMessageResponseHeader(f"{'0' * 16}{77:016X}", 0, 5))

    def _end(self, connection: Any, request: Request[EndTransactionRequestHeader], body: bytes) -> Response | None:
        self.ends.append(request.header)
        return Response(self.end_code, remark="told to") if request.header.commit_or_rollback else None

    def ask(self, number: int, group: str = GROUP, body: bytes | None = None) -> None:
        record = encode_record(
            topic="T",
            queue_id=0,
            queue_offset=number,
            physical_offset=1000 + number,
            body=b"%d" % number,
            properties_text=f"UNIQ_KEY\x01K{number}\x02PGROUP\x01{group}\x02",
            born_timestamp=1,
            born_host=bytes(8),
            store_timestamp=1,
            store_host=bytes(8),
        )
        header = CheckTransactionStateRequestHeader(number, 1000 + number, f"K{number}", f"K{number}")
        self.producers[GROUP].send_oneway(RequestCode.CHECK_TRANSACTION_STATE, header, record if body is None else body)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = Broker()
    await broker.server.start("127.0.0.1", 0)
    yield broker
    await broker.server.stop()


async def commit(message: Message, arg: Any, transaction_id: str) -> TransactionState:
    return COMMIT


async def roll_back(message: MessageExt) -> TransactionState:
    return ROLLBACK


async def test_a_half_message_says_what_it_is(broker: Broker) -> None:
    async with TransactionProducer(GROUP, commit, roll_back, broker.address) as producer:
        sent = await producer.send_in_transaction(Message("T", b"x"), check_immunity_s=30)
    (header,) = broker.sent
    assert header.properties is not None
    assert "TRAN_MSG\x01true\x02" in header.properties
    assert f"PGROUP\x01{GROUP}\x02" in header.properties
    assert "CHECK_IMMUNITY_TIME_IN_SECONDS\x0130\x02" in header.properties
    assert header.sys_flag == 4
    (end,) = broker.ends
    assert (end.commit_or_rollback, end.tran_state_table_offset, end.commit_log_offset) == (8, 5, 77)
    assert (end.producer_group, end.msg_id, end.from_transaction_check) == (GROUP, sent.msg_id, False)


async def test_traces_tell_how_transactions_ended(broker: Broker) -> None:
    config = TransactionConfig(enable_msg_trace=True)
    async with TransactionProducer(GROUP, commit, roll_back, broker.address, config=config) as producer:
        sent = await producer.send_in_transaction(Message("T", b"x", tags="paid"))
        await until(lambda: GROUP in broker.producers)
        broker.ask(3)
        await until(lambda: len(broker.ends) == 2)
    traced = [record for body in broker.traces for record in decode_trace(body) if isinstance(record, EndTransaction)]
    assert [(end.transaction_id, end.transaction_state, end.from_transaction_check) for end in traced] == [
        (sent.msg_id, "COMMIT_MESSAGE", False),
        ("K3", "ROLLBACK_MESSAGE", True),
    ]
    assert [(end.topic, end.group, end.store_host) for end in traced] == [("T", GROUP, broker.address)] * 2


@pytest.mark.parametrize("code", [10, 11, 12])
async def test_a_half_message_that_is_not_safe_is_rolled_back(broker: Broker, code: int) -> None:
    def execute(message: Message, arg: Any, transaction_id: str) -> TransactionState:
        raise AssertionError("no local work without a half message")

    broker.code = code
    async with TransactionProducer(GROUP, execute, roll_back, broker.address) as producer:
        result = await producer.send_in_transaction(Message("T", b"x"))
    assert result.status is not SendStatus.SEND_OK
    assert result.state is ROLLBACK
    assert [end.commit_or_rollback for end in broker.ends] == [12]
    assert len(broker.sent) == 1


async def test_a_half_message_that_is_refused_begins_nothing(broker: Broker) -> None:
    broker.code = int(ResponseCode.NO_PERMISSION)
    async with TransactionProducer(GROUP, commit, roll_back, broker.address) as producer:
        with pytest.raises(BrokerError, match="told to"):
            await producer.send_in_transaction(Message("T", b"x"))
    assert not broker.ends
    assert len(broker.sent) == 1


async def test_an_end_that_is_refused_is_not_confirmed(broker: Broker) -> None:
    broker.end_code = 1
    async with TransactionProducer(GROUP, commit, roll_back, broker.address) as producer:
        result = await producer.send_in_transaction(Message("T", b"x"))
    assert (result.state, result.confirmed) == (COMMIT, False)


async def test_what_is_no_state_is_unknown(broker: Broker) -> None:
    def execute(message: Message, arg: Any, transaction_id: str) -> Any:
        return "commit"

    async with TransactionProducer(GROUP, execute, roll_back, broker.address) as producer:
        result = await producer.send_in_transaction(Message("T", b"x"))
        assert result.state is UNKNOWN
        assert isinstance(result.error, TypeError)
        await until(lambda: broker.ends)
    assert [end.commit_or_rollback for end in broker.ends] == [0]


async def test_a_producer_that_sends_nothing_can_be_asked(broker: Broker) -> None:
    async with TransactionProducer(GROUP, commit, roll_back, broker.address):
        await until(lambda: GROUP in broker.producers, timeout_s=5)
        broker.ask(3)
        await until(lambda: broker.ends)
    (end,) = broker.ends
    assert (end.commit_or_rollback, end.tran_state_table_offset, end.commit_log_offset) == (12, 3, 1003)
    assert (end.msg_id, end.from_transaction_check) == ("K3", True)


async def test_questions_that_cannot_be_read_are_passed_over(broker: Broker) -> None:
    async with TransactionProducer(GROUP, commit, roll_back, broker.address):
        await until(lambda: GROUP in broker.producers)
        for body in (b"", b"x", b"\xff" * 200, bytes(4096)):
            broker.ask(1, body=body)
        record = bytearray(
            encode_record(
                topic="T",
                queue_id=0,
                queue_offset=0,
                physical_offset=0,
                body=b"x",
                properties_text=f"PGROUP\x01{GROUP}",
                born_timestamp=1,
                born_host=bytes(8),
                store_timestamp=1,
                store_host=bytes(8),
            )
        )
        record[84:88] = b"\x7f\xff\xff\xff"
        broker.ask(1, body=bytes(record))
        broker.ask(2, group="others")
        broker.ask(3)
        await until(lambda: broker.ends)
    assert [end.msg_id for end in broker.ends] == ["K3"]


@pytest.mark.parametrize("in_threads", [True, False])
async def test_only_so_many_checks_run_and_wait(broker: Broker, in_threads: bool) -> None:
    running = most = 0
    go = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def check(message: MessageExt) -> TransactionState:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go.wait()
        running -= 1
        return COMMIT

    def check_in_thread(message: MessageExt) -> TransactionState:
        return asyncio.run_coroutine_threadsafe(check(message), loop).result()

    checker = check_in_thread if in_threads else check
    config = TransactionConfig(check_concurrency=2, check_request_hold_max=3)
    async with TransactionProducer(GROUP, commit, checker, broker.address, config=config) as producer:
        await until(lambda: GROUP in broker.producers)
        for number in range(10):
            broker.ask(number)
            if number == 1:
                await until(lambda: running == 2)
        sent = await producer.send_in_transaction(Message("T", b"after the questions"))
        go.set()
        await until(lambda: len(broker.ends) == 6)
        await asyncio.sleep(0)
        broker.ask(10)
        await until(lambda: len(broker.ends) == 7)
    assert most == 2
    assert {end.msg_id for end in broker.ends} == {"K0", "K1", "K2", "K3", "K4", "K10", sent.msg_id}


async def test_a_producer_that_closes_answers_no_more(broker: Broker) -> None:
    began = asyncio.Event()

    async def check(message: MessageExt) -> TransactionState:
        began.set()
        await asyncio.Event().wait()
        return COMMIT

    async with TransactionProducer(GROUP, commit, check, broker.address):
        await until(lambda: GROUP in broker.producers)
        broker.ask(1)
        broker.ask(2)
        await began.wait()
    assert not broker.ends
