"""ACL 1.0 files: ``plain_acl.yml`` and the ``acl/**/*.yml`` files next to it (``PlainPermissionManager``).

A check compares the names, sizes and times of the files. A change takes effect once two consecutive checks agree. So a
file is not read while an editor or a deployment is replacing it, and the accounts in a file that is missing for a
moment are kept. Then all files are read in a thread and applied together. If a file is invalid, all accounts remain
unchanged, and the log says why. If several files contain the same account, the first file counts: files in ``acl`` in
the order of their names, and then ``plain_acl.yml``.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from cometmq.auth.addresses import AddressMatch, canonical, parse_pattern
from cometmq.auth.limits import MAX_ACL_FILES
from cometmq.auth.model import Account, AuthError, DeniedError
from cometmq.auth.plain import TRUSTED, PlainAccount, read_account
from cometmq.auth.yaml_file import read_yaml
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.processors import Response
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

DEFAULT_FILE: Final = "plain_acl.yml"
DIRECTORY: Final = "acl"
ENDINGS: Final = (".yml", ".yaml")
TOOLS_FILE: Final = "tools.yml"
_EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "
"""The name of Apache's exception, which clients and tools look for in error messages."""

Seen = tuple[tuple[str, int, int, int], ...]
"""The path, inode, size and modification time of each file."""


@dataclass(frozen=True)
class Rules:
    """The accounts and addresses in all files."""

    accounts: dict[str, PlainAccount]
    places: dict[str, Path]
    """The file that contains each account."""
    white: tuple[AddressMatch, ...]


class PlainFiles:
    """An :class:`~cometmq.auth.model.AccessModel` that reads accounts from a directory's ACL 1.0 files."""

    def __init__(self, directory: Path) -> None:
        """Read the files, which are checked for changes by :meth:`look`.

        :raises AuthError: a file is invalid, or there is no file.
        """
        self.directory: Final = directory
        self.version = 0
        self.unsigned: frozenset[int] = frozenset()
        self.unchecked: frozenset[int] = frozenset()
        self._seen = look(directory)
        self._changed: Seen | None = None
        self.trouble = ""
        """The reason why the files were not loaded the last time; the accounts are those of before."""
        if not self._seen:
            raise AuthError(
                f"aclEnable=true, but the file is missing: {directory / DEFAULT_FILE}",
                next_step="write the file with an account (docs/security.md), or set aclPath to its directory",
            )
        for path, *_ in self._seen:
            if stat.S_IMODE(Path(path).stat().st_mode) & 0o077:
                _log.warning("other users can read the secret keys in %s: set its mode to 600", path)
        self.rules = read_rules(self._seen)

    @property
    def seen(self) -> Seen:
        """Return the files that were read the last time."""
        return self._seen

    @property
    def paths(self) -> list[Path]:
        """Return the files in order of precedence."""
        return [Path(name) for name, *_ in self._seen]

    # --- AccessModel --------------------------------------------------------------------------
    def account(self, access_key: str | None, address: str, code: int) -> Account:
        """Return the account that makes a request, with the checks in the order of
        ``PlainPermissionManager.validate``.
        """
        rules = self.rules
        address = canonical(address)
        if any(matches(address) for matches in rules.white):
            return TRUSTED
        if access_key is None:
            raise DeniedError(
                "No accessKey is configured",
                next_step="this server requires credentials: set an access key and its secret key",
            )
        account = rules.accounts.get(access_key)
        if account is None:
            raise DeniedError(
                f"No acl config for {access_key}",
                next_step="the server has no account with this access key: check the key and the server's "
                "plain_acl.yml",
            )
        return TRUSTED if account.white(address) else account

    def bad_signature(self, account: Account) -> DeniedError:
        """Return the error for a request that is not signed with the account's secret."""
        return DeniedError(
            f"Check signature failed for accessKey={account.name}",
            next_step="the secret key does not belong to this access key",
        )

    def answer(self, denied: DeniedError) -> Response:
        """Return Apache's response for an ``AclException``."""
        step = f", {denied.next_step}" if denied.next_step else ""
        return Response(ResponseCode.SYSTEM_ERROR, remark=f"{_EXCEPTION}{denied.message}{step}")

    def secrets(self) -> dict[str, str]:
        """Read each account's secret key from the files; this object does not keep secrets.

        :raises AuthError: a file is invalid.
        """
        found: dict[str, str] = {}
        for path in self.paths:
            for entry in listed_in(read_yaml(path), "accounts"):
                found.setdefault(str(entry["accessKey"]), str(entry["secretKey"]))
        return found

    # --- files --------------------------------------------------------------------------------
    async def look(self) -> None:
        """Check the files for changes, and read changed files if this check and the previous one agree."""
        seen = await in_thread(look, self.directory)
        if seen == self._seen:
            self._changed = None
        elif seen != self._changed:
            self._changed = seen
        else:
            self._seen, self._changed = seen, None
            try:
                rules = await in_thread(read_rules, seen)
            except (AuthError, OSError) as error:
                self.trouble = str(error)
                _log.error("the accounts were not reloaded: %s", error)
            else:
                self._use(rules)

    def reload(self) -> None:
        """Read the files immediately, because this process has changed one of them.

        :raises AuthError: a file is invalid; the accounts remain unchanged.
        """
        self._seen, self._changed = look(self.directory), None
        self._use(read_rules(self._seen))

    def _use(self, rules: Rules) -> None:
        self.rules, self.trouble = rules, ""
        self.version += 1
        _log.info("%d accounts loaded from %s", len(rules.accounts), self.directory)


def look(directory: Path) -> Seen:
    """List the account files below a directory in order of precedence."""
    found: list[Path] = []
    for root, folders, names in os.walk(directory / DIRECTORY):
        folders.sort()
        found += [Path(root, name) for name in sorted(names) if name.endswith(ENDINGS) and name != TOOLS_FILE]
        if len(found) > MAX_ACL_FILES:
            break
    seen: list[tuple[str, int, int, int]] = []
    for path in (*found[:MAX_ACL_FILES], directory / DEFAULT_FILE):
        try:
            status = path.stat()
        except OSError:
            continue
        seen.append((str(path), status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(seen)


def read_rules(seen: Seen) -> Rules:
    """Read the files found by a check.

    :raises AuthError: a file is invalid, or has been deleted since the check.
    """
    return rules_of((Path(name), partial(read_yaml, Path(name))) for name, *_ in seen)


def rules_of(files: Iterable[tuple[Path, Callable[[], dict[str, Any]]]]) -> Rules:
    """Return the accounts and addresses in files.

    :param files: each file's path, and the function that reads its content, in order of precedence.
    :raises AuthError: a file is invalid, or does not exist.
    """
    accounts: dict[str, PlainAccount] = {}
    places: dict[str, Path] = {}
    white: list[AddressMatch] = []
    for path, read in files:
        try:
            content = read()
            white += [parse_pattern(pattern) for pattern in listed_in(content, "globalWhiteRemoteAddresses")]
            for entry in listed_in(content, "accounts"):
                account = read_account(entry)
                if account.name in accounts:
                    _log.warning(
                        "%s: account %s is ignored because %s defines it too", path, account.name, places[account.name]
                    )
                else:
                    accounts[account.name], places[account.name] = account, path
        except FileNotFoundError:
            raise AuthError(f"{path} no longer exists") from None
        except AuthError as error:
            where = "" if str(path) in error.message else f"{path}: "
            raise AuthError(f"{where}{error.message}", next_step=error.next_step) from None
    return Rules(accounts, places, tuple(white))


def listed_in(content: dict[str, Any], key: str) -> list[Any]:
    """Return the list that a file has under a key; empty if it has none.

    :raises AuthError: the value is not a list.
    """
    values = content.get(key)
    if values is None:
        return []
    if not isinstance(values, list) or (key != "accounts" and not all(isinstance(value, str) for value in values)):
        raise AuthError(f"{key} must be a list")
    return values
