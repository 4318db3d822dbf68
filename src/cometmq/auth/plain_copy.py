"""Copies of the ACL 1.0 files, by which the members of a set have the same accounts.

The files are encrypted with the secret key of the account that copies them, which both sides know. They are checked
completely before one of them is replaced. Each file is replaced atomically, and the accounts change in one step.
``tools.yml`` belongs to its machine.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec

from cometmq.auth.limits import MAX_ACL_FILES, MAX_ACL_PATH_CHARS, MAX_COPIED_ACL_BYTES
from cometmq.auth.model import AuthError
from cometmq.auth.plain_files import (
    DEFAULT_FILE,
    DIRECTORY,
    ENDINGS,
    TOOLS_FILE,
    PlainFiles,
    Seen,
    listed_in,
    look,
    rules_of,
)
from cometmq.auth.users import Cipher
from cometmq.auth.yaml_file import parse_mapping
from cometmq.durable import flush_directory, replace_file
from cometmq.errors import reason_of

OLD_ENDING: Final = ".replaced"
"""Ending of the name under which the content of a file is kept that was edited here, or removed."""
_PURPOSE: Final = "account files"
_READ_ONLY: Final = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EBUSY)
_CONTROL: Final = re.compile(r"[\x00-\x1f\\\ud800-\udfff]")

Contents = dict[str, bytes]
"""The content of each file by its path below the directory, with ``/``."""


class ReadOnlyFilesError(AuthError):
    """The files belong to somebody else, for example to a mounted secret, and this process cannot replace them."""


class NotReadableError(AuthError):
    """The files cannot be read or are invalid, so they cannot be copied."""


class BeingChangedError(NotReadableError):
    """The files are being changed, so they can be copied in a moment."""


class _Stored(msgspec.Struct):
    files: dict[str, str]


@dataclass(frozen=True, slots=True)
class Replaced:
    """The files that a copy has changed, and whether somebody had changed them here since the last copy."""

    names: tuple[str, ...]
    were_edited: bool


class PlainCopy:
    """Reads and replaces a server's ACL 1.0 files. All methods block, and must be called by one caller at a time."""

    def __init__(self, files: PlainFiles) -> None:
        self._files: Final = files
        self._known: tuple[Seen, str] | None = None
        """The files of the last digest, which is not computed again while they are the same."""
        self._copied = ""
        """The digest of the last copy."""

    def version(self) -> str:
        """Return a digest of the files.

        :raises NotReadableError: they cannot be read, or are too large.
        """
        seen = look(self._files.directory)
        if self._known is None or self._known[0] != seen:
            self._known = seen, _digest(self._read(seen))
        return self._known[1]

    def exported(self, account: str) -> tuple[str, bytes]:
        """Return a digest of the files, and the files for a server that signs with an account.

        :raises BeingChangedError: the files are not those that are in use, or were changed in the meantime.
        :raises NotReadableError: the files cannot be read, are too large, or are invalid.
        :raises AuthError: the account may not copy them.
        """
        seen = look(self._files.directory)
        if self._files.trouble:
            raise NotReadableError(self._files.trouble)
        if seen != self._files.seen:
            raise BeingChangedError("the account files are being changed")
        contents = self._read(seen)
        if look(self._files.directory) != seen:
            raise BeingChangedError("the account files are being changed")
        data = msgspec.json.encode(_Stored(dict(_texts(contents))))
        rules, secrets = _checked(contents)
        if account not in rules.accounts or not rules.accounts[account].is_super:
            raise AuthError("only the account of a broker, with admin: true, may copy account files")
        return _digest(contents), Cipher(secrets[account].encode()).encrypt(_PURPOSE, data.decode()).encode()

    def take_over(self, data: bytes, key: str) -> Replaced:
        """Replace the files by those that another server has exported.

        :param key: the secret key of the account that has copied them.
        :raises ReadOnlyFilesError: they cannot be replaced by this process; nothing has changed.
        :raises AuthError: they are invalid, or cannot be written; the accounts have not changed.
        """
        contents = _decoded(data, key)
        _checked(contents)
        mine = self._mine()
        changed = [name for name in contents if mine.get(name) != contents[name]]
        gone = [name for name in mine if name not in contents]
        were_edited = _digest(mine) != self._copied
        try:
            for name in changed:
                path = self._files.directory / name
                backup = path.with_name(path.name + OLD_ENDING) if were_edited else None
                replace_file(path, contents[name], backup=backup, private=True)
            for name in gone:
                path = self._files.directory / name
                path.replace(path.with_name(path.name + OLD_ENDING))
                flush_directory(path.parent)
        except OSError as error:
            kind = ReadOnlyFilesError if error.errno in _READ_ONLY else AuthError
            raise kind(f"{self._files.directory} cannot be written: {reason_of(error)}") from None
        self._files.reload()
        self._copied = _digest(contents)
        return Replaced((*changed, *gone), were_edited)

    def _mine(self) -> Contents:
        """Return the files to replace; if they cannot be read, or are too large, as if all were empty."""
        seen = look(self._files.directory)
        try:
            return self._read(seen)
        except NotReadableError:
            return dict.fromkeys(map(self._relative, (name for name, *_ in seen)), b"")

    def _relative(self, name: str) -> str:
        return Path(name).relative_to(self._files.directory).as_posix()

    def _read(self, seen: Seen) -> Contents:
        contents: Contents = {}
        left = MAX_COPIED_ACL_BYTES
        for name, *_ in seen:
            try:
                with Path(name).open("rb") as file:
                    content = file.read(left + 1)
            except OSError as error:
                raise NotReadableError(f"{name} cannot be read: {reason_of(error)}") from None
            left -= len(content)
            if left < 0:
                raise NotReadableError(
                    f"the account files are larger than {MAX_COPIED_ACL_BYTES:,} bytes, so they are not copied",
                    next_step="remove accounts that nobody uses, or give each member the same files",
                )
            contents[self._relative(name)] = content
        return contents


def _texts(contents: Contents) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file.

    :raises NotReadableError: a name cannot be used by other members, or a file is not UTF-8.
    """
    for name, content in contents.items():
        if not _is_account_file(name):
            raise NotReadableError(f"{name[:100]!r} is a name that other members do not accept: rename the file")
        try:
            yield name, content.decode()
        except UnicodeDecodeError:
            raise NotReadableError(f"{name} is not UTF-8, so the account files are not copied") from None


def _digest(contents: Contents) -> str:
    digest = hashlib.sha256()
    for name, content in sorted(contents.items()):
        digest.update(b"%d %s %d " % (len(name), os.fsencode(name), len(content)))
        digest.update(content)
    return digest.hexdigest()


def _checked(contents: Contents) -> tuple[Any, dict[str, str]]:
    """Return the rules and the secret keys in files.

    :raises AuthError: a file is invalid, or there is no account.
    """
    order = sorted(contents, key=lambda name: (name == DEFAULT_FILE, PurePosixPath(name).parts))
    parsed = {name: parse_mapping(contents[name], name) for name in order}
    rules = rules_of((Path(name), partial(parsed.__getitem__, name)) for name in order)
    if not rules.accounts:
        raise AuthError("the account files have no account")
    secrets: dict[str, str] = {}
    for content in parsed.values():
        for entry in listed_in(content, "accounts"):
            secrets.setdefault(str(entry["accessKey"]), str(entry["secretKey"]))
    return rules, secrets


def _decoded(data: bytes, key: str) -> Contents:
    try:
        text = Cipher(key.encode()).decrypt(_PURPOSE, data.decode())
        stored = msgspec.json.decode(text, type=_Stored)
        contents = {name: content.encode() for name, content in stored.files.items()}
    except (msgspec.MsgspecError, UnicodeError, AuthError):
        raise AuthError("the account files are not encrypted with this account's secret key") from None
    if len(contents) > MAX_ACL_FILES + 1 or sum(map(len, contents.values())) > MAX_COPIED_ACL_BYTES:
        raise AuthError("the account files are too many or too large")
    for name in contents:
        if not _is_account_file(name):
            raise AuthError(f"{name[:100]!r} is not the name of an account file")
    return contents


def _is_account_file(name: str) -> bool:
    """Return whether a path leads to an account file below the directory, and nowhere else."""
    if name == DEFAULT_FILE:
        return True
    parts = name.split("/")
    is_plain = len(name) <= MAX_ACL_PATH_CHARS and not _CONTROL.search(name)
    is_below = parts[0] == DIRECTORY and len(parts) > 1 and not {"", ".", ".."} & set(parts)
    return is_plain and is_below and parts[-1].endswith(ENDINGS) and parts[-1] != TOOLS_FILE
