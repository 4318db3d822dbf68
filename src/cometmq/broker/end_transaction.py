"""END_TRANSACTION (37): a producer commits a half message, or rolls it back (``EndTransactionProcessor``).

The committed message and the op message are put side by side into one turn, so that one write stores
both. Once a transaction is over, further ends of it change nothing, also those that name a half message
which was put back meanwhile.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from cometmq.broker.half_message import OP_READ, committed, first_offset, op_message
from cometmq.broker.inner_message import Stored
from cometmq.broker.one_answer import OneAnswer
from cometmq.broker.open_transactions import OpenTransactions
from cometmq.broker.send_properties import from_map
from cometmq.broker.send_targets import SendRefusedError
from cometmq.broker.store_turn import Late, StoreTurn, WhenStored
from cometmq.clock import Clock
from cometmq.message.names import TRANS_HALF_TOPIC
from cometmq.message.properties import PGROUP
from cometmq.message.record import StoredRecord
from cometmq.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import EndTransactionRequestHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import MessageStore

_DONE: Final = Response()
_NOT_FOUND: Final = "Find prepared transaction message failed"


class EndTransactionProcessor:
    """Ends transactions; ``committed`` and ``rolled_back`` count those since the start."""

    def __init__(
        self, table: OpenTransactions, store: MessageStore, turn: StoreTurn, store_host: bytes, *, clock: Clock
    ) -> None:
        self._table = table
        self._store = store
        self._turn = turn
        self._store_host = store_host
        self._clock = clock
        self.committed = 0
        self.rolled_back = 0

    def register(self, processors: ProcessorTable) -> None:
        """Answer the code that ends transactions."""
        processors.register(RequestCode.END_TRANSACTION, EndTransactionRequestHeader, self.end)

    def end(
        self, connection: ServerConnection, request: Request[EndTransactionRequestHeader], _body: bytes
    ) -> Response | None:
        """Commit or roll back; answered once that is stored. What is neither is not answered, as Apache does not."""
        return self._end(OneAnswer(connection, request), request)

    def _end(self, answer: OneAnswer, request: Request[EndTransactionRequestHeader]) -> Response | None:
        header = request.header
        if header.commit_or_rollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            return None
        half = self._store.decoded_at(header.commit_log_offset)
        wrong = _refuse(half, header)
        if half is None or wrong is not None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=wrong)
        table = self._table
        if not table.stands_at(half.queue_offset, half.physical_offset):
            return Response(ResponseCode.SYSTEM_ERROR, remark=_NOT_FOUND)
        offset = table.current(half.queue_offset, first_offset(half))
        if offset is None:
            return _DONE
        if table.is_changing(offset):
            table.when_settled(offset, partial(self._again, answer, request))
            if self._store.sync_flush:
                self._clock.call_later(self._turn.waiters.timeout_s, answer.late)
            return None
        if offset != half.queue_offset:
            half = table.record(offset)
            if half is None:
                return Response(ResponseCode.SYSTEM_ERROR, remark=_NOT_FOUND)
        table.begin_change(offset)
        ended = partial(self._ended, answer, request, offset)
        try:
            self._put(half, header.commit_or_rollback == TRANSACTION_COMMIT, ended, answer.late)
        except SendRefusedError as refused:
            ended(refused)
        except ValueError as error:
            ended(SendRefusedError(ResponseCode.SYSTEM_ERROR, str(error)))
        return None

    def _again(self, answer: OneAnswer, request: Request[EndTransactionRequestHeader]) -> None:
        """Go on with an end that came while another, or a copy, was on its way to the disk."""
        response = self._end(answer, request)
        if response is not None:
            answer.give(response)

    def _put(self, half: StoredRecord, commits: bool, ended: WhenStored, late: Late) -> None:
        """Put the committed message, then the op message, into the same turn.

        :raises SendRefusedError: they cannot be stored now.
        :raises ValueError: the half message names no queue.
        """
        op = op_message(half.queue_offset, self._store_host, self._clock.now_ms())
        if commits:
            message = committed(half)
            read = from_map(message.properties, half.properties)
            self._turn.put_together(((message, read), (op, OP_READ)), ended, late)
        else:
            self._turn.put_inner(op, ended, OP_READ, late)

    def _ended(
        self,
        answer: OneAnswer,
        request: Request[EndTransactionRequestHeader],
        offset: int,
        outcome: Stored | SendRefusedError,
    ) -> None:
        if isinstance(outcome, SendRefusedError):
            answer.give(Response(outcome.code, remark=outcome.remark))
            self._table.unchanged(offset)
            return
        if request.header.commit_or_rollback == TRANSACTION_COMMIT:
            self.committed += 1
        else:
            self.rolled_back += 1
        answer.give(_DONE)
        self._table.ended(offset)


def _refuse(half: StoredRecord | None, header: EndTransactionRequestHeader) -> str | None:
    """What is wrong with the end of a transaction, in the words of ``checkPrepareMessage``."""
    if half is None or half.topic != TRANS_HALF_TOPIC:
        return _NOT_FOUND
    if half.properties.get(PGROUP) != header.producer_group:
        return "The producer group wrong"
    if half.queue_offset != header.tran_state_table_offset:
        return "The transaction state table offset wrong"
    return None
