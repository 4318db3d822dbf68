"""The request handlers that masters and slaves share and that no other part of the broker uses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from cometmq.auth.access_control import AccessControl
from cometmq.auth.user_admin import UserAdmin
from cometmq.broker.admin.accounts import PlainAccountAdmin
from cometmq.broker.admin.groups import GroupAdmin
from cometmq.broker.admin.messages import QueueAdmin
from cometmq.broker.admin.offsets import OffsetAdmin
from cometmq.broker.admin.progress_sums import ProgressSumsAdmin
from cometmq.broker.admin.quotas import QuotaAdmin
from cometmq.broker.admin.relay import RelayAdmin
from cometmq.broker.admin.topics import TopicAdmin
from cometmq.broker.clients.client_manage import ClientManageProcessor
from cometmq.broker.clients.consumer_manage import ConsumerManageProcessor, LockProcessor
from cometmq.broker.context import BrokerContext
from cometmq.broker.pull.consumer_filters import ConsumerFilterManager
from cometmq.broker.pull.query_message import QueryProcessor
from cometmq.broker.registration import BrokerRegistration
from cometmq.broker.replication.copies.account_copy import SetAccountsProcessor
from cometmq.broker.replication.copies.user_copy import SetUsersProcessor
from cometmq.broker.replication.members import MasterSide
from cometmq.broker.replication.store_files import StoreFileProcessor
from cometmq.broker.replication.table_changes import TableChangesProcessor
from cometmq.broker.send.reply_message import ReplyMessageProcessor


def common_handlers(
    context: BrokerContext,
    filters: ConsumerFilterManager,
    registration: BrokerRegistration,
    write_deletions: Callable[[], Awaitable[None]],
) -> Iterator[object]:
    """Yield the handlers.

    :param write_deletions: writes the table of deleted topics, before slaves copy it.
    """
    yield ReplyMessageProcessor(context)
    yield QueryProcessor(context)
    yield ConsumerManageProcessor(context)
    yield ClientManageProcessor(context, filters)
    yield LockProcessor(context.locks, context.clients)
    yield TopicAdmin(context, registration.when_known)
    yield GroupAdmin(context)
    yield OffsetAdmin(context)
    yield ProgressSumsAdmin(context)
    yield QueueAdmin(context)
    yield RelayAdmin(context)
    yield QuotaAdmin(context.limiter)
    yield StoreFileProcessor(context.store.config.root, write_deletions)
    yield TableChangesProcessor(context)


def account_handlers(
    context: BrokerContext, access: AccessControl | None, member: MasterSide | None
) -> Iterator[object]:
    """Yield the handlers for changes of accounts, if accounts are checked.

    :param member: the member of a set that this broker is, whose other members copy the accounts.
    """
    others_have = None if member is None else context.tables.others_have
    if access is not None and access.files is not None:
        yield PlainAccountAdmin(context, access.files, others_have)
        if member is not None:
            yield SetAccountsProcessor(access.files, member)
    if access is not None and access.users is not None:
        yield UserAdmin(access.users, others_have)
        if member is not None:
            yield SetUsersProcessor(access.users)
