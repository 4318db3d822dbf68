"""Changes to users, policies and quotas. Only the confirmation form contains a new password; plans and logs never
contain one.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from cometmq.auth.model import AuthError
from cometmq.auth.policies import CUSTOM, DEFAULT, DISABLE, ENABLE, NORMAL, SUPER, EntryInfo, PolicyInfo, read_policies
from cometmq.auth.quota.model import MAX_LIMIT, Limits, QuotaInfo, Subject
from cometmq.auth.user_admin import UserInfo
from cometmq.client.errors import BrokerError
from cometmq.console.page import Ask, FormError, NotFoundError, Plan, Table, change, page
from cometmq.remoting.admin_headers import PutQuotaRequestHeader
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.permissions import Action

_ACCESS: Final = "/access"
_ACTIONS: Final = (*(one.value for one in Action), "All")
_LIMITS: Final = ("messagesIn", "bytesIn", "messagesOut", "bytesOut", "connections", "topics")
_NO_LIMIT: Final = -1


def _chosen(ask: Ask, name: str, choices: tuple[str, ...]) -> str | None:
    """Return the choice in a form field, or ``None`` if the field is empty."""
    text = ask.text(name) or None
    if text is not None and text not in choices:
        raise FormError(ask.t("{name} must be one of {choices}", name=name, choices=", ".join(choices)))
    return text


def _settings(ask: Ask, rows: list[tuple[str, Any, Any]]) -> Table:
    return Table((ask.t("Setting"), ask.t("Before"), ask.t("After")), rows)


# --- users ----------------------------------------------------------------------------------------
async def new_user(ask: Ask) -> Response:
    """Ask for the name and kind of a new user."""
    return ask.page("access/user_new.html")


async def show_user(ask: Ask) -> Response:
    """Show the form to change a user."""
    return ask.page("access/user.html", user=await ask.admin.user(ask.path("name")))


async def create_user(ask: Ask) -> Plan:
    """Create a user."""
    name, kind = ask.text("name"), _chosen(ask, "type", (NORMAL, SUPER)) or NORMAL
    if not name:
        raise FormError(ask.t("enter a name for the user"))
    if any(user.username == name for user in await ask.admin.users(name)):
        raise FormError(ask.t("user {name} already exists", name=name), next_step=ask.t("change it on its own page"))

    async def run() -> str:
        await ask.admin.create_user(UserInfo(name, str(ask.form["password"]), kind))
        return ask.t("User {name} is created.", name=name)

    return Plan(
        title=ask.t("Create user {name}", name=name),
        sentence=ask.t("The user is created on every broker, and on every nameserver with users."),
        action=ask.t("Create it"),
        what="user.create",
        subject=name,
        run=run,
        then=_ACCESS,
        back="/access/users/new",
        table=_settings(ask, [(ask.t("Kind"), None, kind)]),
        asks_password=True,
        details={"type": kind},
    )


async def alter_user(ask: Ask) -> Plan:
    """Change the given fields of a user."""
    name = ask.path("name")
    kind, status = _chosen(ask, "type", (NORMAL, SUPER)), _chosen(ask, "status", (ENABLE, DISABLE))
    is_new = ask.text("new_password") == "yes"
    user = await ask.admin.user(name)
    wanted = ((ask.t("Kind"), user.user_type, kind), (ask.t("State"), user.user_status, status))
    rows = [row for row in wanted if row[2] is not None and row[1] != row[2]]
    if not rows and not is_new:
        raise FormError(ask.t("user {name} already has these settings", name=name))
    details = {title: f"{old} -> {new}" for title, old, new in rows} | ({"password": "new"} if is_new else {})

    async def run() -> str:
        password = str(ask.form["password"]) if is_new else None
        await ask.admin.update_user(UserInfo(name, password, kind, status))
        return ask.t("User {name} is changed.", name=name)

    return Plan(
        title=ask.t("Change user {name}", name=name),
        sentence=ask.t("It takes effect with the user's next request."),
        action=ask.t("Change it"),
        what="user.alter",
        subject=name,
        run=run,
        then=_ACCESS,
        back=_ACCESS,
        table=_settings(ask, rows) if rows else None,
        asks_password=is_new,
        details=details,
    )


async def delete_user(ask: Ask) -> Plan:
    """Delete a user and their policies."""
    name = ask.path("name")
    await ask.admin.user(name)

    async def run() -> str:
        await ask.admin.delete_user(name)
        return ask.t("User {name} is deleted.", name=name)

    return Plan(
        title=ask.t("Delete user {name}", name=name),
        sentence=ask.t("The user and their policies are deleted. Programs that use this account are then rejected."),
        action=ask.t("Delete it"),
        what="user.delete",
        subject=name,
        run=run,
        then=_ACCESS,
        back=_ACCESS,
        typed=name,
    )


# --- policies -------------------------------------------------------------------------------------
async def policy_form(ask: Ask) -> Response:
    """Ask for a policy. An existing policy prefills the form."""
    user, resource = ask.text("user"), ask.text("resource")
    entry = await _entry(ask, user, resource, ask.text("kind") or CUSTOM) if user and resource else None
    return ask.page("access/policy.html", policy=entry, actions=_ACTIONS)


async def _entry(ask: Ask, user: str, resource: str, kind: str) -> EntryInfo | None:
    policies = (await ask.admin.policies_of(user)).policies or ()
    entries = (one for policy in policies if (policy.policy_type or CUSTOM) == kind for one in policy.entries or ())
    return next((one for one in entries if one.resource == resource), None)


def _words(entry: EntryInfo | None) -> str | None:
    if entry is None:
        return None
    sources = f" ← {', '.join(entry.source_ips)}" if entry.source_ips else ""
    return f"{entry.decision} {', '.join(entry.actions or ())}{sources}"


async def put_policy(ask: Ask) -> Plan:
    """Create a policy entry, or change the existing entry for the resource."""
    user, resource = ask.text("user"), ask.text("resource")
    kind = _chosen(ask, "kind", (CUSTOM, DEFAULT)) or CUSTOM
    actions = [one for one in ask.form.getlist("actions") if isinstance(one, str)]
    sources = [one.strip() for one in ask.text("sources", longest=4_000).split(",") if one.strip()]
    wanted = EntryInfo(resource, actions, sources, ask.text("decision"))
    policies = [PolicyInfo(kind, [wanted])]
    try:
        read_policies(policies)
    except AuthError as error:
        raise FormError(error.message, next_step=error.next_step) from error
    await ask.admin.user(user)
    before = await _entry(ask, user, resource, kind)

    async def run() -> str:
        await ask.admin.put_policies(user, policies)
        return ask.t("The policy of {name} on {resource} is set.", name=user, resource=resource)

    return Plan(
        title=ask.t("Policy of {name} on {resource}", name=user, resource=resource),
        sentence=ask.t("It takes effect with the user's next request."),
        action=ask.t("Change it") if before else ask.t("Create it"),
        what="policy.put",
        subject=f"{user} {resource}",
        run=run,
        then=_ACCESS,
        back=_ACCESS,
        table=_settings(ask, [(f"{kind} {resource}", _words(before), _words(wanted))]),
        details={"kind": kind, "before": _words(before) or "", "after": _words(wanted)},
    )


async def delete_policy(ask: Ask) -> Plan:
    """Delete an entry from a policy."""
    user, resource = ask.text("user"), ask.text("resource")
    kind = _chosen(ask, "kind", (CUSTOM, DEFAULT)) or CUSTOM
    before = await _entry(ask, user, resource, kind)
    if before is None:
        raise NotFoundError(ask.t("{name} has no policy of this type on {resource}", name=user, resource=resource))

    async def run() -> str:
        await ask.admin.delete_policies(user, resource, kind)
        return ask.t("The policy of {name} on {resource} is deleted.", name=user, resource=resource)

    return Plan(
        title=ask.t("Delete the policy of {name} on {resource}", name=user, resource=resource),
        sentence=ask.t("It takes effect with the user's next request."),
        action=ask.t("Delete it"),
        what="policy.delete",
        subject=f"{user} {resource}",
        run=run,
        then=_ACCESS,
        back=_ACCESS,
        typed=resource,
        table=_settings(ask, [(f"{kind} {resource}", _words(before), None)]),
        details={"kind": kind, "before": _words(before) or ""},
    )


# --- quotas ---------------------------------------------------------------------------------------
async def quota_form(ask: Ask) -> Response:
    """Ask for the limits of a subject."""
    return ask.page("access/quota.html")


def _subject(ask: Ask) -> str:
    try:
        return str(Subject.parse(ask.text("subject")))
    except AuthError as error:
        raise FormError(error.message, next_step=error.next_step) from error


async def _quotas_of(ask: Ask, subject: str) -> dict[str, QuotaInfo]:
    """Return the subject's quota on each broker that has one."""
    found = await ask.admin.quotas()
    return {broker: info for broker, infos in sorted(found.items()) for info in infos if info.subject == subject}


def _limits_words(limits: Limits | None) -> str | None:
    return None if limits is None else ", ".join(f"{name}: {most:,}" for name, most in limits.given().items())


async def put_quota(ask: Ask) -> Plan:
    """Create or change the quota of a subject on every broker."""
    subject = _subject(ask)
    amounts = {name: ask.whole(name, least=_NO_LIMIT, most=MAX_LIMIT) for name in _LIMITS}
    given = {name: amount for name, amount in amounts.items() if amount is not None}
    if not given:
        raise FormError(ask.t("enter at least one limit"))
    before = await _quotas_of(ask, subject)
    rows = [
        (f"{broker} {name}", info.limits.given().get(name), None if amount == _NO_LIMIT else amount)
        for broker, info in before.items()
        for name, amount in given.items()
    ] or [(name, None, None if amount == _NO_LIMIT else amount) for name, amount in given.items()]

    async def run() -> str:
        await ask.admin.put_quota(PutQuotaRequestHeader(subject, *amounts.values()))
        return ask.t("The quota of {name} is set.", name=subject)

    return Plan(
        title=ask.t("Quota of {name}", name=subject),
        sentence=ask.t("Each broker applies the limits separately, from the next request on."),
        action=ask.t("Set it"),
        what="quota.put",
        subject=subject,
        run=run,
        then=_ACCESS,
        back="/access/quotas/new",
        table=_settings(ask, rows),
        details=given,
    )


async def delete_quota(ask: Ask) -> Plan:
    """Delete the quota of a subject on every broker."""
    subject = _subject(ask)
    before = await _quotas_of(ask, subject)
    if not before:
        raise NotFoundError(ask.t("{name} has no quota", name=subject))

    async def run() -> str:
        for broker in before:
            try:
                await ask.admin.delete_quota(subject, address=broker)
            except BrokerError as error:
                if error.code != ResponseCode.QUERY_NOT_FOUND:  # the quota was deleted in the meantime
                    raise
        return ask.t("The quota of {name} is deleted.", name=subject)

    return Plan(
        title=ask.t("Delete the quota of {name}", name=subject),
        sentence=ask.t("Each broker applies the limits separately, from the next request on."),
        action=ask.t("Delete it"),
        what="quota.delete",
        subject=subject,
        run=run,
        then=_ACCESS,
        back=_ACCESS,
        typed=subject,
        table=_settings(ask, [(broker, _limits_words(info.limits), None) for broker, info in before.items()]),
        details={broker: _limits_words(info.limits) for broker, info in before.items()},
    )


ROUTES = (
    page("/access/users/new", new_user),
    change("/access/users/create", create_user),
    page("/access/users/{name}", show_user),
    change("/access/users/{name}/alter", alter_user),
    change("/access/users/{name}/delete", delete_user),
    page("/access/policies/new", policy_form),
    change("/access/policies/put", put_policy),
    change("/access/policies/delete", delete_policy),
    page("/access/quotas/new", quota_form),
    change("/access/quotas/put", put_quota),
    change("/access/quotas/delete", delete_quota),
)
