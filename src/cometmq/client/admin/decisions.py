"""Tells whether a user may perform an action, and why, by the users and policies of a server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from cometmq.auth.addresses import canonical, parse_pattern
from cometmq.auth.plain import read_account
from cometmq.auth.policies import DISABLE, SUPER, Resource, User, UserAccount, read_policies
from cometmq.client.admin import Admin
from cometmq.client.admin.accounts import PlainAccountInfo
from cometmq.message.hosts import parsed_ip
from cometmq.remoting.permissions import EVERY, Action, Kind, Need, on_group, on_topic

_NO_SECRET = "not-known-here"
"""Placeholder secret for parsing an account; decisions do not depend on the secret."""


@dataclass(frozen=True)
class Decision:
    """A server's decision on a hypothetical request."""

    allowed: bool
    why: str


def need_of(action: str, resource: str) -> Need:
    """Return the permissions required for an action on a resource (``Topic:…``, ``Group:…`` or ``Cluster:…``).

    :raises ValueError: the action is unknown, or the resource has no kind.
    """
    wanted = next((one for one in Action if one.value.lower() == action.lower()), None)
    if wanted is None:
        raise ValueError(f"unknown action {action}: use one of {', '.join(one.value for one in Action)}")
    found = Resource.parse(resource)
    if found.kind is None:
        raise ValueError("the resource must begin with its kind: Topic:…, Group:… or Cluster:…")
    if found.kind is Kind.CLUSTER:
        return Need(Kind.CLUSTER, "", (wanted,))
    name = resource.partition(":")[2]
    if name == EVERY:
        return Need(found.kind, EVERY, (wanted,))
    return on_topic(name, wanted) if found.kind is Kind.TOPIC else on_group(name, wanted)


async def decision_of(
    admin: Admin, name: str, need: Need, source: str, *, cluster: str, address: str | None = None
) -> Decision:
    """Return the decision that a server would make.

    :param source: address of the request's sender.
    :param address: address of the server; by default any broker.
    :raises ClientError: the user does not exist.
    """
    info = await admin.user(name, address=address)
    policies = (await admin.policies_of(name, address=address)).policies
    read = read_policies(policies) if policies else {}
    user = User(name, "", info.user_type or "", info.user_status or "", read)
    if user.status == DISABLE:
        return Decision(False, f"User:{name} is disabled.")
    is_super = user.kind.lower() == SUPER.lower()
    denied = UserAccount(user, None, cluster, source, is_super).refusal(need, 0)
    if is_super:
        return Decision(denied is None, "a super user has all permissions")
    entry = user.decide(need, cluster, parsed_ip(source))
    why = f"{entry.info().decision} on {entry.resource}" if entry else "no policy matches"
    return Decision(denied is None, why)


def plain_decision(account: PlainAccountInfo, white: Iterable[str], need: Need, source: str) -> Decision:
    """Return the decision that a broker with ACL 1.0 would make.

    :param white: addresses that need no signature.
    :param source: address of the request's sender.
    :raises AuthError: the broker's account or addresses are malformed.
    """
    read = read_account(msgspec.to_builtins(account) | {"secretKey": _NO_SECRET})
    address = canonical(source)
    if read.white(address) or any(parse_pattern(pattern)(address) for pattern in white):
        return Decision(True, "requests from this address need no signature")
    denied = read.refusal(need, 0)
    return Decision(denied is None, "plain_acl.yml allows it" if denied is None else denied.message)
