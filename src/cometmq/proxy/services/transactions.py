"""EndTransaction, and the checks of transactions that nobody ends (``EndTransactionActivity``)."""

from __future__ import annotations

import logging
from typing import Final

from cometmq.java_values import is_blank
from cometmq.message.message import split_records
from cometmq.message.names import RETRY_PREFIX
from cometmq.message.properties import PGROUP, REAL_TOPIC
from cometmq.message.record import RecordError
from cometmq.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from cometmq.proxy.context import EndpointContext
from cometmq.proxy.errors import OK, ProxyError
from cometmq.proxy.names import topic_of
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code, TransactionResolution, TransactionSource
from cometmq.proxy.rpc.call import Call
from cometmq.proxy.services.transaction_id import TransactionId
from cometmq.proxy.sessions import ClientSession
from cometmq.proxy.stored_message import to_proto
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    Header,
    HeaderError,
    from_ext,
)
from cometmq.remoting.permissions import Action, on_topic

_log = logging.getLogger(__name__)

_FLAGS: Final = {
    TransactionResolution.COMMIT: TRANSACTION_COMMIT,
    TransactionResolution.ROLLBACK: TRANSACTION_ROLLBACK,
}


class TransactionService:
    """Ends transactions."""

    def __init__(self, context: EndpointContext) -> None:
        self._context = context

    async def end_transaction(self, call: Call, request: v2.EndTransactionRequest) -> v2.EndTransactionResponse:
        """Commit or roll back a half message; without a resolution it is asked for again later."""
        topic = topic_of(request.topic)
        self._context.admit(call, [on_topic(topic, Action.PUB)])
        if not request.message_id:
            raise ProxyError(Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
        if is_blank(request.transaction_id):
            raise ProxyError(Code.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        place = TransactionId.decode(request.transaction_id, request.message_id)
        header = EndTransactionRequestHeader(
            producer_group=topic,
            tran_state_table_offset=place.queue_offset,
            commit_log_offset=place.log_offset,
            commit_or_rollback=_FLAGS.get(TransactionResolution(request.resolution), 0),
            msg_id=request.message_id,
            transaction_id=request.message_id,
            from_transaction_check=request.source == TransactionSource.SOURCE_SERVER_CHECK,
        )
        reply = await call.session.link.ask(place.broker, RequestCode.END_TRANSACTION, header)
        reply.checked()
        return v2.EndTransactionResponse(status=OK)

    def check(self, session: ClientSession, broker: str, fields: Header | dict[str, str], body: bytes) -> None:
        """Ask a producer about a half message (``CHECK_TRANSACTION_STATE``)."""
        try:
            header = fields if isinstance(fields, Header) else from_ext(CheckTransactionStateRequestHeader, fields)
            message = split_records(body, broker)[0]
        except (HeaderError, RecordError, IndexError) as error:
            _log.warning("a check of a transaction by %s cannot be read: %s", broker, error)
            return
        assert isinstance(header, CheckTransactionStateRequestHeader)
        topic = message.properties.get(REAL_TOPIC) or message.stored_topic.removeprefix(RETRY_PREFIX)
        place = TransactionId(broker, header.tran_state_table_offset, header.commit_log_offset, message.msg_id)
        command = v2.TelemetryCommand(
            recover_orphaned_transaction_command=v2.RecoverOrphanedTransactionCommand(
                message=to_proto(message, topic=topic), transaction_id=place.encode()
            )
        )
        for found in self._askable(session, message.properties.get(PGROUP, topic)):
            if found.stream is not None and found.stream.command(command):
                return
        _log.info("nobody is there to ask about a transaction of %s", topic)

    def _askable(self, session: ClientSession, group: str) -> list[ClientSession]:
        """The producer that is meant, then the others of its topic."""
        others = [
            other
            for other in self._context.sessions.all()
            if other is not session
            and other.heartbeat is not None
            and any(data.group_name == group for data in other.heartbeat.producer_data_set)
        ]
        return [session, *others]
