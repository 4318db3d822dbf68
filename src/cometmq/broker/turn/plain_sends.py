"""Plain sends by the compiled core: from a connection's bytes to records and answers, no object a message (hot path).

Theory of operation. A connection gives the core the bytes that it has received. The core takes the frames at their
beginning that are plain sends: SEND_MESSAGE and SEND_MESSAGE_V2 in the form that clients write, for a topic and queue
that :class:`~cometmq.broker.turn.targets.SendTargets` has checked, without a detour, within all limits. It takes
transactions, too (:mod:`cometmq.broker.transaction.plain_transactions`). The first other frame is left to Python with
all that follows, so that requests keep their order. What the core takes it puts into its batch;
:meth:`PlainSends._put_batch` puts the batch into the turn.

Invariants.

* The core takes a message only if Python would store it, and what it makes is byte for byte what Python makes: the
  record, the queue unit, the index entry, the answer.
* A batch lies in one piece behind what the turn had before. Python puts it before it puts a record, marks a place in
  the turn or ends it, so that it meets queues and log offsets as if it had put the records itself.
* Where accounts are checked, the core takes only what the account of the connection has signed, to topics that it may
  publish to. Python finds the account by the connection's first request, and again after each change of accounts.
* Where quotas are set, the core takes no more than they leave at the beginning of a look at a connection's bytes.
* The core knows a topic only while ``SendTargets`` does: a change of the topic or of the configuration makes it forget.

Faults. The core raises nothing for any input. When the write fails, the turn is refused whole: the batch has the opaque
of each of its requests.
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
from cometmq.limits import MAX_FRAME_BYTES, MAX_HEADER_BYTES, MAX_PROPERTIES_BYTES
from cometmq.message.properties import CLUSTER, join_properties
from cometmq.remoting.frame import FrameTaker
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import ConsumeQueue
from cometmq.store.write_batch import EncodedRecords

BATCH_BYTES: Final = 1024 * 1024
"""Records of a batch from which on the next message is Python's, which puts the batch: so no large buffer stays."""


_NO_PLACE: Final = Stored(0, 0)

End = tuple[ServerConnection, int, bool, bool, int, bool]
"""The end of a transaction: connection, opaque, whether its header is binary, whether it is oneway, the queue offset of
the half message, whether it is committed."""


class CoreTransactions(Protocol):
    """The transactions of the broker, as the core needs them."""

    def register(self, core: Any) -> None:
        """Let the core take half messages and ends."""

    def ended(self, ends: list[End], are_alone: bool, outcome: Stored | RefusedError) -> None:
        """Answer ends that are stored, or refused; ``are_alone`` when the batch has no other answers."""


class PlainSends:
    """The batch of the compiled core, and the topics that the core may take messages for.

    :param core: the module ``cometmq_core``.
    :param guard: checks who sends, where permissions are checked.
    :param sampler: chooses sends for the audit log, which Python handles.
    :param limiter: the quotas; when the first is set, and when the last is gone, connections need another taker.
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
        )
        self._core: Final = core.PlainSends(
            self._open,
            answers.parts,
            join_properties({CLUSTER: config.broker_cluster_name}).encode(),
            answers.store_host,
            limits,
            config.message_index_enable,
            turn.waits,
        )
        self._transactions = transactions
        transactions.register(self._core)
        targets.on_queue.append(self._add)
        targets.on_forget.append(self._forget)

    def taker(self, connection: ServerConnection) -> FrameTaker:
        """The function that takes the plain sends of a connection."""
        take: Callable[..., int] = partial(self._core.take, connection, connection.peer_bytes)
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
        """Take what the quotas of the connection leave, up to the next sample; Python denies or samples the rest."""
        room: Room | None = NO_BOUNDS if limiter is None else limiter.room(connection)
        sampler = self._sampler
        if room is not None and sampler is not None:
            group, messages, size = room
            room = (group, min(messages, sampler.left), size) if sampler.left else None
        if room is None:
            return at
        end = take(data, at, account, room)
        if end != at:
            messages = self._core.taken
            if sampler is not None:
                sampler.skip(messages)
            if limiter is not None:
                limiter.took(connection, room[0], messages, end - at)
        return end

    def _open(self) -> Place | None:
        """Begin a batch: its place in the log; ``None`` when Python must refuse."""
        return self._turn.lend(self._put_batch)

    def _put_batch(self) -> None:
        """Put what the core has taken."""
        batch = self._core.settle()
        if batch is None:
            return
        records, end, last_size, messages, queues, topics, hashes, offsets, answers, ends = batch
        encoded = EncodedRecords(records, end, last_size, messages, queues, hashes, offsets)
        self._turn.put_encoded(encoded, topics, PlainAnswers(answers) if answers else None)
        if ends:
            self._turn.notify(partial(self._transactions.ended, ends, not answers), _NO_PLACE)

    def _add(self, target: SendTarget, queue: ConsumeQueue) -> None:
        if queue.record_middle:
            self._core.add(target.topic, target, target.sys_flag, queue.queue_id, queue)

    def _forget(self, topic: str | None) -> None:
        self._turn.take_back()
        if topic is None:
            self._core.clear()
            self._transactions.register(self._core)
        else:
            self._core.forget(topic)


def _take_allowed(connection: ServerConnection, guard: AccessGuard, take: Callable[..., int]) -> FrameTaker:
    """Take the sends that the connection's account has signed, to topics that it may publish to.

    Python checks its first request, and all that the core leaves.
    """
    publisher = guard.publisher

    def take_allowed(data: bytes, at: int) -> int:
        account = publisher(connection)
        return at if account is None else take(data, at, account)

    return take_allowed
