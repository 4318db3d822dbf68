"""The interfaces between a broker's parts and the member of a set whose present life the broker is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from cometmq.auth.access_control import AccessControl
from cometmq.broker.config import SYNC_MASTER, BrokerConfig, LiveConfig
from cometmq.broker.context import BrokerContext
from cometmq.broker.failover.status import FailoverMember
from cometmq.broker.port_security import BrokerAccess
from cometmq.broker.replication.copies.account_copy import AccountCopy
from cometmq.broker.replication.copies.key_copy import KeyCopy, SetKeysProcessor
from cometmq.broker.replication.copies.set_copy import SetCopy
from cometmq.broker.replication.copies.user_copy import UserCopy
from cometmq.broker.replication.ha_service import HAService
from cometmq.broker.replication.members import FollowerSide, MasterSide
from cometmq.broker.replication.slave import Slave
from cometmq.broker.tables.set_keys import SetKeys
from cometmq.broker.turn.confirm_service import ConfirmService
from cometmq.broker.turn.group_transfer import GroupTransferService
from cometmq.broker.turn.slaves_in_sync import SlavesInSync
from cometmq.broker.turn.waiters import Transfers
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.processors import ProcessorTable, Response
from cometmq.store.message_store import MessageStore
from cometmq.threads import in_thread

CLIENT_CODES: Final = (
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.QUERY_MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
    RequestCode.QUERY_CORRECTION_OFFSET,
    RequestCode.QUERY_CONSUME_QUEUE,
)
"""The requests that a member refuses while it does not know what may be read."""

CHANGE_CODES: Final = (
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.POP_LITE_MESSAGE,
    RequestCode.ACK_LITE_MESSAGE,
)
"""The requests of consumers that a master refuses while its set confirms nothing, for the next master lacks them."""


class MemberSides(MasterSide, FollowerSide, Protocol):
    """A member, as replication, the store and the registration see it."""

    @property
    def registered_epoch(self) -> int:
        """Return the epoch of the broker's role (:class:`~cometmq.broker.registration.RegisteredMember`)."""

    @property
    def readable(self) -> int:
        """Return the log offset up to which messages may be read."""

    @property
    def client_refusal(self) -> str:
        """Return the reason why requests that read messages are refused, or an empty text."""

    @property
    def change_refusal(self) -> str:
        """Return the reason why offsets, locks and pops are refused, or an empty text."""

    def round_ended(self) -> None:
        """Take note of what the master has stored in this round of the event loop."""


@dataclass(frozen=True, slots=True)
class Membership:
    """The member of a set, for the broker that is its present life."""

    sides: MemberSides
    operated: FailoverMember
    keys: SetKeys

    def copies(self, live: LiveConfig, access: AccessControl | None, client: RemotingClient) -> list[SetCopy]:
        """Return what this member copies from its master and other slaves do not.

        :param client: sends the requests, signed with this broker's account.
        """
        found: list[SetCopy] = [KeyCopy(self.keys, live, client, self.sides)]
        if access is not None and access.users is not None:
            found.append(UserCopy(access.users, client))
        if access is not None and access.files is not None:
            found.append(AccountCopy(access.files, client, self.sides))
        return found

    def join(self, processors: ProcessorTable, *, is_slave: bool) -> None:
        """Answer the requests of other members.

        Let a slave answer reads only when it knows what may be read, and a master changes only while it is one.
        """
        processors.add(SetKeysProcessor(self.keys, self.sides))
        if is_slave:
            processors.gate(CLIENT_CODES, lambda: _refusal(self.sides.client_refusal))
        else:
            processors.gate(CHANGE_CODES, lambda: _refusal(self.sides.change_refusal))


def _refusal(reason: str) -> Response | None:
    if not reason:
        return None
    return Response(ResponseCode.SERVICE_NOT_AVAILABLE, remark=f"service not available now: {reason}")


async def open_store(config: BrokerConfig, member: Membership | None, **options: Any) -> MessageStore:
    """Open a broker's store. For the member of a set, it is opened in a thread, since its lease must be renewed
    meanwhile; the readable end is that of the beginning.

    :raises StoreError: the store cannot be opened.
    """
    if member is None:
        return MessageStore.open(config, **options)
    opening = asyncio.ensure_future(in_thread(MessageStore.open, config, readable=member.sides.readable, **options))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        await asyncio.wait([opening])
        if opening.exception() is None:
            await opening.result().close()
        raise


def build_slave(context: BrokerContext, access: BrokerAccess, member: Membership | None) -> Slave:
    """Create the part with which a broker follows its master."""
    if member is None:
        return Slave(context, access.own)
    return Slave(context, access.own, member.sides, partial(member.copies, context.live, access.accounts))


def open_replication(
    config: BrokerConfig, store: MessageStore, access: BrokerAccess, member: Membership | None
) -> tuple[HAService, Transfers | None]:
    """Create the port for slaves, and what sends wait for: the members of a set, slaves, or nobody."""
    timeout_s = config.slave_timeout / 1000
    guard = None if access.accounts is None else access.accounts.guard
    if member is not None:
        return HAService(config, store, None, access.tls, guard, member.sides), ConfirmService(
            clock=store.clock, timeout_s=timeout_s
        )
    in_sync = SlavesInSync(config.slaves_required, config.ha_slave_fallbehind_max)
    transfers = GroupTransferService(clock=store.clock, timeout_s=timeout_s, in_sync=in_sync)
    return HAService(
        config, store, transfers, access.tls, guard
    ), transfers if config.broker_role == SYNC_MASTER else None
