"""Clients that put a set of brokers under load and write down what they ask and are answered.

Raw connections send each message once, so that each answer is known; CometMQ's own producer sends again by itself.
Pollers read from every broker of the route, slaves too. A group commits offsets and reads them back.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from tests.failover.checker.history import Commit, History, Outcome, Poll, Queue, Send
from tests.helpers.pace import Patience
from tests.helpers.waiting import block_for, real_time

from cometmq.client import Message, Producer
from cometmq.client.send_result import SendStatus
from cometmq.errors import CometMQError
from cometmq.message.ids import decode_offset_msg_id
from cometmq.message.record import iter_records
from cometmq.message.sysflag import PULL_SUBSCRIPTION
from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.bodies import TopicRouteData, decode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import (
    GetRouteInfoRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)

TOPIC: Final = "Stories"
GROUP: Final = "nemesis-readers"
ANSWER_S: Final = 5.0
"""A client gives up after this time; then the outcome is not known."""
RETRIES: Final = 2
PAUSE_S: Final = 0.02
"""The mean pause of each client between two requests, in stories of minutes."""
SHORT_PAUSE_S: Final = 0.04
"""That of tests: with less, the load is most of their work."""
_REFUSED: Final = {
    ResponseCode.NO_PERMISSION,
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.MESSAGE_ILLEGAL,
}
"""A broker gives these answers before it appends anything."""
_FILL: Final = "|"


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What the load consists of.

    :param namesrvs: addresses of the nameservers.
    :param name_of: returns the name of the broker at an address.
    :param prefix: of the names of all clients, which differ in all loads of one history.
    :param pause_s: the mean pause of each client between two requests.
    """

    namesrvs: Sequence[str]
    name_of: Callable[[str], str]
    seed: int = 1
    prefix: str = ""
    queues: int = 4
    producers: int = 3
    own_producers: int = 1
    pollers: int = 2
    pause_s: float = PAUSE_S
    body_bytes: int = 1000


class _Client:
    """Connections to the brokers of a route, which are renewed after each failure."""

    def __init__(self, options: LoadOptions, rng: random.Random) -> None:
        self._options = options
        self._rng = rng
        self._connections: dict[str, BlockingConnection] = {}
        self.route: dict[int, str] = {}

    def find_route(self) -> None:
        """Ask any nameserver for the brokers.

        :raises CometMQError: it does not answer, or does not know the topic.
        """
        self.route = route_of(self._rng.choice(self._options.namesrvs))

    def connection(self, address: str) -> BlockingConnection:
        """Return the connection to a broker.

        :raises CometMQError: it refuses.
        """
        if address not in self._connections:
            self._connections[address] = BlockingConnection(address, ANSWER_S)
        return self._connections[address]

    def drop(self, address: str) -> None:
        """Close a connection that failed, and forget the route."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()
        self.route = {}

    def close(self) -> None:
        """Close all connections."""
        for address in list(self._connections):
            self.drop(address)


def route_of(namesrv: str) -> dict[int, str]:
    """Return the addresses of the set by broker id.

    :raises CometMQError: the nameserver does not answer, or knows no broker.
    """
    with BlockingConnection(namesrv, ANSWER_S) as connection:
        for topic in (TOPIC, "TBW102"):
            answer = connection.invoke(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic))
            if answer.code == ResponseCode.SUCCESS:
                return dict(decode_body(TopicRouteData, answer.body).broker_datas[0].broker_addrs)
    return {}


class Load:
    """The clients, each in a thread, until the load ends."""

    def __init__(self, history: History, options: LoadOptions) -> None:
        self._history = history
        self._options = options
        self._stopping = threading.Event()
        self._rng = random.Random(options.seed)
        self._errors: list[BaseException] = []
        self.acknowledged = 0
        self.last_ok = time.monotonic()
        """The moment at which the last acknowledged message was sent."""

    @contextmanager
    def running(self) -> Iterator[Load]:
        """Send, poll and commit during the block.

        :raises ExceptionGroup: a client ended with an error that is not one of the product's: the load is wrong.
        """
        work = [
            *((self._produce, f"p{n}") for n in range(self._options.producers)),
            *((self._produce_with_retries, f"r{n}") for n in range(self._options.own_producers)),
            *((self._poll, f"c{n}") for n in range(self._options.pollers)),
            (self._commit, "g0"),
        ]
        threads = [
            threading.Thread(
                target=target, args=(self._options.prefix + name, random.Random(self._rng.random())), name=name
            )
            for target, name in work
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join()
            if self._errors:
                raise BaseExceptionGroup("clients of the load have failed", self._errors)

    def _watched(self, work: Callable[[str, random.Random], None], name: str, rng: random.Random) -> None:
        """Run a client; its error is raised at the end, so that a history is never right because nobody was there."""
        try:
            work(name, rng)
        except BaseException as error:
            self._errors.append(error)

    def _rest(self, rng: random.Random) -> None:
        self._stopping.wait(rng.uniform(0, 2 * self._options.pause_s))

    def _steps(self, rng: random.Random) -> Iterator[_Client]:
        """Yield a client with a route until the load ends."""
        client = _Client(self._options, rng)
        while not self._stopping.is_set():
            self._rest(rng)
            if not client.route:
                with suppress(CometMQError, TimeoutError):
                    client.find_route()
                if not client.route:
                    continue
            yield client
        client.close()

    # --- producers ------------------------------------------------------------------------------
    def _produce(self, name: str, rng: random.Random) -> None:
        for number, client in enumerate(self._steps(rng)):
            address = client.route.get(0)
            if address is None:
                client.route = {}
                continue
            self._send(client, address, f"{name}-{number}", Send(name, "", Queue(TOPIC, 0), 0, 0, Outcome.INFO), rng)

    def _send(self, client: _Client, address: str, value: str, one: Send, rng: random.Random) -> None:
        queue = Queue(TOPIC, rng.randrange(self._options.queues))
        began = time.monotonic()
        outcome, note, answer = Outcome.INFO, "", None
        try:
            connection = client.connection(address)
        except CometMQError as error:  # nothing was sent
            outcome, note = Outcome.FAIL, str(error)
        else:
            try:
                body = value + _FILL * rng.randrange(self._options.body_bytes)
                answer = connection.invoke(
                    RequestCode.SEND_MESSAGE_V2, _send_header(queue, self._options), body.encode()
                )
                outcome, note = _outcome_of(answer)
            except CometMQError as error:
                note = str(error)
        offset = log_offset = None
        if outcome is Outcome.OK and answer is not None:
            header = answer.header(SendMessageResponseHeader)
            offset, log_offset = header.queue_offset, decode_offset_msg_id(header.msg_id)[2]
            self._was_acknowledged(began)
        else:
            client.drop(address)
        server = self._options.name_of(address)
        ended = time.monotonic()
        self._history.add(
            Send(one.client, value, queue, began, ended, outcome, server, offset, log_offset, note=note[:200])
        )

    def _was_acknowledged(self, began: float) -> None:
        self.acknowledged += 1
        self.last_ok = max(self.last_ok, began)

    def _produce_with_retries(self, name: str, rng: random.Random) -> None:
        asyncio.run(self._produce_own(name, rng))

    async def _produce_own(self, name: str, rng: random.Random) -> None:
        producer = Producer("nemesis", ";".join(self._options.namesrvs))
        await producer.start()
        number = 0
        try:
            while not self._stopping.is_set():
                await real_time(rng.uniform(0, 2 * self._options.pause_s))
                number += 1
                began = time.monotonic()
                value, queue = f"{name}-{number}", Queue(TOPIC, -1)
                outcome, note, offset, log_offset = Outcome.INFO, "", None, None
                try:
                    result = await producer.send(Message(TOPIC, value.encode()))
                    queue = Queue(TOPIC, result.queue.queue_id)
                    if result.status is SendStatus.SEND_OK:
                        outcome = Outcome.OK
                        offset, log_offset = result.queue_offset, decode_offset_msg_id(result.offset_msg_id)[2]
                        self._was_acknowledged(began)
                    note = result.status.value
                except (CometMQError, TimeoutError) as error:
                    note = str(error)
                self._history.add(
                    Send(
                        name,
                        value,
                        queue,
                        began,
                        time.monotonic(),
                        outcome,
                        "",
                        offset,
                        log_offset,
                        1 + RETRIES,
                        note[:200],
                    )
                )
        finally:
            await producer.close()

    # --- consumers ------------------------------------------------------------------------------
    def _poll(self, name: str, rng: random.Random) -> None:
        offsets = dict.fromkeys(range(self._options.queues), 0)
        for client in self._steps(rng):
            address = rng.choice(list(client.route.values()))
            queue = rng.randrange(self._options.queues)
            try:
                poll, after = pull(client.connection(address), Queue(TOPIC, queue), offsets[queue], name)
            except (CometMQError, TimeoutError):
                client.drop(address)
                continue
            if poll is not None:
                self._history.add(_at(poll, self._options.name_of(address)))
                offsets[queue] = after if rng.random() < 0.95 else rng.randrange(after + 1)

    def _commit(self, name: str, rng: random.Random) -> None:
        committed = dict.fromkeys(range(self._options.queues), 0)
        for client in self._steps(rng):
            address = client.route.get(0)
            if address is None:
                client.route = {}
                continue
            queue = rng.randrange(self._options.queues)
            is_write = rng.random() < 0.5
            offset = committed[queue] + rng.randrange(1, 5) if is_write else 0
            began, outcome = time.monotonic(), Outcome.INFO
            try:
                connection = client.connection(address)
                if is_write:
                    committed[queue] = offset
                    answer = connection.invoke(RequestCode.UPDATE_CONSUMER_OFFSET, _commit_header(queue, offset))
                else:
                    answer = connection.invoke(RequestCode.QUERY_CONSUMER_OFFSET, _query_header(queue))
                if answer.code == ResponseCode.SUCCESS:
                    outcome = Outcome.OK
                    if not is_write:
                        offset = answer.header(QueryConsumerOffsetResponseHeader).offset
                elif answer.code == ResponseCode.QUERY_NOT_FOUND:
                    outcome = Outcome.OK
                else:
                    client.drop(address)
            except (CometMQError, TimeoutError):
                client.drop(address)
            place, server = Queue(TOPIC, queue), self._options.name_of(address)
            self._history.add(Commit(name, GROUP, place, began, time.monotonic(), is_write, offset, outcome, server))


# --- requests -------------------------------------------------------------------------------------
def pull(connection: BlockingConnection, queue: Queue, offset: int, client: str) -> tuple[Poll | None, int]:
    """Pull once; return what was read, or ``None`` after another answer, and the offset after it.

    :raises CometMQError: there is no answer.
    """
    began = time.monotonic()
    answer = connection.invoke(RequestCode.PULL_MESSAGE, _pull_header(queue, offset))
    if answer.code != ResponseCode.SUCCESS:
        return None, offset
    records = list(iter_records(answer.body, check_crc=True))
    read = tuple((record.queue_offset, record.body.decode().partition(_FILL)[0]) for record in records)
    after = answer.header(PullMessageResponseHeader).next_begin_offset
    return Poll(client, queue, began, time.monotonic(), offset, read, connection.address), after


def read_all(address: str, queues: int, name: str) -> list[Poll]:
    """Read every queue from the first message to its end.

    :raises CometMQError: there is no answer.
    """
    polls = []
    with BlockingConnection(address, ANSWER_S) as connection:
        for number in range(queues):
            offset = 0
            while True:
                poll, offset = pull(connection, Queue(TOPIC, number), offset, "final")
                if poll is None:
                    break
                polls.append(_at(poll, name))
    return polls


def wait_for_sends(load: Load, within_s: float) -> float:
    """Wait until a message that is sent from now on is acknowledged; return the seconds that it took.

    :raises TimeoutError: none is.
    """
    begun, patience = time.monotonic(), Patience(within_s)
    while load.last_ok <= begun:
        if patience.is_over:
            raise TimeoutError(f"no message was acknowledged for {within_s:g} s")
        block_for(0.02)
    return load.last_ok - begun


def _at(poll: Poll, name: str) -> Poll:
    return Poll(poll.client, poll.queue, poll.began, poll.ended, poll.asked, poll.read, name)


def _outcome_of(answer: RemotingCommand) -> tuple[Outcome, str]:
    if answer.code == ResponseCode.SUCCESS:
        return Outcome.OK, ""
    note = f"{answer.code} {answer.remark or ''}"
    return (Outcome.FAIL if answer.code in _REFUSED else Outcome.INFO), note


def _send_header(queue: Queue, options: LoadOptions) -> SendMessageRequestHeaderV2:
    return SendMessageRequestHeaderV2(
        producer_group="nemesis",
        topic=TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=options.queues,
        queue_id=queue.number,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
        properties="",
    )


def _pull_header(queue: Queue, offset: int) -> PullMessageRequestHeader:
    return PullMessageRequestHeader(
        consumer_group=GROUP,
        topic=queue.topic,
        queue_id=queue.number,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=PULL_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
    )


def _commit_header(queue: int, offset: int) -> UpdateConsumerOffsetRequestHeader:
    return UpdateConsumerOffsetRequestHeader(consumer_group=GROUP, topic=TOPIC, queue_id=queue, commit_offset=offset)


def _query_header(queue: int) -> QueryConsumerOffsetRequestHeader:
    return QueryConsumerOffsetRequestHeader(consumer_group=GROUP, topic=TOPIC, queue_id=queue)
