"""Effectively-once delivery, with any broker: before a task adds rows to a queue, it asks the broker which of them are
stored.

Theory of operation. A row has the same message id (UNIQ_KEY) whenever it is sent, and a broker finds messages by their
ids in its index (QUERY_MESSAGE). A task sends one queue's rows in order, one request at a time. So the rows that an
earlier attempt stored are the queue's first rows:

1. Before a queue's first chunk is sent, one query checks whether its first row is stored. If that row is not stored, no
   row is stored, and no further queries are needed. If it is stored, a binary search finds the first row that is not
   stored.
2. If a request's result is unknown (because the broker was too busy or the connection broke), the chunk is searched
   again in the same way, and only its unstored end is resent.
3. After the last chunk, the task verifies that the broker finds the last row by its id. It does this once for each
   broker and worker. A broker whose index is switched off finds nothing, so every row of a repeated task would be
   stored twice.

Faults. A broker answers a send request as soon as its log contains the message. The index follows several milliseconds
later, so a stored message may not be found yet. Therefore a broker is queried only after its index contains all
messages that were in its log when the search began (:func:`await_dispatch`). A request of a dead attempt or a broken
connection may still reach the log, so the task first waits ``STORE_SECONDS``. Only a request that takes longer to
arrive can store a row twice; :mod:`~cometmq.spark.sink.exactly_once` excludes even this case. A row in a topic that was
later deleted and recreated does not count as stored, although the index finds it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from cometmq.client.blocking.cluster import ANSWER_SECONDS, Patience
from cometmq.client.blocking.connections import borrowed
from cometmq.client.queries import pull_header
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.message.properties import UNIQ_KEY
from cometmq.message.record import StoredRecord, decode_record, iter_records
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.bodies import BodyError, KVTable, decode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.errors import denial_step
from cometmq.remoting.headers import PullMessageResponseHeader, QueryMessageRequestHeader
from cometmq.remoting.security import Security
from cometmq.spark.errors import SinkError
from cometmq.spark.options import DEFAULT_GROUP
from cometmq.spark.records.queues import Queue
from cometmq.spark.sink.delivery import RowSelection
from cometmq.spark.sink.encoding import TaskIdentity
from cometmq.spark.sink.options import SinkOptions
from cometmq.spark.sink.placing import Chunk, WriteRoute

STORE_SECONDS: Final = 1.0
"""Time that a broker may need to store a request whose connection broke or whose sender was killed."""
PROOF_SECONDS: Final = 10.0
"""Time that a broker may need to index a task's last message, before its index is assumed to be switched off."""
UNTOLD_SECONDS: Final = 1.0
"""Time to wait for a broker's index if the broker does not report its progress."""
_PAUSE_SECONDS: Final = 0.1
_DISPATCH_PAUSE_SECONDS: Final = 0.01
_QUERY_MESSAGES: Final = 32
_FOR_EVER_MS: Final = 2**63 - 1

_proven: set[str] = set()
"""Addresses of the brokers whose index is known to work. The set is kept as long as this worker runs."""


class EffectivelyOnce(RowSelection):
    """The row selection that searches brokers for one task's rows."""

    def __init__(self, options: SinkOptions, identity: TaskIdentity, attempt: int = 0) -> None:
        self._options = options
        self._is_unsettled = attempt > 0
        """True while a request from another attempt or a broken connection may still arrive."""
        self._identity = identity
        self._answer_s = min(ANSWER_SECONDS, options.send_timeout_s)
        self._masters: dict[str, str] = {}
        self._indexed: set[str] = set()
        """Brokers whose index contains the rows of earlier attempts."""
        self._is_new: set[Queue] = set()
        """Queues in which all later rows of this task are new, because earlier attempts have stored none of them."""
        self._last_of: dict[str, Chunk] = {}

    def choose_queues(self, _topic: str, route: WriteRoute) -> WriteRoute:
        """Return the current queues of the topic."""
        self._masters.update(route.masters)
        return route

    def unsent(self, chunk: Chunk) -> Chunk | None:
        """Return the rows that the broker has not stored.

        :raises SinkError: the broker does not answer.
        """
        unsent = chunk if chunk.queue in self._is_new else self._search(chunk)
        if unsent is not None:
            self._is_new.add(chunk.queue)
            self._last_of[chunk.queue.broker] = unsent
        return unsent

    def still_unsent(self, chunk: Chunk) -> Chunk | None:
        """Return the rows that the broker has not stored after some time."""
        self._indexed.discard(chunk.queue.broker)
        self._is_unsettled = True
        return self._search(chunk)

    def finish(self) -> None:
        """Verify that each broker finds messages by their ids. Each broker is verified only once.

        :raises SinkError: the broker does not find them.
        """
        for broker, chunk in self._last_of.items():
            address = self._masters[broker]
            give_up_at = SYSTEM_CLOCK.monotonic() + PROOF_SECONDS
            while address not in _proven:
                if self._is_stored(chunk, len(chunk) - 1):
                    _proven.add(address)
                elif SYSTEM_CLOCK.monotonic() > give_up_at:
                    raise SinkError(
                        f"broker {broker} ({address}) does not find messages by their ids, which effectively-once "
                        "requires",
                        next_step="set messageIndexEnable=true at the broker, or use at-least-once",
                    )
                else:
                    threading.Event().wait(_PAUSE_SECONDS)

    def _search(self, chunk: Chunk) -> Chunk | None:
        """Return the part of the chunk that is not stored. The stored rows are at its beginning."""
        if not self._is_stored(chunk, 0):
            return chunk
        if self._is_stored(chunk, len(chunk) - 1):
            return None
        known, unknown = 0, len(chunk) - 1
        while unknown - known > 1:
            middle = (known + unknown) // 2
            if self._is_stored(chunk, middle):
                known = middle
            else:
                unknown = middle
        return chunk.part(unknown, len(chunk))

    def _is_stored(self, chunk: Chunk, index: int) -> bool:
        queue = chunk.queue
        message_id = self._identity.message_id(int(chunk.rows[index]))
        header = QueryMessageRequestHeader(
            topic=queue.topic,
            key=message_id,
            max_num=_QUERY_MESSAGES,
            begin_timestamp=0,
            end_timestamp=_FOR_EVER_MS,
            unique_key_query=True,
        )
        address, security = self._masters[queue.broker], self._options.access.security()
        patience = Patience(SYSTEM_CLOCK, self._options.send_timeout_s, _PAUSE_SECONDS)
        while True:
            try:
                if queue.broker not in self._indexed:
                    if self._is_unsettled:
                        threading.Event().wait(STORE_SECONDS)
                    await_dispatch(queue.broker, address, security, patience_s=self._answer_s, clock=SYSTEM_CLOCK)
                    self._indexed.add(queue.broker)
                with borrowed(address, security, self._answer_s) as link:
                    answer = link.invoke(RequestCode.QUERY_MESSAGE, header)
                if answer.code == ResponseCode.QUERY_NOT_FOUND:
                    return False
                if answer.code == ResponseCode.SUCCESS:
                    found = (of for of in iter_records(answer.body) if of.properties.get(UNIQ_KEY) == message_id)
                    return any(_is_in_queue(link, queue, record) for record in found)
                reason = f"code {answer.code}: {answer.remark}"
                if advice := denial_step(answer.code, answer.remark):
                    raise SinkError(
                        f"broker {queue.broker} does not report which rows are stored: {reason}", next_step=advice
                    )
            except BlockingConnectionError as error:
                reason = error.message
            if not patience.again():
                raise SinkError(
                    f"broker {queue.broker} does not report whether messages are stored: {reason}",
                    next_step="check that it is running, or raise option sendTimeoutMs",
                )


def await_dispatch(broker: str, address: str, security: Security, *, patience_s: float, clock: Clock) -> None:
    """Wait until a broker's index contains all messages that the broker has acknowledged.

    The broker's runtime information (GET_BROKER_RUNTIME_INFO, ``AdminBrokerProcessor.prepareRuntimeInfo``) contains the
    end of the log, followed by the number of bytes that are not dispatched yet, which the broker reads later. Their
    difference never exceeds the dispatched offset.

    :param patience_s: time limit in seconds, for the entire wait and for each answer.
    :raises BlockingConnectionError: the broker does not answer.
    :raises SinkError: the index does not reach this state within ``patience_s``.
    """
    wanted: int | None = None
    give_up_at = clock.monotonic() + patience_s
    while True:
        with borrowed(address, security, patience_s) as link:
            answer = link.invoke(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = _table(answer.body) if answer.code == ResponseCode.SUCCESS else {}
        try:
            end, behind = int(table["commitLogMaxOffset"]), int(table["dispatchBehindBytes"])
        except (KeyError, ValueError):
            threading.Event().wait(UNTOLD_SECONDS)
            return
        wanted = end if wanted is None else wanted
        if end - behind >= wanted:
            return
        if clock.monotonic() > give_up_at:
            raise SinkError(
                f"the index of broker {broker} ({address}) is {behind} bytes behind its log, so it is unknown "
                "which rows are stored",
                next_step="check whether its disk is slow or full, or raise option sendTimeoutMs",
            )
        threading.Event().wait(_DISPATCH_PAUSE_SECONDS)


def _is_in_queue(link: BlockingConnection, queue: Queue, record: StoredRecord) -> bool:
    """Return True if an indexed message is in its queue. The index also contains messages from deleted topics.

    A message that expired from its queue, or about which the broker returns no information, counts as being in its
    queue.
    """
    place = Queue(record.topic, queue.broker, record.queue_id)
    answer = link.invoke(RequestCode.PULL_MESSAGE, pull_header(place, record.queue_offset, 1, DEFAULT_GROUP))
    if answer.code == ResponseCode.SUCCESS:
        there = decode_record(answer.body, check_crc=False)
        return there.queue_offset != record.queue_offset or there.physical_offset == record.physical_offset
    if answer.code not in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):
        return True
    return record.queue_offset < answer.header(PullMessageResponseHeader).max_offset


def _table(body: bytes) -> Mapping[str, str]:
    try:
        return decode_body(KVTable, body).table
    except BodyError:
        return {}
