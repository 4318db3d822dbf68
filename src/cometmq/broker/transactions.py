"""Transactions: the open ones, their ends, the rounds that ask about them (``TransactionalMessageService``).

See :mod:`cometmq.broker.half_message` for what is stored. Offsets of the group CID_RMQ_SYS_TRANS say up to
where both queues are done with, so that a start, of this broker or of Apache's, reads only what follows.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from cometmq.broker.clients import ProducerManager
from cometmq.broker.end_transaction import EndTransactionProcessor
from cometmq.broker.half_message import HALF_QUEUE, half_detour, op_message
from cometmq.broker.live_config import LiveConfig
from cometmq.broker.offsets import ConsumerOffsetManager
from cometmq.broker.periodic import Periodic
from cometmq.broker.resume_check import ResumeCheckProcessor
from cometmq.broker.send_targets import SendRefusedError
from cometmq.broker.store_turn import StoreTurn
from cometmq.broker.topics import TopicConfigManager
from cometmq.broker.transaction_check import TransactionalMessageCheck
from cometmq.broker.transaction_recovery import find_open_transactions
from cometmq.clock import Clock, TimerHandle
from cometmq.limits import TRANSACTION_PROGRESS_SECONDS
from cometmq.message.names import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANSACTION_GROUP
from cometmq.remoting.processors import ProcessorTable
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)


class TransactionalMessageService:
    """The transactions of one broker; made when its store is open, before anything is stored."""

    def __init__(
        self,
        live: LiveConfig,
        topics: TopicConfigManager,
        offsets: ConsumerOffsetManager,
        producers: ProducerManager,
        store: MessageStore,
        turn: StoreTurn,
        store_host: bytes,
        *,
        clock: Clock,
    ) -> None:
        self._live = live
        self._offsets = offsets
        self._store = store
        self._turn = turn
        self._store_host = store_host
        self._clock = clock
        self.open, self._late_ops = find_open_transactions(store, offsets)
        self.ends = EndTransactionProcessor(self.open, store, turn, store_host, clock=clock)
        self.checks = TransactionalMessageCheck(live, self.open, topics, producers, turn, store_host, clock=clock)
        self.resumes = ResumeCheckProcessor(self.open, store, turn, store_host, clock=clock)
        self.detour: Final = half_detour(live, lambda: self.open.count)
        """Parks half messages."""
        topics.create_retry(TRANS_HALF_TOPIC)
        self._progress = Periodic(
            "note how far transactions are", TRANSACTION_PROGRESS_SECONDS, self.note_progress, clock=clock
        )
        self._noted: tuple[int, int, int] | None = None
        """Log position, half offset and op offset of the last look."""
        self._timer: TimerHandle | None = None
        self._round: asyncio.Task[None] | None = None

    def register(self, processors: ProcessorTable) -> None:
        """Answer producers, and administrators who want them to be asked again."""
        self.ends.register(processors)
        self.resumes.register(processors)

    def start(self) -> None:
        """Write what the last crash left out, and begin to ask about open transactions."""
        for offset in self._late_ops:
            try:
                self._turn.put_inner(op_message(offset, self._store_host, self._clock.now_ms()), lambda _: None)
            except SendRefusedError as refused:
                _log.warning("the op messages of ended transactions are not written now: %s", refused.remark)
                break
        self._late_ops = []
        self._progress.start()
        self._wait_for_round()

    async def stop(self) -> None:
        """Ask no more; a round under way is broken off."""
        await self._progress.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._round is not None:
            self._round.cancel()
            await asyncio.gather(self._round, return_exceptions=True)

    def runtime_info(self) -> dict[str, str]:
        """What the runtime information (28) tells of transactions: the open ones, and counts since the start."""
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
        interval_s = self._live.current.transaction_check_interval / 1000
        self._timer = self._clock.call_later(interval_s, self._begin_round)

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
        """Commit the offsets of the group, once the disk has what they were derived from.

        After a power cut the log may end before them otherwise, and what is lost with its end would count as done.
        """
        last = self._noted
        if last is not None and self._store.flushed_position >= last[0]:
            for topic, offset in ((TRANS_HALF_TOPIC, last[1]), (TRANS_OP_HALF_TOPIC, last[2])):
                if offset != self._offsets.query(TRANSACTION_GROUP, topic, HALF_QUEUE):
                    self._offsets.note(TRANSACTION_GROUP, topic, HALF_QUEUE, offset)
            last = None
        if last is None:
            self._noted = (self._store.max_physical_offset, *self.open.progress())
