"""Chunks on their way to a broker that is busy, refuses, hangs up or says nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from tests.spark.sinking import rows_of

from cometmq.client.blocking.outbox import Delivered
from cometmq.limits import MAX_SINK_IN_FLIGHT_BYTES
from cometmq.remoting.bodies import BrokerData, QueueData, TopicRouteData, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand, decode_command
from cometmq.remoting.frame import FrameDecoder
from cometmq.spark.errors import SinkError
from cometmq.spark.records.queues import Queue
from cometmq.spark.sink.delivery import Delivery, RowSelection
from cometmq.spark.sink.encoding import TaskIdentity, encode_rows
from cometmq.spark.sink.options import parse_sink_options
from cometmq.spark.sink.placing import Placing, Routes, WriteRoute
from cometmq.spark.sink.writer import SinkCommit, summary

HANG_UP = -1
SAY_NOTHING = -2

Peer = Callable[..., tuple[str, list[RemotingCommand]]]


@pytest.fixture
def peer() -> Iterator[Peer]:
    """A broker, and its nameserver, that answers sends with given codes, and then with success."""
    listener = socket.create_server(("127.0.0.1", 0))
    script: list[int] = []
    seen: list[RemotingCommand] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer_all, args=(connection,), daemon=True).start()

    def route() -> TopicRouteData:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        queues = QueueData(broker_name="b", read_queue_nums=3, write_queue_nums=3, perm=6, topic_sys_flag=0)
        broker = BrokerData(cluster="C", broker_name="b", broker_addrs={0: address})
        return TopicRouteData(queue_datas=[queues], broker_datas=[broker])

    def answer_all(connection: socket.socket) -> None:
        with connection:
            answer_each(connection)

    def answer_each(connection: socket.socket) -> None:
        decoder = FrameDecoder()
        while data := connection.recv(1 << 20):
            for frame in decoder.feed(data):
                request = decode_command(frame)
                if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                    answer = RemotingCommand(code=0, opaque=request.opaque, flag=1, body=encode_body(route()))
                    connection.sendall(answer.encode())
                    continue
                seen.append(request)
                code = script.pop(0) if script else ResponseCode.SUCCESS
                if code == HANG_UP:
                    return
                if code != SAY_NOTHING:
                    fields = {"msgId": "", "queueId": "0", "queueOffset": "0"}
                    remark = None if code == ResponseCode.SUCCESS else "the words of the broker"
                    answer = RemotingCommand(code=code, opaque=request.opaque, flag=1, remark=remark, ext_fields=fields)
                    connection.sendall(answer.encode())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    def begin(*codes: int) -> tuple[str, list[RemotingCommand]]:
        script[:] = codes
        return f"127.0.0.1:{listener.getsockname()[1]}", seen

    yield begin
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(60)


def deliver(address: str, count: int = 5, queues: int = 1, body_bytes: int = 1, **more: str) -> Delivered:
    """Send ``count`` rows to a broker at that address."""
    options = parse_sink_options({"namesrvAddr": address, "topic": "T", "sendTimeoutMs": "3000"} | more)
    identity = TaskIdentity("q", 0, 0)
    route = WriteRoute(tuple(Queue("T", "b", number) for number in range(queues)), {"b": address})
    routes = Routes(options, {"T": route})
    delivery = Delivery(options, routes, RowSelection())
    bodies = [(b"%d" % number).ljust(body_bytes) for number in range(count)]
    rows = rows_of([{"body": body, "queueId": number % queues} for number, body in enumerate(bodies)])
    try:
        for chunk in Placing(options, routes, 0).chunks(encode_rows(rows, 0, identity, options)):
            delivery.deliver(chunk)
        return delivery.finish()
    finally:
        delivery.close()


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    ],
)
def test_a_broker_that_cannot_now_is_asked_again(peer: Peer, code: int) -> None:
    address, seen = peer(code, code, ResponseCode.SUCCESS)
    done = deliver(address)
    assert (done.messages, done.requests, done.repeated) == (5, 3, 2)
    assert len({request.body for request in seen}) == 1
    assert {request.code for request in seen} == {RequestCode.SEND_BATCH_MESSAGE}


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (ResponseCode.NO_PERMISSION, "does not allow writing"),
        (ResponseCode.TOPIC_NOT_EXIST, "create the topic on this broker"),
        (ResponseCode.MESSAGE_ILLEGAL, "must not exceed the maxMessageSize there"),
        (ResponseCode.PRODUCER_FENCED, "another attempt of this task has taken over"),
        (ResponseCode.SEQUENCE_GAP, "lost acknowledged messages"),
    ],
)
def test_a_broker_that_refuses_fails_the_task_at_once(peer: Peer, code: int, advice: str) -> None:
    address, seen = peer(code)
    words = (
        rf"broker b rejected 5 messages to T@b:0 .rows 0 to 4 .*: code {int(code)}: the words of the broker .*{advice}"
    )
    with pytest.raises(SinkError, match=words):
        deliver(address)
    assert len(seen) == 1


def test_a_broker_that_hangs_up_gets_everything_unanswered_again(peer: Peer) -> None:
    address, seen = peer(ResponseCode.SUCCESS, SAY_NOTHING, HANG_UP)
    done = deliver(address, count=9, queues=3)
    assert (done.messages, done.repeated) == (9, 2)
    queues = [request.ext_fields["e"] for request in seen]
    assert queues == ["0", "1", "2", "1", "2"]


def test_pauses_double_with_each_round_of_requests_however_many_queues_there_are(peer: Peer) -> None:
    """Doubled with each answer, they would come to more than a minute and a half."""
    address, _ = peer(*[ResponseCode.SYSTEM_BUSY] * 60)
    done = deliver(address, count=20, queues=20, sendTimeoutMs="30000")
    assert (done.messages, done.requests, done.repeated) == (20, 80, 60)


def test_a_broker_that_stays_busy_fails_the_task_in_time(peer: Peer) -> None:
    address, _ = peer(*[ResponseCode.SYSTEM_BUSY] * 100)
    words = r"not acknowledged within 300 ms; broker b responded with code 2: the words .*raise option sendTimeoutMs"
    with pytest.raises(SinkError, match=words):
        deliver(address, sendTimeoutMs="300")


def test_a_broker_that_says_nothing_fails_the_task_in_time(peer: Peer) -> None:
    address, _ = peer(*[SAY_NOTHING] * 100)
    with pytest.raises(SinkError, match=r"broker b does not respond: .* did not respond in time"):
        deliver(address, sendTimeoutMs="300")


def test_the_bytes_that_wait_for_answers_are_limited(peer: Peer) -> None:
    address, seen = peer(*[SAY_NOTHING] * 100)
    with pytest.raises(SinkError, match="did not respond in time"):
        deliver(address, count=40, queues=40, body_bytes=100_000, sendTimeoutMs="300")
    assert sum(len(request.body) for request in seen) <= MAX_SINK_IN_FLIGHT_BYTES


def test_what_tasks_did_is_told_in_one_line() -> None:
    commits = [SinkCommit(10, 1000, 2, 0), SinkCommit(5, 500, 1, 3, 7), None]
    assert summary(commits) == (
        "15 messages, 1500 bytes in 3 requests of 2 tasks, 3 requests resent, 7 messages were already stored"
    )
    assert summary(commits[:1]) == "10 messages, 1000 bytes in 2 requests of 1 tasks"


@pytest.mark.parametrize(
    ("body_bytes", "firsts"),
    [
        (8, [0, 512, 1024]),  # brought together: one request for each queue
        (1024, [0, 512, 1024, 1536, 2048, 2560]),  # as they stand: 512 rows of more than half a megabyte each
    ],
)
def test_small_rows_of_a_queue_are_brought_together_and_large_ones_are_not_copied(
    body_bytes: int, firsts: list[int]
) -> None:
    options = parse_sink_options({"namesrvAddr": "127.0.0.1:9", "topic": "T"})
    route = WriteRoute(tuple(Queue("T", "b", number) for number in range(3)), {"b": "127.0.0.1:9"})
    rows = rows_of([{"body": b"%d" % number * body_bytes} for number in range(9)]).take(
        pa.array([number % 9 for number in range(6 * 512)])
    )
    encoded = encode_rows(rows, 0, TaskIdentity("q", 0, 0), options)
    chunks = list(Placing(options, Routes(options, {"T": route}), 0).chunks(encoded))
    assert [int(chunk.rows[0]) for chunk in chunks] == firsts
    of_queue = {
        queue: [row for chunk in chunks if chunk.queue == queue for row in chunk.rows] for queue in route.queues
    }
    assert all(found == sorted(found) for found in of_queue.values())
    assert sorted(row for found in of_queue.values() for row in found) == list(range(6 * 512))
    assert all(row // 512 % 3 == queue.queue_id for queue, found in of_queue.items() for row in found)
