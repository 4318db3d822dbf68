"""The users and policies of a server in ``auth.json``, and changes to them (``AuthenticationMetadataManager``).

The file is complete at all times, has mode 600, and is read again when it changes. If there is a key (``authKeyPath``
or ``$COMETMQ_AUTH_KEY``), each password is encrypted with AES-GCM and bound to its user's name. Requests see either the
old or the new table, never a mixture.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from cometmq.auth.limits import MAX_USERS, MAX_USERS_FILE_BYTES
from cometmq.auth.model import AuthError
from cometmq.auth.policies import (
    CUSTOM,
    DISABLE,
    ENABLE,
    MAX_ENTRIES,
    MAX_NAME_CHARS,
    MAX_PASSWORD_CHARS,
    NORMAL,
    SUPER,
    USER,
    Policies,
    PolicyInfo,
    Resource,
    User,
    merge_policies,
    policy_infos,
    read_policies,
    without_resource,
)
from cometmq.durable import replace_file
from cometmq.errors import reason_of

_log = logging.getLogger(__name__)

KEY_VARIABLE: Final = "COMETMQ_AUTH_KEY"
_NONCE_BYTES: Final = 12


class StoredUser(msgspec.Struct, rename="camel"):
    """A user in the file, with a plain or encrypted password."""

    username: str
    user_type: str
    user_status: str
    password: str | None = None
    encrypted: str | None = None
    policies: list[PolicyInfo] = []


class StoredUsers(msgspec.Struct):
    """The content of ``auth.json``."""

    users: list[StoredUser] = []


class Cipher:
    """Encrypts passwords with the operator's key, which is never stored."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(hashlib.scrypt(key, salt=b"cometmq auth.json", n=2**14, r=8, p=1, dklen=32))

    def encrypt(self, name: str, password: str) -> str:
        """Encrypt a user's password."""
        nonce = os.urandom(_NONCE_BYTES)
        return base64.b64encode(nonce + self._cipher.encrypt(nonce, password.encode(), name.encode())).decode()

    def decrypt(self, name: str, text: str) -> str:
        """Decrypt a user's password.

        :raises AuthError: the password belongs to another user or key.
        """
        from cryptography.exceptions import InvalidTag

        try:
            data = base64.b64decode(text)
            return self._cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], name.encode()).decode()
        except (InvalidTag, ValueError):
            raise AuthError(f"the password of {name} is not encrypted with this key") from None


def read_key(path: str) -> bytes | None:
    """Return the key from the file or else the environment; return ``None`` if neither contains a key.

    :raises AuthError: the file cannot be read.
    """
    if not path:
        key = os.environ.get(KEY_VARIABLE, "")
        return key.encode() or None
    try:
        key_bytes = Path(path).read_bytes().strip()
    except OSError as error:
        raise AuthError(f"authKeyPath={path}: {reason_of(error)}") from None
    if not key_bytes:
        raise AuthError(f"authKeyPath={path}: the file is empty")
    return key_bytes


class UserTable:
    """The table of users by name. Changes are made in a thread, one at a time."""

    def __init__(self, path: Path, key: bytes | None) -> None:
        """Read the file.

        :raises AuthError: an entry is invalid.
        """
        self.path: Final = path
        self.version = 0
        self.lock: Final = asyncio.Lock()
        """Is held during each change."""
        self._cipher = None if key is None else Cipher(key)
        self._rows: dict[str, tuple[User, bytes]] = {}
        """Each user with its text in the file, once a change was saved, so that a change encodes only one user."""
        self._seen = self._look()
        self.users: dict[str, User] = self._read()
        if self._cipher is None:
            _log.warning("the passwords in %s are not encrypted: set authKeyPath or $%s", path, KEY_VARIABLE)

    # --- changes ------------------------------------------------------------------------------
    def create(self, name: str, password: str, kind: str | None = None, status: str | None = None) -> None:
        """Create a user.

        :raises AuthError: the user exists, or a value is invalid.
        """
        _check(name, password)
        if name in self.users:
            raise AuthError("The user is existed")
        if len(self.users) >= MAX_USERS:
            raise AuthError(f"the maximum of {MAX_USERS:,} users has been reached")
        self._put(User(name, password, _kind(kind), _status(status)))

    def update(self, name: str, password: str | None, kind: str | None, status: str | None) -> None:
        """Change some of a user's values; ``None`` leaves a value unchanged.

        :raises AuthError: the user does not exist, or a value is invalid.
        """
        _check_name(name)
        user = self._known(name, "The user is not exist")
        if password and password.strip():
            _check(name, password)
            user = replace(user, password=password)
        if kind:
            user = replace(user, kind=_kind(kind))
        if status:
            user = replace(user, status=_status(status))
        self._put(user)

    def delete(self, name: str) -> None:
        """Delete a user and its policies; do nothing if the user does not exist.

        :raises AuthError: the name is blank, or the file cannot be written.
        """
        _check_name(name)
        if name in self.users:
            self._save({key: user for key, user in self.users.items() if key != name})

    def put_policies(self, name: str, infos: list[PolicyInfo]) -> None:
        """Add entries to a user's policies; see :func:`~cometmq.auth.policies.merge_policies`.

        :raises AuthError: the user does not exist, or an entry is invalid.
        """
        new = read_policies(infos)
        user = self._known(name, f"The subject of {USER}{name} is not exist.")
        merged = merge_policies(user.policies, new)
        if sum(map(len, merged.values())) > MAX_ENTRIES:
            raise AuthError(f"a user has more than {MAX_ENTRIES:,} policy entries")
        self._put(replace(user, policies=merged))

    def delete_policies(self, name: str, kind: str | None, resource: str | None) -> None:
        """Delete the entry for a resource, or all of a user's policies.

        :raises AuthError: the user does not exist, or has no such policy.
        """
        user = self._known(name, "The subject is not exist.")
        if not user.policies:
            raise AuthError("The acl is not exist.")
        policies: Policies = {}
        if resource:
            policies = without_resource(user.policies, (kind or CUSTOM).capitalize(), Resource.parse(resource))
        self._put(replace(user, policies=policies))

    def _known(self, name: str, words: str) -> User:
        user = self.users.get(name)
        if user is None:
            raise AuthError(words)
        return user

    def _put(self, user: User) -> None:
        self._save(self.users | {user.name: user})

    # --- the file -----------------------------------------------------------------------------
    def _save(self, users: dict[str, User]) -> None:
        rows = {name: self._row_of(user) for name, user in users.items()}
        data = _whole([row for _, row in rows.values()])
        if len(data) > MAX_USERS_FILE_BYTES:
            raise AuthError(
                f"{self.path} would be larger than {MAX_USERS_FILE_BYTES:,} bytes; delete users or policies"
            )
        try:
            replace_file(self.path, data, private=True)
        except OSError as error:
            raise AuthError(f"{self.path} cannot be written: {reason_of(error)}") from None
        self._seen = self._look()
        self.users = users
        self._rows = rows
        self.version += 1

    def _row_of(self, user: User) -> tuple[User, bytes]:
        """Return a user with its text in the file; the text of an unchanged user is that of the last save."""
        known = self._rows.get(user.name)
        if known is not None and known[0] is user:
            return known
        text = msgspec.json.format(msgspec.json.encode(_stored(user, self._cipher)), indent=2)
        return user, text.replace(b"\n", b"\n    ")  # texts in JSON have no line breaks

    def exported(self, key: bytes) -> bytes:
        """Return all users for another server, with passwords that are encrypted with ``key``."""
        cipher = Cipher(key)
        return msgspec.json.encode(StoredUsers([_stored(user, cipher) for user in self.users.values()]))

    def take_over(self, data: bytes, key: bytes) -> bool:
        """Replace all users by those that another server has exported; return whether something has changed.

        :raises AuthError: they are invalid, or the file cannot be written; nothing has changed.
        """
        users = self._decode(data, Cipher(key), "the list of users")
        if not users:
            raise AuthError("the list of users is empty")
        if users == self.users:
            return False
        self._save(users)
        return True

    def _read(self) -> dict[str, User]:
        try:
            if self.path.stat().st_size > MAX_USERS_FILE_BYTES:
                raise AuthError(f"{self.path} is too large")
            data = self.path.read_bytes()
            if stat.S_IMODE(self.path.stat().st_mode) & 0o077:
                _log.warning("other users can read the passwords in %s: set its mode to 600", self.path)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise AuthError(f"{self.path} cannot be read: {reason_of(error)}") from None
        return self._decode(data, self._cipher, str(self.path))

    def _decode(self, data: bytes, cipher: Cipher | None, source: str) -> dict[str, User]:
        try:
            stored = msgspec.json.decode(data, type=StoredUsers)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise AuthError(f"{source} is not a valid user file") from None
        if len(stored.users) > MAX_USERS:
            raise AuthError(f"{source} has more than {MAX_USERS:,} users")
        return {one.username: self._user(one, cipher) for one in stored.users}

    def _user(self, stored: StoredUser, cipher: Cipher | None) -> User:
        if stored.encrypted is not None:
            if cipher is None:
                raise AuthError(f"the passwords in {self.path} are encrypted: set authKeyPath or ${KEY_VARIABLE}")
            password = cipher.decrypt(stored.username, stored.encrypted)
        else:
            password = stored.password or ""
        _check(stored.username, password)
        policies = read_policies(stored.policies) if stored.policies else {}
        return User(stored.username, password, _kind(stored.user_type), _status(stored.user_status), policies)

    def _look(self) -> tuple[int, int, int] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def look(self) -> None:
        """Reload the file if another process has changed it, unless it is invalid or missing."""
        seen = self._look()
        if seen is None or seen == self._seen:
            return
        self._seen = seen
        try:
            self.users = self._read()
        except AuthError as error:
            _log.error("the users were not reloaded: %s", error)
        else:
            self.version += 1


def _whole(rows: list[bytes]) -> bytes:
    """Return the file's content, as ``msgspec.json.format`` would return it for all users at once."""
    if not rows:
        return b'{\n  "users": []\n}'
    return b'{\n  "users": [\n    %b\n  ]\n}' % b",\n    ".join(rows)


def _stored(user: User, cipher: Cipher | None) -> StoredUser:
    stored = StoredUser(user.name, user.kind, user.status, policies=policy_infos(user.policies))
    if cipher is None:
        stored.password = user.password
    else:
        stored.encrypted = cipher.encrypt(user.name, user.password)
    return stored


def _check_name(name: str) -> None:
    if not name.strip():
        raise AuthError("username can not be blank")


def _check(name: str, password: str) -> None:
    _check_name(name)
    if not password.strip():
        raise AuthError("password can not be blank")
    if len(name) > MAX_NAME_CHARS or len(password) > MAX_PASSWORD_CHARS:
        raise AuthError(
            f"a username can have at most {MAX_NAME_CHARS} characters, and a password {MAX_PASSWORD_CHARS:,}"
        )


def _one_of(text: str | None, names: tuple[str, ...], words: str) -> str:
    if text is None:
        return names[0]
    found = next((name for name in names if name.lower() == text.lower()), None)
    if found is None:
        raise AuthError(f"{text[:100]!r} is not a valid {words}", next_step=f"use {' or '.join(names)}")
    return found


def _kind(text: str | None) -> str:
    return _one_of(text, (NORMAL, SUPER), "user type")


def _status(text: str | None) -> str:
    return _one_of(text, (ENABLE, DISABLE), "user status")
