"""Asks producers about half messages that stay open (``TransactionalMessageCheckService``, 39).

Every ``transactionCheckInterval`` a round looks at all transactions that are open at its beginning. One
that is old enough is put back to the end of the half queue with its count of checks raised, and any live
producer of its group is asked about the copy; who knows the answer sends END_TRANSACTION. After
``transactionCheckMax`` rounds, or when its log file is about to be deleted, it is given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from cometmq.broker.clients import ProducerManager
from cometmq.broker.half_message import check_body, given_up, put_back
from cometmq.broker.inner_message import InnerMessage, Stored
from cometmq.broker.live_config import LiveConfig
from cometmq.broker.open_transactions import OpenTransactions, Transaction
from cometmq.broker.replace_half import replace_half
from cometmq.broker.send_targets import SendRefusedError
from cometmq.broker.store_turn import StoreTurn
from cometmq.broker.topics import TopicConfigManager
from cometmq.clock import Clock
from cometmq.limits import MAX_GIVEN_UP_LINES, MAX_HALF_LAG, TRANSACTION_SLICE
from cometmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC
from cometmq.message.properties import PGROUP, REAL_TOPIC, UNIQ_KEY
from cometmq.message.record import StoredRecord
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import CheckTransactionStateRequestHeader

_log = logging.getLogger(__name__)

_HOUR_MS: Final = 3_600_000

_SHOWN_CHARS: Final = 255
"""Of a name that a producer chose so much is shown in the log."""

_WhenReplaced = Callable[[Stored], None]


class TransactionalMessageCheck:
    """The rounds; ``asked`` and ``given_up`` count since the start."""

    def __init__(
        self,
        live: LiveConfig,
        table: OpenTransactions,
        topics: TopicConfigManager,
        producers: ProducerManager,
        turn: StoreTurn,
        store_host: bytes,
        *,
        clock: Clock,
    ) -> None:
        self._live = live
        self._table = table
        self._topics = topics
        self._producers = producers
        self._turn = turn
        self._store_host = store_host
        self._clock = clock
        self._asked_last: dict[str, int] = {}
        """Group → how often it was asked, for the round robin over its producers; of live groups only."""
        self.asked = 0
        self.given_up = 0
        self.lost = 0
        """Transactions whose half message the log no longer has."""
        self._round_began = 0
        """``given_up`` when the round began."""

    async def run(self) -> None:
        """Look at everything that is open now, in slices between which the loop does other work."""
        table = self._table
        offsets = table.offsets()
        groups = self._producers.groups
        self._asked_last = {group: count for group, count in self._asked_last.items() if group in groups}
        newest = offsets[-1] if offsets else 0
        given_up = self._round_began = self.given_up
        lost = self.lost
        try:
            for begin in range(0, len(offsets), TRANSACTION_SLICE):
                for offset in offsets[begin : begin + TRANSACTION_SLICE]:
                    self._look(offset, newest)
                await asyncio.sleep(0)
        except SendRefusedError as refused:
            _log.warning("the checks of open transactions wait for the next round: %s", refused.remark)
        if self.given_up > given_up:
            _log.warning(
                "%d transactions that nobody ended are given up; their messages are kept in %s",
                self.given_up - given_up,
                TRANS_CHECK_MAX_TIME_TOPIC,
            )

        if self.lost > lost:
            _log.error(
                "%d open transactions are over and can be committed no more: the log no longer has their half messages "
                "(their file is deleted, or damaged)",
                self.lost - lost,
            )

    def _look(self, offset: int, newest: int) -> None:
        """Do what is due for one transaction.

        :raises SendRefusedError: nothing can be stored now.
        """
        table = self._table
        if not table.is_open(offset) or table.is_changing(offset):
            return
        config = self._live.current
        noted = table.known(offset)
        half = None
        if noted is None:
            half = table.record(offset)
            if half is None:
                self._drop(offset)
                return
            noted = table.note(half)
        now = self._clock.now_ms()
        noted.begun_ms = min(noted.begun_ms, now)  # where the date was set back, its time begins anew
        immunity = config.transaction_time_out if noted.immunity_ms is None else noted.immunity_ms
        is_expired = now - noted.stored_ms > config.file_reserved_time * _HOUR_MS
        is_young = now - noted.begun_ms < immunity and not is_expired
        if is_young and newest - offset < MAX_HALF_LAG:
            return
        half = half or table.record(offset)
        if half is None:
            self._drop(offset)
        elif is_young:
            self._put_back(half, noted, asks=False)
        elif is_expired or noted.check_times >= config.transaction_check_max:
            self._give_up(half)
        else:
            self._put_back(half, msgspec.structs.replace(noted, check_times=noted.check_times + 1), asks=True)

    def _drop(self, offset: int) -> None:
        self._table.drop(offset)
        self.lost += 1

    # --- what becomes of it -------------------------------------------------------------------
    def _put_back(self, half: StoredRecord, noted: Transaction, *, asks: bool) -> None:
        copy = put_back(half, noted.first_offset, noted.check_times)
        noted = msgspec.structs.replace(noted, stored_ms=self._clock.now_ms())
        try:
            self._replace(half, copy, partial(self._is_back, half.queue_offset, noted, asks))
        except SendRefusedError:
            if self._turn.refusal is not None:
                raise
            self._give_up(half)  # another broker's message whose properties have no room for another count

    def _give_up(self, half: StoredRecord) -> None:
        self._topics.create_retry(TRANS_CHECK_MAX_TIME_TOPIC)
        self._replace(half, given_up(half), partial(self._is_given_up, half))

    def _replace(self, half: StoredRecord, message: InnerMessage, stored: _WhenReplaced) -> None:
        def done(outcome: Stored | SendRefusedError) -> None:
            if isinstance(outcome, Stored):
                stored(outcome)

        replace_half(self._table, self._turn, half, message, self._store_host, self._clock.now_ms(), done)

    def _is_back(self, offset: int, noted: Transaction, asks: bool, copy: Stored) -> None:
        self._table.replaced(offset, copy.queue_offset, noted)
        if asks:
            self._ask(copy.queue_offset, noted.group)

    def _is_given_up(self, half: StoredRecord, _place: Stored) -> None:
        self._table.ended(half.queue_offset)
        self.given_up += 1
        if self.given_up - self._round_began <= MAX_GIVEN_UP_LINES:
            named = half.properties
            _log.error(
                "a transaction is given up, nobody ended it: topic %s, group %s, id %s, offset id %s",
                *(_shown(named.get(name)) for name in (REAL_TOPIC, PGROUP, UNIQ_KEY)),
                half.msg_id,
            )

    # --- asking -------------------------------------------------------------------------------
    def _ask(self, offset: int, group: str) -> None:
        """Send CHECK_TRANSACTION_STATE (39) to the producer of the group whose turn it is, if one is there."""
        channels = self._producers.groups.get(group)
        half = self._table.record(offset) if channels else None
        if not channels or half is None:
            return
        count = self._asked_last[group] = self._asked_last.get(group, -1) + 1
        connections = list(channels)
        for step in range(len(connections)):
            connection = connections[(count + step) % len(connections)]
            if connection.closed or connection.is_behind:
                continue
            key = half.properties.get(UNIQ_KEY)
            header = CheckTransactionStateRequestHeader(
                tran_state_table_offset=half.queue_offset,
                commit_log_offset=half.physical_offset,
                msg_id=key,
                transaction_id=key,
                offset_msg_id=half.msg_id,
            )
            try:
                body = check_body(half)
            except ValueError as error:
                _log.warning("no producer can be asked about it: %s", error)
                return
            connection.send_oneway(RequestCode.CHECK_TRANSACTION_STATE, header, body)
            self.asked += 1
            return


def _shown(name: str | None) -> str:
    """A name as the log has it, without what would change lines or a terminal."""
    return "-" if name is None else ascii(name[:_SHOWN_CHARS])[1:-1]
