"""The keys of a masked copy: one for each subject, wrapped by a master key, in one SQLite file.

Whoever drops a subject's key erases what was encrypted with it, wherever copies of it are. A subject stands in the
file as an HMAC only, and stays there as erased when its key is dropped: what is copied later is not encrypted for it
any more but dropped. Secrets are read from a file or from the environment where they are used, and are never part of
what travels: plans, options, logs.

The file: table ``subjects(name, key_id, wrapped)``, ``wrapped`` is nonce (12 bytes) and AES-256-GCM of the key under
the master key with ``name`` as associated data, null once it is dropped; table ``master(mark)`` tells the master key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from cometmq.limits import MASK_KEYS_CACHED
from cometmq.spark.errors import MaskError, OptionError

MASTER_VARIABLE: Final = "COMETMQ_MASK_MASTER_KEY"
HASH_VARIABLE: Final = "COMETMQ_MASK_HASH_SECRET"
KEY_BYTES: Final = 32
KEY_ID_BYTES: Final = 16
NONCE_BYTES: Final = 12
_LEAST_SECRET_BYTES: Final = 16
_BUSY_SECONDS: Final = 60.0
"""How long to wait for another task that makes keys."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS master (mark BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS subjects (name BLOB PRIMARY KEY, key_id BLOB NOT NULL UNIQUE, wrapped BLOB) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class SecretPlace:
    """Where a secret is; this travels, the secret does not."""

    what: str
    variable: str
    file: str | None = None

    def read(self) -> bytes:
        """The secret's text.

        :raises OptionError: it is not there.
        """
        try:
            text = os.environ.get(self.variable, "") if self.file is None else Path(self.file).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"{self.what}: {self.file} cannot be read") from error
        if len(text.strip()) < _LEAST_SECRET_BYTES:
            where = f"${self.variable} is" if self.file is None else f"{self.file} holds"
            raise OptionError(
                f"{self.what}: {where} missing or shorter than {_LEAST_SECRET_BYTES} characters",
                next_step="make one: openssl rand -base64 32",
            )
        return text.strip().encode()


def master_key_place(file: str | Path | None) -> SecretPlace:
    """Where the master key is: in a file, or in the environment without one."""
    return SecretPlace("the master key", MASTER_VARIABLE, None if file is None else str(Path(file).absolute()))


def hash_secret_place(file: str | Path | None) -> SecretPlace:
    """Where the secret of hashes is: in a file, or in the environment without one."""
    return SecretPlace("the secret of hashes", HASH_VARIABLE, None if file is None else str(Path(file).absolute()))


def master_key(place: SecretPlace) -> bytes:
    """The master key, 32 bytes.

    :raises OptionError: it is not there, or no key.
    """
    try:
        key = base64.b64decode(place.read(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise OptionError(
            f"{place.what} is not {KEY_BYTES} bytes in base64", next_step="make one: openssl rand -base64 32"
        )
    return key


class DataKey(NamedTuple):
    """The key of one subject."""

    key_id: bytes
    key: bytes


class KeyStore:
    """The keys in one file, which processes of one host (or a file system with working locks) share."""

    def __init__(self, path: str | Path, master: SecretPlace, *, make: bool = False) -> None:
        """Open the file; with ``make`` it is made where it is not there.

        :raises OptionError: there is no master key.
        :raises MaskError: there is no file, it is none, or belongs to another master key.
        """
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._path = Path(path)
        key = master_key(master)
        self._wrapping = AESGCM(key)
        self._naming = hmac.digest(key, b"names of subjects", "sha256")
        self._known: dict[str, DataKey | None] = {}
        if not make and not self._path.is_file():
            raise MaskError(f"there is no key store {self._path}", next_step="name the one that the copy was made with")
        if make and not self._path.exists():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600))
        try:
            self._table = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
            self._table.execute("PRAGMA secure_delete = ON")
            self._table.execute("PRAGMA synchronous = FULL")
            self._demand_master(hmac.digest(key, b"mark of the master key", "sha256"), make)
        except sqlite3.DatabaseError as error:
            raise MaskError(f"the key store {self._path} cannot be opened: {error}") from error

    def _demand_master(self, mark: bytes, make: bool) -> None:
        if make:
            with self._transaction():
                for statement in _SCHEMA.strip().splitlines():
                    self._table.execute(statement)
                if self._table.execute("SELECT mark FROM master").fetchone() is None:
                    self._table.execute("INSERT INTO master VALUES (?)", (mark,))
        row = self._table.execute("SELECT mark FROM master").fetchone()
        if row is None or not hmac.compare_digest(row[0], mark):
            raise MaskError(f"the key store {self._path} belongs to another master key")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._table.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._table.execute("ROLLBACK")
            raise
        self._table.execute("COMMIT")

    def _name(self, subject: str) -> bytes:
        return hmac.digest(self._naming, subject.encode("utf-8", "surrogatepass"), "sha256")

    def keys_for(self, subjects: Iterable[str]) -> dict[str, DataKey | None]:
        """The key of each subject, made for those that have none; ``None`` for those that are erased.

        When this returns the keys are on the disk.
        """
        wanted = dict.fromkeys(subjects)
        missing = [subject for subject in wanted if subject not in self._known]
        if len(self._known) + len(missing) > MASK_KEYS_CACHED:
            self._known.clear()
            missing = list(wanted)
        if missing:
            with self._transaction():
                for subject in missing:
                    self._known[subject] = self._key_for(self._name(subject))
        return {subject: self._known[subject] for subject in wanted}

    def _key_for(self, name: bytes) -> DataKey | None:
        row = self._table.execute("SELECT key_id, wrapped FROM subjects WHERE name = ?", (name,)).fetchone()
        if row is not None:
            return None if row[1] is None else DataKey(row[0], self._unwrapped(name, row[1]))
        made = DataKey(os.urandom(KEY_ID_BYTES), os.urandom(KEY_BYTES))
        nonce = os.urandom(NONCE_BYTES)
        wrapped = nonce + self._wrapping.encrypt(nonce, made.key, name)
        self._table.execute("INSERT INTO subjects VALUES (?, ?, ?)", (name, made.key_id, wrapped))
        return made

    def _unwrapped(self, name: bytes, wrapped: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            return self._wrapping.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], name)
        except InvalidTag as error:
            raise MaskError(f"the key store {self._path} is damaged", next_step="restore it from a backup") from error

    def key_of(self, key_id: bytes) -> bytes | None:
        """The key with this id; ``None`` where it was dropped, or never was in this file."""
        row = self._table.execute("SELECT name, wrapped FROM subjects WHERE key_id = ?", (key_id,)).fetchone()
        return None if row is None or row[1] is None else self._unwrapped(row[0], row[1])

    def forget(self, subject: str) -> bool:
        """Drop the key of a subject for ever; whether there was one.

        What is copied later is dropped for this subject, also when it had no key yet.
        """
        name = self._name(subject)
        with self._transaction():
            row = self._wrapped(name)
            if row is None:
                self._table.execute("INSERT INTO subjects VALUES (?, ?, NULL)", (name, os.urandom(KEY_ID_BYTES)))
            else:
                self._table.execute("UPDATE subjects SET wrapped = NULL WHERE name = ?", (name,))
        self._known.pop(subject, None)
        return row is not None and row[0] is not None

    def has_key(self, subject: str) -> bool:
        """Whether :meth:`forget` would find a key of the subject."""
        row = self._wrapped(self._name(subject))
        return row is not None and row[0] is not None

    def _wrapped(self, name: bytes) -> tuple[bytes | None] | None:
        """The wrapped key of a subject, or none of an erased one; ``None`` for one that is not in the file."""
        row: tuple[bytes | None] | None = self._table.execute(
            "SELECT wrapped FROM subjects WHERE name = ?", (name,)
        ).fetchone()
        return row

    def close(self) -> None:
        """Close the file."""
        self._table.close()


def subject_text(value: object) -> str | None:
    """What a subject is called by: text or a whole number; ``None`` for anything else."""
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def digest(secret: bytes, text: str) -> str:
    """The hash that stands for a text: HMAC-SHA256, hex."""
    return hmac.new(secret, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
