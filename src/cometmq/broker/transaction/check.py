"""Checks open half messages with their producers, periodically and on request (``TransactionalMessageCheckService``).

Every ``transactionCheckInterval``, a round checks all transactions that are open when it begins. If a transaction is
old enough, a copy of its half message with a higher check count is stored at the end of the half queue, and one live
producer of its group is asked about the copy; the producer answers with END_TRANSACTION. A transaction is given up
after ``transactionCheckMax`` checks, or when its log file is about to be deleted.

RESUME_CHECK_HALF_MESSAGE (323, ``AdminBrokerProcessor``) turns a message that was given up and moved to
TRANS_CHECK_MAX_TIME_TOPIC into a half message with a check count of 0; for an open half message it resets the count. A
transaction that has ended, or was resumed before, does not change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import (
    MAX_GIVEN_UP_LINES,
    MAX_HALF_LAG,
    MAX_OPEN_TRANSACTIONS,
    STORED_AGAIN_BYTES,
    TRANSACTION_SLICE,
)
from cometmq.broker.transaction.half_message import (
    HALF_QUEUE,
    check_body,
    describe,
    first_offset,
    real_queue,
    to_copy,
    to_given_up,
    to_resumed,
)
from cometmq.broker.transaction.open_pages import Transaction
from cometmq.broker.transaction.open_transactions import OpenTransactions
from cometmq.broker.turn.answers import OneAnswer
from cometmq.broker.turn.inner_message import InnerMessage, Stored
from cometmq.broker.turn.targets import RefusedError
from cometmq.limits import MAX_QUERY_MESSAGES
from cometmq.message.ids import decode_offset_msg_id
from cometmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from cometmq.message.properties import PGROUP, REAL_TOPIC, UNIQ_KEY
from cometmq.message.record import StoredRecord, decode_record
from cometmq.remoting.admin_headers import ResumeCheckHalfMessageRequestHeader
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import CheckTransactionStateRequestHeader
from cometmq.remoting.permissions import Action, needs_cluster
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection

_log = logging.getLogger(__name__)

_HOUR_MS: Final = 3_600_000

_SHOWN_CHARS: Final = 255
"""Maximum length of a topic, group or ID in log lines."""

_WhenReplaced = Callable[[Stored], None]


class TransactionalMessageCheck:
    """Runs the rounds of checks; ``asked`` and ``given_up`` count since the broker started."""

    def __init__(self, broker: BrokerContext, table: OpenTransactions) -> None:
        self._live = broker.live
        self._table = table
        self._topics = broker.topics
        self._producers = broker.clients.producers
        self._turn = broker.turn
        self._clock = broker.clock
        self._asked_last: dict[str, int] = {}
        """Number of checks sent to each live group, so that its producers are asked one after the other."""
        self.asked = 0
        self.given_up = 0
        self.lost = 0
        """Number of transactions whose half message is no longer in the log."""
        self._slice_bytes = 0
        """Size of the messages that the current slice has stored again."""
        self._round_began = 0
        """Value of ``given_up`` at the start of the current round."""

    async def run(self) -> None:
        """Check all open transactions in slices."""
        table = self._table
        groups = self._producers.groups
        self._asked_last = {group: count for group, count in self._asked_last.items() if group in groups}
        newest = table.newest_offset()
        given_up = self._round_began = self.given_up
        lost = self.lost
        try:
            at = 0
            while offsets := [offset for offset in table.offsets(at, TRANSACTION_SLICE) if offset <= newest]:
                self._slice_bytes = 0
                for offset in offsets:
                    self._check(offset, newest)
                    at = offset + 1
                    if self._slice_bytes >= STORED_AGAIN_BYTES:
                        break
                await asyncio.sleep(0)
        except RefusedError as refused:
            _log.warning("checks of open transactions are postponed to the next round: %s", refused.remark)
        if self.given_up > given_up:
            _log.warning(
                "gave up %d transactions that no producer ended; their messages are in %s",
                self.given_up - given_up,
                TRANS_CHECK_MAX_TIME_TOPIC,
            )

        if self.lost > lost:
            _log.error(
                "%d open transactions can no longer be committed: the log has lost their half messages "
                "(their log file was deleted or damaged)",
                self.lost - lost,
            )

    def _check(self, offset: int, newest: int) -> None:
        """Check a transaction: ask its producer, give it up or leave it unchanged.

        :raises RefusedError: nothing can be stored now.
        """
        table = self._table
        if not table.is_open(offset) or table.is_changing(offset):
            return
        config = self._live.current
        noted = table.get_recorded(offset)
        half = None
        if noted is None:
            half = table.read_half(offset)
            if half is None:
                self._drop_lost(offset)
                return
            noted = table.note(half)
        now = self._clock.now_ms()
        noted.begun_ms = min(noted.begun_ms, now)  # if the clock has moved backwards, the minimum age counts from now
        immunity = config.transaction_time_out if noted.immunity_ms is None else noted.immunity_ms
        is_expired = now - noted.stored_ms > config.file_reserved_time * _HOUR_MS
        is_young = now - noted.begun_ms < immunity and not is_expired
        if is_young and newest - offset < MAX_HALF_LAG:
            return
        half = half or table.read_half(offset)
        if half is None:
            self._drop_lost(offset)
        elif is_young:
            self._store_copy(half, noted, asks=False)
        elif is_expired or noted.check_times >= config.transaction_check_max:
            self._give_up(half)
        else:
            self._store_copy(half, msgspec.structs.replace(noted, check_times=noted.check_times + 1), asks=True)

    def _drop_lost(self, offset: int) -> None:
        self._table.remove(offset)
        self.lost += 1

    # --- copies -------------------------------------------------------------------------------
    def _store_copy(self, half: StoredRecord, noted: Transaction, *, asks: bool) -> None:
        copy = to_copy(half, noted.first_offset, noted.check_times)
        noted = msgspec.structs.replace(noted, stored_ms=self._clock.now_ms())
        try:
            self._replace(half, copy, partial(self._copy_stored, half.queue_offset, noted, asks))
        except RefusedError:
            if self._turn.refusal is not None:
                raise
            self._give_up(half)  # the message is from another broker, and its properties have no room for another count

    def _give_up(self, half: StoredRecord) -> None:
        self._topics.create_retry(TRANS_CHECK_MAX_TIME_TOPIC)
        self._replace(half, to_given_up(half), partial(self._give_up_stored, half))

    def _replace(self, half: StoredRecord, message: InnerMessage, stored: _WhenReplaced) -> None:
        def when_stored(outcome: Stored | RefusedError) -> None:
            if isinstance(outcome, Stored):
                stored(outcome)

        self._slice_bytes += len(message.body)
        self._table.store_replacement(half, message, when_stored)

    def _copy_stored(self, offset: int, noted: Transaction, asks: bool, copy: Stored) -> None:
        self._table.copy_stored(offset, copy.queue_offset, noted)
        if asks:
            self._ask_producer(copy.queue_offset, noted.group)

    def _give_up_stored(self, half: StoredRecord, _place: Stored) -> None:
        self._table.end_stored(half.queue_offset)
        self.given_up += 1
        if self.given_up - self._round_began <= MAX_GIVEN_UP_LINES:
            named = half.properties
            _log.error(
                "gave up a transaction that no producer ended: topic %s, group %s, id %s, offset id %s",
                *(_for_log(named.get(name)) for name in (REAL_TOPIC, PGROUP, UNIQ_KEY)),
                half.msg_id,
            )

    # --- asking -------------------------------------------------------------------------------
    def _ask_producer(self, offset: int, group: str) -> None:
        """Send CHECK_TRANSACTION_STATE (39) to the next responsive producer of the group, if any."""
        channels = self._producers.groups.get(group)
        half = self._table.read_half(offset) if channels else None
        if not channels or half is None:
            return
        count = self._asked_last[group] = self._asked_last.get(group, -1) + 1
        connections = list(channels)
        for step in range(len(connections)):
            connection = connections[(count + step) % len(connections)]
            if connection.is_behind:
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
                _log.warning("cannot ask a producer about a half message: %s", error)
                return
            connection.send_oneway(RequestCode.CHECK_TRANSACTION_STATE, header, body)
            self.asked += 1
            return


def _for_log(name: str | None) -> str:
    """Return a property value for the log, with control characters escaped."""
    return "-" if name is None else ascii(name[:_SHOWN_CHARS])[1:-1]


_FAILED: Final = f"Exception was thrown when putting message back to {TRANS_HALF_TOPIC}."
_END_OF_TIME_MS: Final = 2**63 - 1

_Answer = Callable[[Response], None]


class ResumeCheckProcessor:
    """Resumes a transaction that was given up, by the offset ID of its message (RESUME_CHECK_HALF_MESSAGE)."""

    def __init__(self, broker: BrokerContext, table: OpenTransactions) -> None:
        self._table = table
        self._store = broker.store
        self._turn = broker.turn
        self._clock = broker.clock
        self._under_way: dict[int, list[_Answer]] = {}
        """The requests that wait until a message is resumed, by the message's log offset."""

    @answers(RequestCode.RESUME_CHECK_HALF_MESSAGE, permission=needs_cluster(Action.UPDATE))
    def resume(
        self, connection: ServerConnection, request: Request[ResumeCheckHalfMessageRequestHeader], _body: bytes
    ) -> None:
        """Reopen a transaction that was given up, so that its producer is asked again."""
        answer = OneAnswer(connection, request)
        late_s = self._turn.waiters.late_s
        if late_s is not None:  # this request may also wait for a change in progress
            self._clock.call_later(late_s, answer.respond_flush_timeout)
        self._resume(request.header.msg_id or "", answer.respond)

    def _resume(self, msg_id: str, answer: _Answer) -> None:
        try:
            record = self._find_record(msg_id)
            if record.topic == TRANS_HALF_TOPIC:
                self._reset_checks(record, partial(self._resume, msg_id), answer)
            else:
                self._resume_given_up(record, answer)
        except RefusedError as refused:
            answer(refused.response())
        except ValueError as error:
            answer(Response(ResponseCode.SYSTEM_ERROR, remark=f"{_FAILED} {error}"))

    def _find_record(self, msg_id: str) -> StoredRecord:
        """Return the transaction record with an offset ID.

        :raises ValueError: the record does not belong to a transaction. The record's own fields prove nothing: a client
            may have written it as the body of a message.
        """
        _, _, physical_offset = decode_offset_msg_id(msg_id)
        record = self._store.decoded_at(physical_offset) if physical_offset >= 0 else None
        if record is not None and record.topic in (TRANS_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC):
            queue = self._store.queue(record.topic, HALF_QUEUE)
            unit = queue.unit(record.queue_offset)
            if unit is not None and unit[0] == physical_offset:
                return record
        raise ValueError(
            f"neither {TRANS_CHECK_MAX_TIME_TOPIC} nor {TRANS_HALF_TOPIC} has a message with offset id {msg_id}"
        )

    # --- open transactions ----------------------------------------------------------------------------
    def _reset_checks(self, named: StoredRecord, again: Callable[[_Answer], None], answer: _Answer) -> None:
        table = self._table
        offset = table.current_offset(named.queue_offset, first_offset(named))
        if offset is None:
            raise ValueError("the transaction has already ended")
        if table.is_changing(offset):
            table.when_changed(offset, partial(again, answer))
            return
        half = table.read_half(offset)
        if half is None:
            raise ValueError("the half message can no longer be read")

        def when_stored(outcome: Stored | RefusedError) -> None:
            if isinstance(outcome, Stored):
                noted = describe(half)
                noted.check_times = 0
                noted.stored_ms = self._clock.now_ms()
                table.copy_stored(offset, outcome.queue_offset, noted)
            answer(_to_response(outcome))

        copy = to_copy(half, first_offset(half), 0)
        table.store_replacement(half, copy, when_stored)

    # --- transactions that were given up ------------------------------------------------------------------------
    def _resume_given_up(self, record: StoredRecord, answer: _Answer) -> None:
        waiting = self._under_way.get(record.physical_offset)
        if waiting is not None:
            waiting.append(answer)
            return
        real_queue(record)
        before = self._find_earlier_resume(record)
        if before is not None:
            if self._table.current_offset(before.queue_offset, first_offset(before)) is None:
                raise ValueError("the message was resumed before, and its transaction has ended or was given up again")
            answer(Response())
            return
        if self._table.count >= MAX_OPEN_TRANSACTIONS:
            raise RefusedError(ResponseCode.SYSTEM_BUSY, f"{MAX_OPEN_TRANSACTIONS} transactions are already open")
        self._under_way[record.physical_offset] = [answer]
        try:
            self._turn.put_inner(to_resumed(record), partial(self._answer_resumed, record.physical_offset))
        except RefusedError:
            del self._under_way[record.physical_offset]
            raise

    def _answer_resumed(self, physical_offset: int, outcome: Stored | RefusedError) -> None:
        for answer in self._under_way.pop(physical_offset):
            answer(_to_response(outcome))

    def _find_earlier_resume(self, record: StoredRecord) -> StoredRecord | None:
        """Find the half message from an earlier resume by its key, and return it.

        :raises ValueError: the message has no UNIQ_KEY.
        """
        key = record.properties.get(UNIQ_KEY)
        if not key:
            raise ValueError("the message has no UNIQ_KEY, which is needed to find an earlier resume")
        found = self._store.query(TRANS_HALF_TOPIC, key, MAX_QUERY_MESSAGES, 0, _END_OF_TIME_MS, unique=True)
        for data in found.records:
            half = decode_record(data, check_crc=False)
            if half.physical_offset > record.physical_offset:
                return half
        return None


def _to_response(outcome: Stored | RefusedError) -> Response:
    return outcome.response() if isinstance(outcome, RefusedError) else Response()
