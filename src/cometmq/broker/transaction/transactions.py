"""Transactions on a master (``TransactionalMessageService``).

Theory of operation. A producer sends a half message, which waits in RMQ_SYS_TRANS_HALF_TOPIC with its real topic and
queue in its properties. The states of a transaction:

* open: its half message, or the newest copy of it, has no op message in RMQ_SYS_TRANS_OP_HALF_TOPIC.
* changing: its end or a new copy is being stored. Further ends wait for the outcome.
* committed: the message is stored in its real topic, and the op message is stored.
* rolled back: the op message is stored.
* given up: a copy is stored in TRANS_CHECK_MAX_TIME_TOPIC, and the op message is stored. It can be resumed.

The producers of open transactions are asked in rounds (:mod:`cometmq.broker.transaction.check`). Each check stores a
copy of the half message at the end of its queue, so that everything before it is finished.

Invariants.

* The records of a change belong to one turn, the message or copy before the op message, and are stored by one write.
* A transaction is identified by the offset of its first half message, which each copy names. An end that names any
  copy ends it; further ends change nothing.
* Before the offsets of the group CID_RMQ_SYS_TRANS, everything in both queues is finished. The offsets are committed
  once the disk has the log from which they were derived.

Fault model. The table of open transactions is in memory only. When this broker, Apache's broker or a slave that becomes
the master starts, it reads both queues from the committed offsets on. A crash inside a write, or a log that lost its
end, leaves the first records of a change without its op message: the start finds the committed message or the copy in
the log, and writes the op message late. So no transaction ends twice, and none is lost while the log has its half
message.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from cometmq.broker.config import BrokerConfig
from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import TRANSACTION_PROGRESS_SECONDS
from cometmq.broker.statistics.traffic import TRANSACTION, Event
from cometmq.broker.stored_access import may_access, not_found
from cometmq.broker.transaction.check import ResumeCheckProcessor, TransactionalMessageCheck
from cometmq.broker.transaction.half_message import HALF_QUEUE, first_offset, half_detour, to_committed
from cometmq.broker.transaction.open_transactions import OpenTransactions
from cometmq.broker.transaction.plain_transactions import PlainTransactions
from cometmq.broker.turn.answers import OneAnswer
from cometmq.broker.turn.inner_message import Stored
from cometmq.broker.turn.store_turn import Late, WhenStored
from cometmq.broker.turn.targets import RefusedError
from cometmq.message.names import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANSACTION_GROUP
from cometmq.message.properties import PGROUP, REAL_TOPIC
from cometmq.message.record import StoredRecord
from cometmq.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from cometmq.periodic import Alarm, Periodic
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import EndTransactionRequestHeader
from cometmq.remoting.permissions import Action, needs_stored
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection

_log = logging.getLogger(__name__)

_DONE: Final = Response()
_NOT_FOUND: Final = "Find prepared transaction message failed"


class EndTransactionProcessor:
    """Handles END_TRANSACTION (37), with which a producer commits a half message or rolls it back.

    The committed message and the op message belong to one turn, so that one write stores both. Once a transaction has
    ended, further requests change nothing, even if they name a half message that a copy replaced. ``committed`` and
    ``rolled_back`` count since the broker started.
    """

    def __init__(self, broker: BrokerContext, table: OpenTransactions) -> None:
        self._table = table
        self._store = broker.store
        self._turn = broker.turn
        self._clock = broker.clock
        self._traffic = broker.stats.traffic
        self.committed = 0
        self.rolled_back = 0

    @answers(RequestCode.END_TRANSACTION, permission=needs_stored(Action.PUB))
    def end(
        self, connection: ServerConnection, request: Request[EndTransactionRequestHeader], _body: bytes
    ) -> Response | None:
        """Commit or roll back a transaction, and respond once this is stored. As in Apache's broker, a request with
        neither flag gets no response.
        """
        half = self._store.decoded_at(request.header.commit_log_offset)
        if not may_access(self._store, half, Action.PUB):
            return Response(ResponseCode.SYSTEM_ERROR, remark=not_found(_NOT_FOUND))
        return self._end(OneAnswer(connection, request), request, half)

    def _end(
        self, answer: OneAnswer, request: Request[EndTransactionRequestHeader], half: StoredRecord | None
    ) -> Response | None:
        header = request.header
        if header.commit_or_rollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            return None
        wrong = _find_fault(half, header)
        if half is None or wrong is not None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=wrong)
        table = self._table
        if not table.is_at(half.queue_offset, half.physical_offset):
            return Response(ResponseCode.SYSTEM_ERROR, remark=_NOT_FOUND)
        offset = table.current_offset(half.queue_offset, first_offset(half))
        if offset is None:
            return _DONE
        if table.is_changing(offset):
            table.when_changed(offset, partial(self._retry_end, answer, request))
            late_s = self._turn.waiters.late_s
            if late_s is not None:
                self._clock.call_later(late_s, answer.respond_flush_timeout)
            return None
        if offset != half.queue_offset:
            half = table.read_half(offset)
            if half is None:
                return Response(ResponseCode.SYSTEM_ERROR, remark=_NOT_FOUND)
        table.begin_change(offset)
        ended = partial(self._end_stored, answer, request, offset, half)
        try:
            self._store_end(half, header.commit_or_rollback == TRANSACTION_COMMIT, ended, answer.respond_flush_timeout)
        except RefusedError as refused:
            ended(refused)
        except ValueError as error:
            ended(RefusedError(ResponseCode.SYSTEM_ERROR, str(error)))
        return None

    def _retry_end(self, answer: OneAnswer, request: Request[EndTransactionRequestHeader]) -> None:
        """Handle an END_TRANSACTION request that waited for another change to its transaction."""
        response = self._end(answer, request, self._store.decoded_at(request.header.commit_log_offset))
        if response is not None:
            answer.respond(response)

    def _store_end(self, half: StoredRecord, commits: bool, ended: WhenStored, late: Late) -> None:
        """Store the op message, and the committed message if there is one, in the same turn.

        :raises RefusedError: nothing can be stored now.
        :raises ValueError: the half message has no real queue.
        """
        op = self._table.op_message(half.queue_offset)
        if commits:
            self._turn.put_together((to_committed(half, self._clock.now_ms()), op), ended, late, TRANSACTION)
        else:
            self._turn.put_inner(op, ended, late)

    def count(self, is_commit: bool) -> None:
        """Count a finished transaction."""
        if is_commit:
            self.committed += 1
        else:
            self.rolled_back += 1

    def _end_stored(
        self,
        answer: OneAnswer,
        request: Request[EndTransactionRequestHeader],
        offset: int,
        half: StoredRecord,
        outcome: Stored | RefusedError,
    ) -> None:
        if isinstance(outcome, RefusedError):
            answer.respond(outcome.response())
            self._table.cancel_change(offset)
            return
        commits = request.header.commit_or_rollback == TRANSACTION_COMMIT
        self.count(commits)
        if self._traffic is not None:
            topic = half.properties.get(REAL_TOPIC, "")
            if commits:
                self._traffic.committed(topic, self._clock.now_ms() - half.born_timestamp)
            else:
                self._traffic.count(Event.ROLLBACK, topic)
        answer.respond(_DONE)
        self._table.end_stored(offset)


def _find_fault(half: StoredRecord | None, header: EndTransactionRequestHeader) -> str | None:
    """Return why a transaction cannot be committed or rolled back, or ``None`` if it can."""
    if half is None or half.topic != TRANS_HALF_TOPIC:
        return _NOT_FOUND
    if half.properties.get(PGROUP) != header.producer_group:
        return "The producer group wrong"
    if half.queue_offset != header.tran_state_table_offset:
        return "The transaction state table offset wrong"
    return None


class TransactionalMessageService:
    """The transaction service: the table of open transactions, commits, rollbacks and checks.

    Created once the store is open, before anything is stored.
    """

    def __init__(self, broker: BrokerContext) -> None:
        self._live = broker.live
        self._offsets = broker.offsets
        self._store = broker.store
        self._turn = broker.turn
        self._clock = broker.clock
        self.open = OpenTransactions(broker.store, broker.offsets, broker.turn, broker.host)
        self.ends = EndTransactionProcessor(broker, self.open)
        self.checks = TransactionalMessageCheck(broker, self.open)
        self.resumes = ResumeCheckProcessor(broker, self.open)
        self.plain: Final = PlainTransactions(
            broker.live,
            broker.store,
            broker.targets,
            self.open,
            self.ends.count,
            takes_ends=broker.stats.traffic is None,
        )
        """Connects the table to the compiled core, which handles half messages, commits and rollbacks."""
        self.detour: Final = half_detour(broker.live, lambda: self.open.count)
        """Parks half messages."""
        broker.topics.create_retry(TRANS_HALF_TOPIC)
        self._progress = Periodic(
            "save the progress of transactions", TRANSACTION_PROGRESS_SECONDS, self.note_progress, clock=broker.clock
        )
        self._noted: tuple[int, int, int] | None = None
        """Log offset, half queue offset and op queue offset of the last saved progress."""
        self._next_round = Alarm(self._begin_round, clock=broker.clock)
        self._interval_ms = broker.config.transaction_check_interval
        self._round: asyncio.Task[None] | None = None
        broker.live.on_change.append(self._config_changed)

    def start(self) -> None:
        """Write the op messages that are missing after a crash, and start the rounds."""
        for offset in self.open.unmarked:
            try:
                self._turn.put_inner(self.open.op_message(offset), lambda _: None)
            except RefusedError as refused:
                _log.warning("cannot write the missing op messages of ended transactions: %s", refused.remark)
                break
        self.open.unmarked.clear()
        self._progress.start()
        self._wait_for_round()

    async def stop(self) -> None:
        """Stop the rounds, including a round in progress."""
        await self._progress.stop()
        self._next_round.close()
        if self._round is not None:
            self._round.cancel()
            await asyncio.gather(self._round, return_exceptions=True)

    def runtime_info(self) -> dict[str, str]:
        """Return runtime information: the number of open transactions, and counts since the start."""
        oldest = self.open.oldest()
        return {
            "openTransactions": str(self.open.count),
            "oldestOpenTransactionAgeMs": str(max(self._clock.now_ms() - oldest.begun_ms, 0) if oldest else 0),
            "oldestOpenTransactionChecks": str(oldest.check_times if oldest else 0),
            "oldestOpenTransactionGroup": oldest.group if oldest else "",
            "transactionsCommitted": str(self.ends.committed),
            "transactionsRolledBack": str(self.ends.rolled_back),
            "transactionChecksSent": str(self.checks.asked),
            "transactionsGivenUp": str(self.checks.given_up),
        }

    # --- rounds -------------------------------------------------------------------------------
    def _wait_for_round(self) -> None:
        self._interval_ms = self._live.current.transaction_check_interval
        self._next_round.after(self._interval_ms / 1000)

    def _config_changed(self, config: BrokerConfig) -> None:
        """Start the next round of checks earlier if the check interval was shortened."""
        if config.transaction_check_interval < self._interval_ms and self._next_round.is_set:
            self._wait_for_round()

    def _begin_round(self) -> None:
        self._round = asyncio.get_running_loop().create_task(self.checks.run(), name="check transactions")
        self._round.add_done_callback(self._round_ended)

    def _round_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _log.error("a round of checks failed", exc_info=error)
        self._wait_for_round()

    # --- progress -----------------------------------------------------------------------------
    def note_progress(self) -> None:
        """Commit the group's offsets once the log keeps that from which they were derived.

        Otherwise, after a power cut the log could end before these offsets, and new half messages would be skipped.
        """
        last = self._noted
        if last is not None and self._store.kept_end >= last[0]:
            for topic, offset in ((TRANS_HALF_TOPIC, last[1]), (TRANS_OP_HALF_TOPIC, last[2])):
                if offset != self._offsets.query(TRANSACTION_GROUP, topic, HALF_QUEUE):
                    self._offsets.set_offset(TRANSACTION_GROUP, topic, HALF_QUEUE, offset)
            last = None
        if last is None:
            self._noted = (self._store.max_physical_offset, *self.open.progress())
