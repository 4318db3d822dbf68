"""Answers brokers that ask what became of a transaction: CHECK_TRANSACTION_STATE (39)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from cometmq.client.instance import ClientInstance
from cometmq.client.transaction import Checker, TransactionState, is_async, outcome_of
from cometmq.client.transaction_ends import HalfMessage, TransactionEnds
from cometmq.client.user_code import is_end, keep_task
from cometmq.message.message import MessageExt
from cometmq.remoting.headers import CheckTransactionStateRequestHeader

log = logging.getLogger(__name__)


class TransactionChecks:
    """Runs one checker, at most ``concurrency`` calls at a time.

    ``most_waiting`` questions wait; further ones are dropped, and asked again in the broker's next round.
    """

    def __init__(
        self, instance: ClientInstance, checker: Checker, ends: TransactionEnds, concurrency: int, most_waiting: int
    ) -> None:
        self._instance = instance
        self._checker = checker
        self._ends = ends
        self._concurrency = concurrency
        self._line: deque[HalfMessage] = deque()
        self._most_waiting = most_waiting
        self._workers: set[asyncio.Task[None]] = set()
        self._threads = None if is_async(checker) else ThreadPoolExecutor(concurrency, "cometmq-check")
        self._is_open = True

    def ask(self, address: str, header: CheckTransactionStateRequestHeader, message: MessageExt) -> None:
        """A broker asks; it is answered when the checker has been called."""
        if not self._is_open:
            return
        if len(self._line) >= self._most_waiting:
            log.warning("%d questions about transactions wait already; one of %s is dropped", len(self._line), address)
            return
        self._line.append(
            HalfMessage(message, message.msg_id, address, header.tran_state_table_offset, header.commit_log_offset)
        )
        if len(self._workers) < self._concurrency:
            worker = self._instance.spawn(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def close(self) -> None:
        """Answer no more; calls of the checker that run are not waited for."""
        self._is_open = False
        self._line.clear()
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    async def _work(self) -> None:
        while self._line:
            half = self._line.popleft()
            try:
                state = await outcome_of(self._checker, self._threads, half.message)
            except BaseException as error:
                if is_end(error) and (not self._is_open or self._instance.is_ending()):
                    raise
                log.exception("the checker failed on transaction %s", half.transaction_id)
                keep_task()
                state = TransactionState.UNKNOWN
            await self._ends.end(half, state, from_check=True)
