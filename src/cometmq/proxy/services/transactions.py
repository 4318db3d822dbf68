"""The method EndTransaction, and checks of open transactions (``EndTransactionActivity``)."""

from __future__ import annotations

import logging
from typing import Final

from cometmq.java_values import is_blank
from cometmq.message.message import split_records
from cometmq.message.names import RETRY_PREFIX
from cometmq.message.properties import PGROUP, REAL_TOPIC
from cometmq.message.record import RecordError
from cometmq.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from cometmq.proxy.backend.backend import BrokerRequest
from cometmq.proxy.context import EndpointContext
from cometmq.proxy.converter import topic_of
from cometmq.proxy.errors import OK, ProxyError
from cometmq.proxy.message_bytes import to_proto
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code, TransactionResolution, TransactionSource
from cometmq.proxy.rpc.call import Call
from cometmq.proxy.services.transaction_id import TransactionId
from cometmq.proxy.sessions import ClientSession, Sessions
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from cometmq.remoting.permissions import Action, on_topic

_log = logging.getLogger(__name__)

_FLAGS: Final = {
    TransactionResolution.COMMIT: TRANSACTION_COMMIT,
    TransactionResolution.ROLLBACK: TRANSACTION_ROLLBACK,
}


class TransactionService:
    """The method that ends transactions."""

    def __init__(self, context: EndpointContext) -> None:
        self._context = context

    async def end_transaction(self, call: Call, request: v2.EndTransactionRequest) -> v2.EndTransactionResponse:
        """Commit or roll back a half message. If no resolution is given, the broker checks the message again later."""
        topic = topic_of(request.topic)
        session = self._context.sessions.admit(call, [on_topic(topic, Action.PUB)])
        if not request.message_id:
            raise ProxyError(Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
        if is_blank(request.transaction_id):
            raise ProxyError(Code.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        position = TransactionId.decode(request.transaction_id, request.message_id)
        flag = _FLAGS.get(TransactionResolution(request.resolution))
        if flag is None:
            return v2.EndTransactionResponse(status=OK)
        header = EndTransactionRequestHeader(
            producer_group=topic,
            tran_state_table_offset=position.queue_offset,
            commit_log_offset=position.log_offset,
            commit_or_rollback=flag,
            msg_id=request.message_id,
            transaction_id=request.message_id,
            from_transaction_check=request.source == TransactionSource.SOURCE_SERVER_CHECK,
        )
        reply = await session.link.ask(position.broker, RequestCode.END_TRANSACTION, header)
        reply.checked()
        return v2.EndTransactionResponse(status=OK)


def check_transaction(sessions: Sessions, session: ClientSession, request: BrokerRequest) -> None:
    """Ask a producer in the group whether to commit a half message (``CHECK_TRANSACTION_STATE``)."""
    header = request.header
    assert isinstance(header, CheckTransactionStateRequestHeader)
    try:
        message = split_records(request.body, request.broker)[0]
    except (RecordError, IndexError) as error:
        _log.warning("cannot read a transaction check from broker %s: %s", request.broker, error)
        return
    topic = message.properties.get(REAL_TOPIC) or message.stored_topic.removeprefix(RETRY_PREFIX)
    position = TransactionId(request.broker, header.tran_state_table_offset, header.commit_log_offset, message.msg_id)
    command = v2.TelemetryCommand(
        recover_orphaned_transaction_command=v2.RecoverOrphanedTransactionCommand(
            message=to_proto(message, topic=topic), transaction_id=position.encode()
        )
    )
    for producer in (session, *sessions.producers_of(message.properties.get(PGROUP, topic))):
        if producer.stream is not None and producer.stream.send_command(command):
            return
    _log.info("no connected producer for %s can answer a transaction check", topic)
