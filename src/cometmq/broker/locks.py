"""Who consumes which queue in order: LOCK_BATCH_MQ (41), UNLOCK_BATCH_MQ (42) (``RebalanceLockManager``).

Members of an orderly group read only queues that they hold a lock of. A lock lives for
:data:`~cometmq.limits.LOCK_SECONDS` since its last renewal, twice as long as clients trust one, so that
a queue never has two readers, however a member was lost. A connection that closes frees nothing, since its
client may go on over another one; a member that says that it leaves (35) frees all that it holds, also what it
would have unlocked later: Java's client forgets its delayed unlocks when it is shut down. The holders outlive a
restart of the broker (:mod:`cometmq.broker.lock_file`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec

from cometmq.broker.clients import ClientRegistry
from cometmq.clock import Clock
from cometmq.limits import (
    LOCK_SECONDS,
    LOCK_TRUST_SECONDS,
    MAX_CLIENT_ID_CHARS,
    MAX_LOCK_REQUEST_BYTES,
    MAX_LOCK_REQUEST_QUEUES,
    MAX_LOCKED_QUEUES,
    MAX_TOPIC_CHARS,
)
from cometmq.message.names import check_group, check_topic
from cometmq.remoting.bodies import (
    BodyError,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    decode_request,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import NoHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection

_log = logging.getLogger(__name__)


class _Lock(msgspec.Struct, gc=False):
    client_id: str
    renewed_at: float
    """Monotonic seconds."""


class HeldQueues(msgspec.Struct, frozen=True, array_like=True):
    """Queues of one topic that a client holds."""

    group: str
    client_id: str
    topic: str
    broker_name: str
    queue_ids: list[int]


class RebalanceLockManager:
    """The locks of all groups; ``on_change`` hears when a queue has another holder, or none."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self.on_change: Callable[[], None] = lambda: None
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._texts: dict[str, bytes] = {}
        """The locks of each group as the file has them, where none has changed since."""
        self._count = 0

    @property
    def count(self) -> int:
        """Locks held, those included whose time is up and that nobody has looked at since."""
        return self._count

    def holder(self, group: str, queue: MessageQueue) -> str | None:
        """The client whose queue it is now, None for nobody's."""
        lock = self._groups.get(group, {}).get(queue)
        if lock is None or self._clock.monotonic() - lock.renewed_at > LOCK_SECONDS:
            return None
        return lock.client_id

    def try_lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue] | None:
        """Lock or renew; the queues that the client holds now. ``None``: there is no room for so many, nothing is done.

        A queue is granted when it is free, the client's own, or its lock has not been renewed in time.
        """
        now = self._clock.monotonic()
        locks = self._groups.get(group, {})
        wanted = dict.fromkeys(queues)
        if self._count + sum(queue not in locks for queue in wanted) > MAX_LOCKED_QUEUES:
            return None
        granted = []
        is_new = False
        for queue in wanted:
            if self.holder(group, queue) not in (None, client_id):
                continue
            lock = locks.get(queue)
            if lock is None:
                self._count += 1
            elif lock.client_id != client_id:
                _log.info("%s of group %s goes to %s: the lock of %s expired", queue, group, client_id, lock.client_id)
            is_new = is_new or lock is None or lock.client_id != client_id
            locks[queue] = _Lock(client_id, now)
            granted.append(queue)
        if is_new:
            self._groups[group] = locks
            self._texts.pop(group, None)
            self.on_change()
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Free those of the queues that the client holds; others' locks stay."""
        locks = self._groups.get(group, {})
        self._drop(group, [queue for queue in queues if queue in locks and locks[queue].client_id == client_id])

    def unlock_all(self, group: str, client_id: str) -> None:
        """Free whatever a member of a group holds: it leaves."""
        locks = self._groups.get(group, {})
        self._drop(group, [queue for queue, lock in locks.items() if lock.client_id == client_id])

    def expire(self) -> None:
        """Forget the locks whose time is up."""
        horizon = self._clock.monotonic() - LOCK_SECONDS
        for group, locks in list(self._groups.items()):
            self._drop(group, [queue for queue, lock in locks.items() if lock.renewed_at < horizon])

    def _drop(self, group: str, queues: Iterable[MessageQueue]) -> None:
        dropped = dict.fromkeys(queues)
        if not dropped:
            return
        locks = self._groups[group]
        for queue in dropped:
            del locks[queue]
        self._count -= len(dropped)
        if not locks:
            del self._groups[group]
        self._texts.pop(group, None)
        self.on_change()

    # --- over restarts ------------------------------------------------------------------------
    def held(self) -> list[HeldQueues]:
        """All locks, without their times."""
        return [some for group in self._groups for some in self._held_of(group)]

    def _held_of(self, group: str) -> list[HeldQueues]:
        found: dict[tuple[str, str, str], list[int]] = {}
        for queue, lock in self._groups[group].items():
            found.setdefault((lock.client_id, queue.topic, queue.broker_name), []).append(queue.queue_id)
        return [HeldQueues(group, *names, numbers) for names, numbers in found.items()]

    def text(self) -> bytes:
        """What :meth:`held` gives, as JSON; only groups whose locks changed since are encoded."""
        for group in self._groups:
            if group not in self._texts:
                self._texts[group] = msgspec.json.encode(self._held_of(group))[1:-1]
        return b"[%s]" % b",".join([self._texts[group] for group in self._groups])

    def restore(self, held: Iterable[HeldQueues]) -> None:
        """Take up what :meth:`held` gave before a restart, for as long as clients trust a lock since they asked."""
        renewed_at = self._clock.monotonic() - LOCK_SECONDS + LOCK_TRUST_SECONDS
        for some in held:
            locks = self._groups.setdefault(some.group, {})
            for queue_id in some.queue_ids:
                locks[MessageQueue(some.topic, some.broker_name, queue_id)] = _Lock(some.client_id, renewed_at)
        self._texts.clear()
        self._count = sum(map(len, self._groups.values()))


class LockProcessor:
    """Answers members of orderly groups."""

    def __init__(self, locks: RebalanceLockManager, clients: ClientRegistry) -> None:
        self._locks = locks
        self._clients = clients

    def register(self, processors: ProcessorTable) -> None:
        """Answer the codes of locks."""
        processors.register(RequestCode.LOCK_BATCH_MQ, NoHeader, self.lock)
        processors.register(RequestCode.UNLOCK_BATCH_MQ, NoHeader, self.unlock)

    def lock(self, connection: ServerConnection, _request: Request[NoHeader], body: bytes) -> Response:
        """LOCK_BATCH_MQ (41): the answer names the queues that the client holds now.

        A connection whose heartbeats name other groups, or another client, is refused.
        """
        try:
            asked = _read(body)
        except BodyError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=error.message)
        if self._clients.is_stranger(connection, asked.consumer_group, asked.client_id):
            remark = f"{asked.client_id} is no member of {asked.consumer_group}, by the heartbeats of its connection"
            return Response(ResponseCode.SYSTEM_ERROR, remark=remark)
        held = self._locks.try_lock(asked.consumer_group, asked.client_id, asked.mq_set)
        if held is None:
            return Response(ResponseCode.SYSTEM_ERROR, remark="this broker holds too many locks already")
        # Thousands of queues, all of them plain: encoded at once instead of one by one, which others would wait for.
        return Response(body=msgspec.json.encode(LockBatchResponseBody(lock_ok_mq_set=held)))

    def unlock(self, _connection: ServerConnection, _request: Request[NoHeader], body: bytes) -> Response:
        """UNLOCK_BATCH_MQ (42)."""
        try:
            asked = _read(body)
        except BodyError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=error.message)
        self._locks.unlock(asked.consumer_group, asked.client_id, asked.mq_set)
        return Response()


def _read(body: bytes) -> LockBatchRequestBody:
    """The request of 41 or 42; the ``onlyThisBroker`` of 5.x means nothing where no other broker holds the locks.

    :raises BodyError: it is malformed, or names what no client has.
    """
    asked = decode_request(LockBatchRequestBody, body, MAX_LOCK_REQUEST_BYTES)
    wrong = check_group(asked.consumer_group)
    if not asked.client_id or len(asked.client_id) > MAX_CLIENT_ID_CHARS:
        wrong = f"the clientId is missing, or longer than {MAX_CLIENT_ID_CHARS} characters"
    if len(asked.mq_set) > MAX_LOCK_REQUEST_QUEUES:
        wrong = f"at most {MAX_LOCK_REQUEST_QUEUES} queues can be locked at once"
    for queue in asked.mq_set:
        wrong = wrong or check_topic(queue.topic)
        if len(queue.broker_name) > MAX_TOPIC_CHARS or not 0 <= queue.queue_id < 2**31:
            wrong = f"no broker has {queue}"
    if wrong is not None:
        raise BodyError(wrong)
    return asked
