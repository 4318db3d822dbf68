"""Plain sends in the compiled core, from received bytes to responses (hot path).

Theory of operation. A connection passes its received bytes to the core. The core handles the frames at the beginning
that are plain sends: SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE in the form that clients write, for a topic
and queue that :class:`~cometmq.broker.turn.targets.SendTargets` has checked, without a detour, within all limits. The
core also handles transactions (:mod:`cometmq.broker.transaction.plain_transactions`), and gives messages their places
in lite topics whose names are plain ASCII (:mod:`cometmq.broker.lite.index`). The first other frame and
everything after it are left to Python, so that requests keep their order. The core adds its messages to its batch;
:meth:`PlainSends._put_batch` puts the batch into the turn.

Invariants.

* The core handles a message only if Python would store it, and its results are byte for byte the same as Python's: the
  record, the queue unit, the index entry, the answer.
* A batch is contiguous and follows the earlier records of the turn. Python puts the batch before it puts a record,
  marks a position in the turn or ends the turn, so that it finds queues and log offsets as if it had put the records
  itself.
* If accounts are checked, the core handles only messages that the connection's account has signed, for topics to which
  the account may publish. Python determines the account with the connection's first request, and again after each
  change of accounts.
* If quotas are set, the core handles no more messages than they allow when it starts on a connection's bytes, and no
  batches. If sends are sampled for the audit log, it handles no batches.
* The messages of a SEND_BATCH_MESSAGE are stored together or not at all. One that is compressed, or whose producer
  numbers its messages, is left to Python.
* The core knows a topic only while ``SendTargets`` knows it: a change of the topic or of the configuration removes it
  from the core.

Faults. The core raises no exception for any input. When the write fails, the whole turn is refused: the batch contains
the opaque of each of its requests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from cometmq.auth.audit.recorder import Sampler
from cometmq.auth.guard import AccessGuard
from cometmq.auth.quota.limiter import NO_BOUNDS, Limiter, Room
from cometmq.broker.limits import MAX_TURN_BYTES
from cometmq.broker.turn.answers import PlainAnswers
from cometmq.broker.turn.inner_message import Stored
from cometmq.broker.turn.store_turn import Place, StoreTurn
from cometmq.broker.turn.targets import RefusedError, SendTarget, SendTargets
from cometmq.limits import MAX_BATCH_MESSAGES, MAX_FRAME_BYTES, MAX_HEADER_BYTES, MAX_PROPERTIES_BYTES
from cometmq.message.properties import CLUSTER, join_properties
from cometmq.remoting.frame import FrameTaker
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import ConsumeQueue
from cometmq.store.write_batch import EncodedRecords

BATCH_BYTES: Final = 1024 * 1024
"""Number of bytes in a batch after which the core leaves the next message to Python."""


_NO_PLACE: Final = Stored(0, 0)

End = tuple[ServerConnection, int, bool, bool, int, bool]
"""A commit or rollback: connection, opaque, whether its header is binary, whether it is oneway, the half message's
queue offset, and whether it commits.
"""


class CoreTransactions(Protocol):
    """The transaction methods that the core needs."""

    def register(self, core: Any) -> None:
        """Let the core handle half messages, commits and rollbacks."""

    def ended(self, ends: list[End], are_alone: bool, outcome: Stored | RefusedError) -> None:
        """Answer END_TRANSACTION requests that have been stored or refused; ``are_alone`` if the batch has no other
        responses.
        """


class PlainSends:
    """The bridge to the compiled core: its current batch, and the topics whose sends it may handle.

    :param core: the module ``cometmq_core``.
    :param guard: checks permissions if they are enabled.
    :param sampler: chooses sends for the audit log, which Python handles.
    :param limiter: the quotas; connections need another ``taker`` when the first quota is set and when the last one is
        removed.
    """

    def __init__(
        self,
        core: Any,
        turn: StoreTurn,
        targets: SendTargets,
        transactions: CoreTransactions,
        guard: AccessGuard | None = None,
        limiter: Limiter | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        config = targets.config
        answers = turn.waiters.answers
        self._turn = turn
        self._guard = guard
        self._limiter = limiter
        self._sampler = sampler
        limits = (
            MAX_FRAME_BYTES,
            MAX_HEADER_BYTES,
            config.max_message_size,
            MAX_PROPERTIES_BYTES,
            turn.max_stored_bytes,
            min(MAX_TURN_BYTES, BATCH_BYTES),
            MAX_BATCH_MESSAGES,
        )
        self.waits: Final = turn.waits
        """True if responses wait for more than the write of their turn."""
        self.core: Final = core.PlainSends(
            self._open,
            answers.parts,
            join_properties({CLUSTER: config.broker_cluster_name}).encode(),
            answers.store_host,
            limits,
            config.message_index_enable,
            turn.waits,
        )
        self._transactions = transactions
        transactions.register(self.core)
        targets.on_queue.append(self._add)
        targets.on_forget.append(self._forget)

    def taker(self, connection: ServerConnection) -> FrameTaker:
        """Return the function that handles plain sends on a connection."""
        take: Callable[..., int] = partial(self.core.take, connection, connection.peer_bytes)
        limiter = None if self._limiter is None or not self._limiter.is_active else self._limiter
        if limiter is not None or self._sampler is not None:
            take = partial(self._take_some, connection, limiter, take)
        if self._guard is not None:
            take = _take_allowed(connection, self._guard, take)
        if not self._turn.waits:
            return take
        is_full = self._turn.waiters.full

        def take_unless_full(data: bytes, at: int) -> int:
            return at if is_full(connection) else take(data, at)

        return take_unless_full

    def _take_some(
        self,
        connection: ServerConnection,
        limiter: Limiter | None,
        take: Callable[..., int],
        data: bytes,
        at: int,
        account: Any = None,
    ) -> int:
        """Handle the messages that the quotas allow, up to the next audit sample."""
        room: Room | None = NO_BOUNDS if limiter is None else limiter.room(connection)
        sampler = self._sampler
        if room is not None and sampler is not None:
            group, messages, size = room
            room = (group, min(messages, sampler.left), size) if sampler.left else None
        if room is None:
            return at
        end = take(data, at, account, room)
        if end != at:
            messages = self.core.taken
            if sampler is not None:
                sampler.skip(messages)
            if limiter is not None:
                limiter.took(connection, room[0], messages, end - at)
        return end

    def _open(self) -> Place | None:
        """Begin a batch; return its position in the log, or ``None`` if nothing can be stored and Python must refuse
        it.
        """
        return self._turn.lend(self._put_batch)

    def _put_batch(self) -> None:
        """Add the core's batch to the turn."""
        batch = self.core.settle()
        if batch is None:
            return
        records, end, last_size, messages, queues, topics, hashes, offsets, answers, ends, batches, lites = batch
        encoded = EncodedRecords(records, end, last_size, messages, queues, hashes, offsets)
        self._turn.put_encoded(encoded, topics, PlainAnswers(answers, batches) if answers else None)
        for index, count in lites:
            assert self._turn.lite is not None
            self._turn.lite.put_all(index, count)
        if ends:
            self._turn.notify(partial(self._transactions.ended, ends, not answers), _NO_PLACE)

    def _add(self, target: SendTarget, queue: ConsumeQueue) -> None:
        lite = self._turn.lite
        if not queue.record_middle or (target.is_lite and lite is None):
            return
        self.core.add(target.topic, target, target.sys_flag, queue.queue_id, queue)
        if target.is_lite and lite is not None:
            self.core.add_lite(target.topic, *lite.for_core(target.topic))

    def _forget(self, topic: str | None) -> None:
        self._turn.take_back()
        if topic is None:
            self.core.clear()
            self._transactions.register(self.core)
        else:
            self.core.forget(topic)


def _take_allowed(connection: ServerConnection, guard: AccessGuard, take: Callable[..., int]) -> FrameTaker:
    """Return a function that handles sends signed by the connection's account, for topics to which it may publish.

    Python checks the connection's first request and all messages that the core does not handle.
    """
    publisher = guard.publisher

    def take_allowed(data: bytes, at: int) -> int:
        account = publisher(connection)
        return at if account is None else take(data, at, account)

    return take_allowed
