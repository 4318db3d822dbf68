"""RESUME_CHECK_HALF_MESSAGE (323): producers are asked anew about a transaction (``AdminBrokerProcessor``).

What was given up, and stands in TRANS_CHECK_MAX_TIME_TOPIC, becomes a half message again that was never
asked about; one that is still open loses its count. What is over, or was resumed before, is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from cometmq.broker.half_message import HALF_QUEUE, first_offset, put_back, real_queue, resumed
from cometmq.broker.inner_message import Stored
from cometmq.broker.one_answer import OneAnswer
from cometmq.broker.open_transactions import OpenTransactions, describe
from cometmq.broker.replace_half import replace_half
from cometmq.broker.send_targets import SendRefusedError
from cometmq.broker.store_turn import StoreTurn
from cometmq.clock import Clock
from cometmq.limits import MAX_OPEN_TRANSACTIONS, MAX_QUERY_MESSAGES
from cometmq.message.ids import decode_offset_msg_id
from cometmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from cometmq.message.properties import UNIQ_KEY
from cometmq.message.record import StoredRecord, decode_record
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import ResumeCheckHalfMessageRequestHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import MessageStore

_FAILED: Final = f"Exception was thrown when putting message back to {TRANS_HALF_TOPIC}."
_END_OF_TIME_MS: Final = 2**63 - 1

_Answer = Callable[[Response], None]


class ResumeCheckProcessor:
    """Resumes transactions, one offset id a request."""

    def __init__(
        self, table: OpenTransactions, store: MessageStore, turn: StoreTurn, store_host: bytes, *, clock: Clock
    ) -> None:
        self._table = table
        self._store = store
        self._turn = turn
        self._store_host = store_host
        self._clock = clock
        self._under_way: dict[int, list[_Answer]] = {}
        """Log offset of what was given up and is being put back → who is told."""

    def register(self, processors: ProcessorTable) -> None:
        """Answer the code."""
        code = RequestCode.RESUME_CHECK_HALF_MESSAGE
        processors.register(code, ResumeCheckHalfMessageRequestHeader, self.resume)

    def resume(
        self, connection: ServerConnection, request: Request[ResumeCheckHalfMessageRequestHeader], _body: bytes
    ) -> None:
        """Answered once what is put back is stored."""
        answer = OneAnswer(connection, request)
        if self._store.sync_flush:  # it may wait for a change under way as well
            self._clock.call_later(self._turn.waiters.timeout_s, answer.late)
        self._resume(request.header.msg_id or "", answer.give)

    def _resume(self, msg_id: str, answer: _Answer) -> None:
        try:
            record = self._find(msg_id)
            if record.topic == TRANS_HALF_TOPIC:
                self._renew(record, partial(self._resume, msg_id), answer)
            else:
                self._begin_again(record, answer)
        except SendRefusedError as refused:
            answer(Response(refused.code, remark=refused.remark))
        except ValueError as error:
            answer(Response(ResponseCode.SYSTEM_ERROR, remark=f"{_FAILED} {error}"))

    def _find(self, msg_id: str) -> StoredRecord:
        """The record with an offset id.

        :raises ValueError: it is none of a transaction. A record that claims to be one need not be true: a
            client may have written it, as the body of a message.
        """
        _, _, physical_offset = decode_offset_msg_id(msg_id)
        record = self._store.decoded_at(physical_offset) if physical_offset >= 0 else None
        if record is not None and record.topic in (TRANS_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC):
            queue = self._store.queue(record.topic, HALF_QUEUE)
            unit = queue.unit(record.queue_offset)
            if unit is not None and unit[0] == physical_offset:
                return record
        raise ValueError(
            f"{msg_id} is the offset id of no message in {TRANS_CHECK_MAX_TIME_TOPIC} or {TRANS_HALF_TOPIC} here"
        )

    # --- one that is open ---------------------------------------------------------------------
    def _renew(self, named: StoredRecord, again: Callable[[_Answer], None], answer: _Answer) -> None:
        table = self._table
        offset = table.current(named.queue_offset, first_offset(named))
        if offset is None:
            raise ValueError("its transaction is over")
        if table.is_changing(offset):
            table.when_settled(offset, partial(again, answer))
            return
        half = table.record(offset)
        if half is None:
            raise ValueError("its half message cannot be read any more")

        def done(outcome: Stored | SendRefusedError) -> None:
            if isinstance(outcome, Stored):
                noted = describe(half)
                noted.check_times = 0
                noted.stored_ms = self._clock.now_ms()
                table.replaced(offset, outcome.queue_offset, noted)
            answer(_outcome(outcome))

        copy = put_back(half, first_offset(half), 0)
        replace_half(table, self._turn, half, copy, self._store_host, self._clock.now_ms(), done)

    # --- one that was given up ----------------------------------------------------------------
    def _begin_again(self, record: StoredRecord, answer: _Answer) -> None:
        waiting = self._under_way.get(record.physical_offset)
        if waiting is not None:
            waiting.append(answer)
            return
        real_queue(record)
        before = self._resumed_before(record)
        if before is not None:
            if self._table.current(before.queue_offset, first_offset(before)) is None:
                raise ValueError("it was resumed before, and that transaction is over, or given up again")
            answer(Response())
            return
        if self._table.count >= MAX_OPEN_TRANSACTIONS:
            raise SendRefusedError(ResponseCode.SYSTEM_BUSY, f"{MAX_OPEN_TRANSACTIONS} transactions are open already")
        self._under_way[record.physical_offset] = [answer]
        try:
            self._turn.put_inner(resumed(record), partial(self._has_begun_again, record.physical_offset))
        except SendRefusedError:
            del self._under_way[record.physical_offset]
            raise

    def _has_begun_again(self, physical_offset: int, outcome: Stored | SendRefusedError) -> None:
        for answer in self._under_way.pop(physical_offset):
            answer(_outcome(outcome))

    def _resumed_before(self, record: StoredRecord) -> StoredRecord | None:
        """A half message that stands behind a given-up one and is the same, by the index of keys.

        :raises ValueError: the message has no UNIQ_KEY to find it by.
        """
        key = record.properties.get(UNIQ_KEY)
        if not key:
            raise ValueError("it has no UNIQ_KEY, so that nothing can tell whether it was resumed before")
        found = self._store.query(TRANS_HALF_TOPIC, key, MAX_QUERY_MESSAGES, 0, _END_OF_TIME_MS)
        for data in found.records:
            half = decode_record(data, check_crc=False)
            if half.physical_offset > record.physical_offset and half.properties.get(UNIQ_KEY) == key:
                return half
        return None


def _outcome(outcome: Stored | SendRefusedError) -> Response:
    return Response(outcome.code, remark=outcome.remark) if isinstance(outcome, SendRefusedError) else Response()
