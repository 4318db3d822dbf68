"""Open transactions for administrators: GET_OPEN_TRANSACTIONS (30037), which only CometMQ has."""

from __future__ import annotations

from cometmq.broker.half_message import real_queue
from cometmq.broker.open_transactions import OpenTransactions, describe
from cometmq.limits import MAX_LISTED_TRANSACTIONS, MAX_SEARCHED_TRANSACTIONS
from cometmq.message.properties import UNIQ_KEY
from cometmq.remoting import bodies
from cometmq.remoting.bodies import OpenTransaction, encode_body
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import GetOpenTransactionsRequestHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection


class TransactionAdmin:
    """Answers administrators about transactions that are neither committed nor rolled back."""

    def __init__(self, table: OpenTransactions) -> None:
        self._table = table

    def register(self, processors: ProcessorTable) -> None:
        """Answer the code about open transactions."""
        processors.register(RequestCode.GET_OPEN_TRANSACTIONS, GetOpenTransactionsRequestHeader, self.list)

    def list(
        self, _connection: ServerConnection, request: Request[GetOpenTransactionsRequestHeader], _body: bytes
    ) -> Response:
        """So many from an offset on, of one group or of all; ``nextOffset`` says where to go on."""
        header = request.header
        most = min(max(header.max_num, 1), MAX_LISTED_TRANSACTIONS)
        listed: list[OpenTransaction] = []
        next_offset = None
        for looked_at, offset in enumerate(self._table.offsets(header.offset)):
            if len(listed) == most or looked_at == MAX_SEARCHED_TRANSACTIONS:
                next_offset = offset
                break
            found = self._describe(offset)
            if found is not None and header.group in (None, found.group):
                listed.append(found)
        answer = bodies.OpenTransactions(count=self._table.count, transactions=listed, next_offset=next_offset)
        return Response(body=encode_body(answer))

    def _describe(self, offset: int) -> OpenTransaction | None:
        half = self._table.record(offset)
        if half is None:
            return None
        known = self._table.known(offset) or describe(half)
        try:
            topic, queue_id = real_queue(half)
        except ValueError:
            topic, queue_id = "", -1
        return OpenTransaction(
            half_offset=offset,
            group=known.group,
            topic=topic,
            queue_id=queue_id,
            uniq_key=half.properties.get(UNIQ_KEY, ""),
            begun=known.begun_ms,
            check_times=known.check_times,
            immunity_ms=known.immunity_ms,
        )
