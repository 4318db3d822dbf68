"""The console's own users. A file stores their names, roles and argon2 password hashes."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from cometmq.console.limits import MAX_PASSWORD_CHARS, MAX_USERS, MIN_PASSWORD_CHARS, PASSWORD_CHECKS_AT_ONCE
from cometmq.durable import replace_file
from cometmq.errors import CometMQError, reason_of
from cometmq.message.names import check_group
from cometmq.threads import in_thread

_HASHER: Final = PasswordHasher()
_NOBODY: Final = "$argon2id$v=19$m=65536,t=3,p=4$Yj5uDEbn8OKKF/en4/YUxw$czWICRXYkmqVb4tGhIuJyYSD3iveG62SpMy8SWCjzGE"
"""A password hash that is checked for an unknown name, so that the check takes as long as for a known name."""


class Role(StrEnum):
    """The role of a console user, which determines their permissions."""

    VIEWER = "viewer"
    """The user may view all pages."""
    OPERATOR = "operator"
    """The user may also make changes, with the console's own account in the cluster."""


class ConsoleUser(msgspec.Struct, frozen=True):
    """One user of the console."""

    name: str
    role: Role
    password_hash: str


class UsersFileError(CometMQError):
    """The file with the console's users cannot be used, or a user cannot be created."""


class ConsoleUsers:
    """The users in a file. The file is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._users: dict[str, ConsoleUser] = {}
        self._stamp: tuple[int, int] | None = None
        self._checks = asyncio.Semaphore(PASSWORD_CHECKS_AT_ONCE)

    def all(self) -> dict[str, ConsoleUser]:
        """Return the users by name.

        :raises UsersFileError: the file cannot be read, or is malformed.
        """
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp != self._stamp:
                users = msgspec.json.decode(self._path.read_bytes(), type=list[ConsoleUser])
                self._users, self._stamp = {user.name: user for user in users}, stamp
        except FileNotFoundError:
            self._users, self._stamp = {}, None
        except OSError as error:
            raise UsersFileError(
                f"{self._path} cannot be read: {reason_of(error)}", next_step="let the console's user read it"
            ) from error
        except msgspec.MsgspecError as error:
            raise UsersFileError(
                f"{self._path} is not a valid list of users: {error}",
                next_step="remove it, and create the users again with cometmq console user add",
            ) from error
        return self._users

    async def accept(self, name: str, password: str) -> ConsoleUser | None:
        """Return the user with this name and password. The check takes equally long for an unknown name."""
        user = self.all().get(name)
        async with self._checks:
            is_right = await in_thread(_is_password, user.password_hash if user else _NOBODY, password)
        return user if is_right else None

    def put(self, name: str, role: Role, password: str) -> None:
        """Create a user, or set a new password and role.

        :raises UsersFileError: the name or the password is not allowed, or the file cannot be written.
        """
        wrong = check_group(name)
        if wrong is not None:
            raise UsersFileError(f"{name!r} is not a valid user name: {wrong}")
        if not MIN_PASSWORD_CHARS <= len(password) <= MAX_PASSWORD_CHARS:
            raise UsersFileError(f"a password has {MIN_PASSWORD_CHARS} to {MAX_PASSWORD_CHARS} characters")
        users = dict(self.all())
        users[name] = ConsoleUser(name, role, _HASHER.hash(password))
        if len(users) > MAX_USERS:
            raise UsersFileError(f"a console has at most {MAX_USERS} users", next_step="remove some")
        self._write(users)

    def remove(self, name: str) -> None:
        """Remove a user.

        :raises UsersFileError: the user does not exist, or the file cannot be written.
        """
        users = dict(self.all())
        if users.pop(name, None) is None:
            raise UsersFileError(f"user {name} does not exist", next_step="cometmq console user list shows all users")
        self._write(users)

    def _write(self, users: dict[str, ConsoleUser]) -> None:
        ordered = [users[name] for name in sorted(users)]
        try:
            replace_file(self._path, msgspec.json.format(msgspec.json.encode(ordered)), private=True)
        except OSError as error:
            raise UsersFileError(
                f"{self._path} cannot be written: {reason_of(error)}", next_step="set a writable directory with --data"
            ) from error


def _is_password(password_hash: str, password: str) -> bool:
    try:
        return _HASHER.verify(password_hash, password)
    except (VerificationError, InvalidHashError):
        return False
