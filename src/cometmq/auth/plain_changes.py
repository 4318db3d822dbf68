"""Changes to ACL 1.0 files by administrators (``PlainPermissionManager.updateAccessConfig`` and similar methods).

A change is first checked completely, then written, and then applied. Comments in a changed file are lost, as in
Apache's broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cometmq.auth.addresses import parse_pattern
from cometmq.auth.model import AuthError
from cometmq.auth.plain import read_account
from cometmq.auth.plain_files import DEFAULT_FILE, PlainFiles
from cometmq.auth.yaml_file import dump_yaml, read_yaml
from cometmq.clock import Clock
from cometmq.durable import replace_file

_PERMISSION_WORDS: Final = ("PUB", "SUB", "PUB|SUB", "SUB|PUB", "DENY")


class PlainChanges:
    """Writes ACL 1.0 files; to be used in a worker thread, by one caller at a time."""

    def __init__(self, files: PlainFiles, *, clock: Clock) -> None:
        self._files = files
        self._clock = clock

    def put_account(self, given: Mapping[str, Any]) -> None:
        """Create an account in ``plain_acl.yml``, or update keys of an account in its file.

        :raises AuthError: the account is not valid, or its file cannot be written.
        """
        name = str(given.get("accessKey") or "")
        for entry in (*(given.get("topicPerms") or ()), *(given.get("groupPerms") or ())):
            _check_permission(entry)
        read_account(dict(given))

        def change(content: dict[str, Any]) -> None:
            accounts = content.setdefault("accounts", None) or []
            found = next((account for account in accounts if str(account.get("accessKey")) == name), None)
            if found is None:
                found = {}
                accounts.append(found)
            found.update((key, value) for key, value in given.items() if value is not None)
            read_account(found)
            content["accounts"] = accounts

        self._change(self._files.rules.places.get(name, self._default), change)

    def delete_account(self, name: str) -> bool:
        """Delete an account; return whether it existed.

        :raises AuthError: the account's file cannot be written.
        """
        place = self._files.rules.places.get(name)
        if place is None:
            return False

        def change(content: dict[str, Any]) -> None:
            accounts = content.get("accounts") or []
            content["accounts"] = [account for account in accounts if str(account.get("accessKey")) != name]

        self._change(place, change)
        return True

    def put_white_addresses(self, addresses: Sequence[str], file: str) -> bool:
        """Replace ``globalWhiteRemoteAddresses`` in a file; return whether it is one of the account files.

        :raises AuthError: an address is not valid, or the file cannot be written.
        """
        path = Path(file) if file else self._default
        if path not in self._files.paths and path != self._default:
            return False
        for address in addresses:
            parse_pattern(address)

        def change(content: dict[str, Any]) -> None:
            content["globalWhiteRemoteAddresses"] = list(addresses)

        self._change(path, change)
        return True

    @property
    def _default(self) -> Path:
        return self._files.directory / DEFAULT_FILE

    def _change(self, path: Path, change: Callable[[dict[str, Any]], None]) -> None:
        try:
            content = read_yaml(path)
        except FileNotFoundError:
            content = {}
        change(content)
        versions = content.get("dataVersion") or [{}]
        counter = versions[0].get("counter") if isinstance(versions, list) and isinstance(versions[0], dict) else 0
        content["dataVersion"] = [{"counter": int(counter or 0) + 1, "timestamp": self._clock.now_ms()}]
        try:
            replace_file(path, dump_yaml(content), private=True)
        except OSError as error:
            raise AuthError(f"{path} cannot be written: {error.strerror}") from None
        self._files.reload()


def _check_permission(entry: str) -> None:
    parts = [part for part in entry.split("=") if part]
    if len(parts) != 2 or parts[1].strip() not in _PERMISSION_WORDS:
        raise AuthError(
            f"{entry[:200]!r} must be NAME=PERMISSION, where the permission is one of {', '.join(_PERMISSION_WORDS)}"
        )


def versions(files: PlainFiles) -> dict[str, dict[str, int]]:
    """Return the ``dataVersion`` of each file, or 0 if a file has none.

    :raises AuthError: a file cannot be read.
    """
    found: dict[str, dict[str, int]] = {}
    for path in files.paths:
        listed = _read(path).get("dataVersion")
        first = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
        found[str(path)] = {key: int(first.get(key) or 0) for key in ("counter", "timestamp")}
    return found


def listed(files: PlainFiles) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the whitelisted addresses and the accounts in all files, leaving out secrets (``getAllAclConfig``).

    :raises AuthError: a file cannot be read.
    """
    white: list[str] = []
    accounts: dict[str, dict[str, Any]] = {}
    for path in files.paths:
        content = _read(path)
        white += content.get("globalWhiteRemoteAddresses") or []
        for account in content.get("accounts") or []:
            shown = {key: account[key] for key in _SHOWN if account.get(key) is not None}
            name = shown["accessKey"] = str(account.get("accessKey"))
            accounts.setdefault(name, {"admin": False} | shown)
    return white, list(accounts.values())


_SHOWN: Final = (
    "accessKey",
    "whiteRemoteAddress",
    "admin",
    "defaultTopicPerm",
    "defaultGroupPerm",
    "topicPerms",
    "groupPerms",
)


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_yaml(path)
    except FileNotFoundError:
        return {}
