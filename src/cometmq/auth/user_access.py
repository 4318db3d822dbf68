"""ACL 2.0 as an access model, in which users sign requests and policies decide.

It corresponds to RocketMQ's ``AuthenticationEvaluator`` and ``AuthorizationEvaluator``.
"""

from __future__ import annotations

import json
import logging
from typing import Final, NamedTuple

from cometmq.auth.model import Account, DeniedError
from cometmq.auth.plain import PUB, SUB, PlainAccount
from cometmq.auth.plain_changes import listed
from cometmq.auth.plain_files import PlainFiles
from cometmq.auth.policies import DISABLE, NORMAL, SUPER, EntryInfo, PolicyInfo, UserAccount
from cometmq.auth.users import UserTable
from cometmq.options import ConfigError
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.processors import Response
from cometmq.remoting.signing import Credentials, Signer

_log = logging.getLogger(__name__)

_CREDENTIALS: Final = "set an access key and its secret key"


class UserAccess:
    """An :class:`~cometmq.auth.model.AccessModel` that finds users and decides according to their policies.

    :param authorizes: if true, policies decide; otherwise every user may do everything.
    """

    def __init__(
        self,
        table: UserTable,
        *,
        cluster: str,
        authorizes: bool,
        unsigned: frozenset[int] = frozenset(),
        unchecked: frozenset[int] = frozenset(),
    ) -> None:
        self.table: Final = table
        self.unsigned = unsigned
        self.unchecked = unchecked
        self._cluster = cluster
        self._authorizes = authorizes

    @property
    def version(self) -> int:
        """A number that grows with every change to users or policies."""
        return self.table.version

    def account(self, access_key: str | None, address: str, _code: int) -> Account:
        """Return the user who makes a request."""
        if not access_key:
            raise DeniedError("username cannot be null.", next_step=f"this server requires credentials: {_CREDENTIALS}")
        user = self.table.users.get(access_key)
        if user is None:
            raise DeniedError(f"User:{access_key} is not found.", next_step="check the access key")
        if user.status == DISABLE:
            raise DeniedError(f"User:{access_key} is disabled.", next_step="ask an administrator")
        is_super = user.kind == SUPER or not self._authorizes
        return UserAccount(user, Signer(user.password), self._cluster, address, is_super)

    def bad_signature(self, _account: Account) -> DeniedError:
        """Return the error for a request that is not signed with the user's password."""
        return DeniedError("check signature failed.", next_step="the secret key is not this user's password")

    def answer(self, denied: DeniedError) -> Response:
        """Return Apache's NO_PERMISSION response."""
        step = f" ({denied.next_step})" if denied.next_step else ""
        return Response(ResponseCode.NO_PERMISSION, remark=f"{denied.message}{step}")


class Named(NamedTuple):
    """An account's name and secret in a configuration key."""

    name: str
    secret: str


def parse_account(key: str, text: str, name_field: str, secret_field: str) -> Named | None:
    """Parse an account given as JSON, for example ``{"username":"…","password":"…"}``; return ``None`` if it is empty.

    :raises ConfigError: the value is malformed; the message does not contain the value.
    """
    if not text.strip():
        return None
    try:
        found = json.loads(text)
        name, secret = found[name_field], found[secret_field]
    except (ValueError, TypeError, KeyError):
        name = secret = None
    if not isinstance(name, str) or not isinstance(secret, str) or not name or not secret:
        form = f'{{"{name_field}":"…","{secret_field}":"…"}}'
        raise ConfigError(f"{key} must have the form {form}")
    return Named(name, secret)


def credentials_of(named: Named | None) -> Credentials | None:
    """Return the account with which this server signs its own requests."""
    return None if named is None else Credentials(named.name, named.secret)


def create_missing(table: UserTable, *supers: Named | None) -> None:
    """Create the configured super users that do not exist yet (``initUser``).

    :raises AuthError: a super user is invalid.
    """
    for named in supers:
        if named is not None and named.name not in table.users:
            table.create(named.name, named.secret, SUPER)


def migrate(table: UserTable, files: PlainFiles) -> int:
    """Create users and policies for those ACL 1.0 accounts that have none yet (``AuthMigrator``). Return the number of
    created users.

    :raises AuthError: an account is invalid.
    """
    made = 0
    _, shown = listed(files)
    secrets = files.secrets()
    for entry in shown:
        account = files.rules.accounts.get(entry["accessKey"])
        if account is None or account.name in table.users:
            continue
        table.create(account.name, secrets[account.name], SUPER if account.admin else NORMAL)
        policies = [policy for policy in (_custom(account), _default(account, entry)) if policy.entries]
        if policies:
            table.put_policies(account.name, policies)
        if entry.get("whiteRemoteAddress"):
            _log.warning("account %s has a whiteRemoteAddress, which ACL 2.0 does not support", account.name)
        made += 1
    return made


def _custom(account: PlainAccount) -> PolicyInfo:
    entries = [
        _entry(f"Group:{name.removeprefix('%RETRY%')}" if name.startswith("%RETRY%") else f"Topic:{name}", bits)
        for name, bits in (account.permissions or {}).items()
    ]
    return PolicyInfo("Custom", entries)


def _default(account: PlainAccount, entry: dict[str, object]) -> PolicyInfo:
    entries: list[EntryInfo] = []
    if entry.get("defaultTopicPerm"):
        entries.append(_entry("Topic:*", account.default_topic))
    if entry.get("defaultGroupPerm"):
        entries.append(_entry("Group:*", account.default_group))
    return PolicyInfo("Default", entries)


def _entry(resource: str, bits: int) -> EntryInfo:
    actions = [name for name, bit in (("Pub", PUB), ("Sub", SUB)) if bits & bit]
    return EntryInfo(resource, actions or ["All"], decision="Allow" if actions else "Deny")


def codes_of(key: str, text: str) -> frozenset[int]:
    """Parse a whitelist of request codes: numbers or names, separated by commas.

    :raises ConfigError: a part of the text is not a code.
    """
    found: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        if part.isdecimal():
            found.add(int(part))
        elif part in RequestCode.__members__:
            found.add(int(RequestCode[part]))
        else:
            raise ConfigError(f"{key}: {part[:100]!r} is not a request code")
    return frozenset(found)
