"""The access pages: the cluster's users, policies and quotas, and a permission test."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from cometmq.auth.model import AuthError
from cometmq.auth.policies import AclInfo
from cometmq.auth.quota.model import Limits, QuotaInfo
from cometmq.client.admin.accounts import PlainAccounts
from cometmq.client.admin.decisions import Decision, decision_of, need_of, plain_decision
from cometmq.client.errors import AccessDeniedError, BrokerError, ClientError
from cometmq.console.listing import listing
from cometmq.console.page import Ask, FormError, NotFoundError, page
from cometmq.message.hosts import stored_ip
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.errors import RemotingError
from cometmq.remoting.permissions import Action, Need

_ACTIONS: Final = tuple(one.value for one in Action)
_QUOTAS: Final = 500


@dataclass(frozen=True)
class PolicyLine:
    """One policy entry of a user."""

    user: str
    kind: str
    resource: str
    actions: str
    sources: str
    decision: str


async def show_access(ask: Ask) -> Response:
    """Show the users and policies on one broker, and the result of the permission test described by the page's
    address.
    """
    try:
        users = {user.username or "": user for user in await ask.admin.users()}
    except BrokerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        return await _show_plain(ask)
    found = listing(sorted(users), ask.text("q"), ask.whole("page"))
    shown = set(found.names)
    policies = [line for info in await ask.admin.policies() for line in _lines(info) if line.user in shown]
    return ask.page(
        "access/list.html",
        users=[users[name] for name in found.names],
        names=sorted(users)[:1_000],
        found=found,
        policies=policies[:1_000],
        actions=_ACTIONS,
        decision=await _decision(ask),
        quotas=await _quotas(ask),
        given_limits=Limits.given,
    )


async def _show_plain(ask: Ask) -> Response:
    """Show the accounts of ACL 1.0, which can be changed only in the brokers' files, or
    instructions to set up users.
    """
    known = PlainAccounts()
    try:
        known = await ask.admin.plain_accounts()
    except AccessDeniedError:
        raise
    except BrokerError:  # the broker has no accounts, or is too old to report them
        pass
    accounts = {one.access_key: one for one in known.plain_access_configs or ()}
    decision = None
    if accounts and (tested := _tested(ask)) is not None:
        user, need, source = tested
        if user not in accounts:
            raise NotFoundError(ask.t("account {name} does not exist", name=user))
        decision = plain_decision(accounts[user], known.global_white_addrs or (), need, source)
    found = listing(sorted(accounts), ask.text("q"), ask.whole("page"))
    return ask.page(
        "access/plain.html" if accounts else "access/none.html",
        accounts=[accounts[name] for name in found.names],
        names=sorted(accounts)[:1_000],
        found=found,
        white=known.global_white_addrs or (),
        actions=_ACTIONS,
        decision=decision,
        quotas=await _quotas(ask),
        given_limits=Limits.given,
    )


def _tested(ask: Ask) -> tuple[str, Need, str] | None:
    """Return the permission test's user, request and source address from the page's address."""
    user, action, resource = ask.text("user"), ask.text("action"), ask.text("resource")
    source = ask.text("from") or "127.0.0.1"
    if not user or not resource:
        return None
    try:
        need = need_of(action, resource)
    except AuthError as error:
        raise FormError(error.message, next_step=error.next_step) from error
    if stored_ip(source) is None:
        raise FormError(ask.t("{name} is not a valid address", name=source))
    return user, need, source


async def _decision(ask: Ask) -> Decision | None:
    tested = _tested(ask)
    if tested is None:
        return None
    user, need, source = tested
    clusters = sorted((await ask.admin.cluster_info()).cluster_addr_table)
    return await decision_of(ask.admin, user, need, source, cluster=clusters[0] if clusters else "DefaultCluster")


def _lines(info: AclInfo) -> list[PolicyLine]:
    return [
        PolicyLine(
            (info.subject or "").removeprefix("User:"),
            policy.policy_type or "",
            entry.resource or "",
            ", ".join(entry.actions or ()),
            ", ".join(entry.source_ips or ()),
            entry.decision or "",
        )
        for policy in info.policies or ()
        for entry in policy.entries or ()
    ]


async def _quotas(ask: Ask) -> list[tuple[str, QuotaInfo]]:
    """Return the quotas on each broker. Apache's brokers have no quotas."""
    with suppress(BrokerError, RemotingError, ClientError):
        found = await ask.admin.quotas()
        return [(broker, info) for broker, infos in sorted(found.items()) for info in infos][:_QUOTAS]
    return []


ROUTES = (page("/access", show_access),)
