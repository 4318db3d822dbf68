"""Effectively once, with any broker: before a task adds rows to a queue it asks the broker which of them are there.

The ids of messages (UNIQ_KEY) are the same whenever a row is sent, and brokers find messages by them (QUERY_MESSAGE,
the index). The rows of one queue are stored in their order, so what an earlier attempt stored is the beginning of them:
one question tells that there is nothing, and a binary search finds where it ends. After that the queue is asked no
more, until a connection breaks and nobody knows what became of a request. Before a broker is asked its index has to
hold what the broker acknowledged to an earlier attempt (:mod:`cometmq.spark.sink.dispatch`).
"""

from __future__ import annotations

import itertools
import threading
from typing import Final

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.message.properties import UNIQ_KEY
from cometmq.message.record import iter_records
from cometmq.remoting.blocking import BlockingConnectionError
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.denials import denial_step
from cometmq.remoting.headers import QueryMessageRequestHeader
from cometmq.spark.connections import borrowed
from cometmq.spark.errors import SinkError
from cometmq.spark.queues import Queue
from cometmq.spark.sink.dispatch import await_dispatch
from cometmq.spark.sink.identity import TaskIdentity
from cometmq.spark.sink.options import SinkOptions
from cometmq.spark.sink.placing import Chunk
from cometmq.spark.sink.routes import ANSWER_SECONDS, WriteRoute

STORE_SECONDS: Final = 1.0
"""What a broker is given to store a request whose connection broke or whose sender died, before it is asked."""
PROOF_SECONDS: Final = 10.0
"""What a broker is given to index the last message of a task, before its index is taken for switched off."""
_PAUSE_SECONDS: Final = 0.1
_QUERY_MESSAGES: Final = 32
_FOR_EVER_MS: Final = 2**63 - 1

_proven: set[str] = set()
"""Addresses of the brokers whose index is known to work, for the life of this worker."""


class EffectivelyOnce:
    """Looks for the rows of one task."""

    def __init__(
        self, options: SinkOptions, identity: TaskIdentity, attempt: int = 0, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._options = options
        self._is_unsettled = attempt > 0
        """Whether a request may be on its way to a store of which nobody waits for the answer any more."""
        self._identity = identity
        self._clock = clock
        self._answer_s = min(ANSWER_SECONDS, options.send_timeout_s)
        self._masters: dict[str, str] = {}
        self._indexed: set[str] = set()
        """Brokers whose index holds what earlier attempts sent."""
        self._is_new: set[Queue] = set()
        self._last_of: dict[str, Chunk] = {}

    def settle(self, _topic: str, route: WriteRoute) -> WriteRoute:
        """The queues that the topic has now."""
        self._masters.update(route.masters)
        return route

    def unsent(self, chunk: Chunk) -> Chunk | None:
        """The rows that the broker does not find.

        :raises SinkError: it does not answer.
        """
        unsent = chunk if chunk.queue in self._is_new else self._search(chunk)
        if unsent is not None:
            self._is_new.add(chunk.queue)
            self._last_of[chunk.queue.broker] = unsent
        return unsent

    def properties(self, _chunk: Chunk) -> str:
        """None."""
        return ""

    def still_unsent(self, chunk: Chunk) -> Chunk | None:
        """The rows that the broker does not find, after some time to store them."""
        self._indexed.discard(chunk.queue.broker)
        self._is_unsettled = True
        return self._search(chunk)

    def finish(self) -> None:
        """Prove, once for each broker, that it finds messages by their ids.

        :raises SinkError: it does not.
        """
        for broker, chunk in self._last_of.items():
            address = self._masters[broker]
            give_up_at = self._clock.monotonic() + PROOF_SECONDS
            while address not in _proven:
                if self._is_stored(chunk, len(chunk) - 1):
                    _proven.add(address)
                elif self._clock.monotonic() > give_up_at:
                    raise SinkError(
                        f"broker {broker} ({address}) does not find messages by their ids, as effectively-once needs",
                        next_step="set messageIndexEnable=true at the broker, or use at-least-once",
                    )
                else:
                    threading.Event().wait(_PAUSE_SECONDS)

    def _search(self, chunk: Chunk) -> Chunk | None:
        """What of the chunk is not stored; what is stored is its beginning."""
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
        address, access = self._masters[queue.broker], self._options.access
        give_up_at = self._clock.monotonic() + self._options.send_timeout_s
        for attempt in itertools.count():
            try:
                if queue.broker not in self._indexed:
                    if self._is_unsettled:
                        threading.Event().wait(STORE_SECONDS)
                    await_dispatch(queue.broker, address, access, patience_s=self._answer_s, clock=self._clock)
                    self._indexed.add(queue.broker)
                with borrowed(address, access, self._answer_s) as link:
                    answer = link.invoke(RequestCode.QUERY_MESSAGE, header)
                if answer.code == ResponseCode.QUERY_NOT_FOUND:
                    return False
                if answer.code == ResponseCode.SUCCESS:
                    return any(record.properties.get(UNIQ_KEY) == message_id for record in iter_records(answer.body))
                reason = f"code {answer.code}: {answer.remark}"
                if advice := denial_step(answer.code, answer.remark):
                    raise SinkError(f"broker {queue.broker} does not say what is stored: {reason}", next_step=advice)
            except BlockingConnectionError as error:
                reason = error.message
            if attempt and self._clock.monotonic() > give_up_at:
                raise SinkError(
                    f"broker {queue.broker} does not say whether messages are stored: {reason}",
                    next_step="is it running? option sendTimeoutMs waits longer",
                )
            threading.Event().wait(_PAUSE_SECONDS)
        raise AssertionError("count() never ends")
