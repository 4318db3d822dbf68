"""Tells a broker how a transaction ended: END_TRANSACTION (37)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from cometmq.client.errors import BrokerError, RemotingError
from cometmq.client.hooks import EndTransactionContext, EndTransactionHook, call_all
from cometmq.client.instance import ClientInstance
from cometmq.client.transaction import TransactionState
from cometmq.message.message import Message, MessageExt
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import EndTransactionRequestHeader

log = logging.getLogger(__name__)


class HalfMessage(msgspec.Struct, frozen=True):
    """Where a half message stands."""

    message: Message | MessageExt
    transaction_id: str
    address: str
    """Of the broker."""
    queue_offset: int
    commit_log_offset: int


class TransactionEnds:
    """Sends the ends of one producer group's transactions."""

    def __init__(
        self, instance: ClientInstance, group: str, timeout_s: float, hooks: Sequence[EndTransactionHook]
    ) -> None:
        self._instance = instance
        self._group = group
        self._timeout_s = timeout_s
        self._hooks = hooks

    async def end(self, half: HalfMessage, state: TransactionState, *, from_check: bool) -> bool:
        """Send it and return whether the broker has stored it; an UNKNOWN is not answered, so never.

        A failure is logged: the broker asks again.
        """
        header = EndTransactionRequestHeader(
            producer_group=self._group,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.commit_log_offset,
            commit_or_rollback=int(state),
            msg_id=half.transaction_id,
            from_transaction_check=from_check,
            transaction_id=half.transaction_id,
        )
        remoting = self._instance.remoting
        confirmed = False
        try:
            if state is TransactionState.UNKNOWN:
                await remoting.invoke_oneway(
                    half.address, RequestCode.END_TRANSACTION, header, timeout_s=self._timeout_s
                )
            else:
                doing = f"ending transaction {half.transaction_id}"
                await self._instance.call(
                    half.address, RequestCode.END_TRANSACTION, header, doing=doing, timeout_s=self._timeout_s
                )
                confirmed = True
        except (RemotingError, BrokerError) as error:
            log.warning("transaction %s stays open until the broker asks: %s", half.transaction_id, error)
        if self._hooks:
            context = EndTransactionContext(
                producer_group=self._group,
                message=half.message,
                transaction_id=half.transaction_id,
                broker_address=half.address,
                state=state.name,
                from_transaction_check=from_check,
                confirmed=confirmed,
            )
            call_all(self._hooks, context)
        return confirmed
