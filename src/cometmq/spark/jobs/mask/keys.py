"""The keys for masked copies. There is one key for each subject; a master key wraps it, and one SQLite file stores it.

Dropping a subject's key erases all values that were encrypted with it, in every copy. The file identifies subjects only
by an HMAC. After its key is dropped, the subject remains in the file and is marked as erased: later copies drop its
values instead of encrypting them. The process that uses a secret reads it from a file or from the environment; plans,
options and logs never contain secrets.

The file has two tables. In ``subjects(name, key_id, wrapped)``, ``wrapped`` is a nonce (12 bytes) followed by the key,
encrypted with AES-256-GCM under the master key with ``name`` as associated data; it is null after the key is dropped.
``master(mark)`` identifies the master key.

An encrypted value is the text ``enc:1:`` followed, in base64url, by the key's id (16 bytes), a nonce (12 bytes) and the
value's JSON, encrypted with AES-256-GCM; so a number is decrypted to a number. :class:`Revealer` decrypts these values.
A value whose key was dropped remains encrypted and is counted. A message with a tampered value is left out completely.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from cometmq.limits import MASK_KEYS_CACHED
from cometmq.message.properties import KEY_SEPARATOR
from cometmq.paths import local_path
from cometmq.spark.archives.log import ArchiveLog
from cometmq.spark.errors import MaskError, OptionError
from cometmq.spark.records.bad_messages import BadMessage

MASTER_VARIABLE: Final = "COMETMQ_MASK_MASTER_KEY"
HASH_VARIABLE: Final = "COMETMQ_MASK_HASH_SECRET"
KEY_BYTES: Final = 32
KEY_ID_BYTES: Final = 16
NONCE_BYTES: Final = 12
_LEAST_SECRET_BYTES: Final = 16
_BUSY_SECONDS: Final = 60.0
"""Maximum time to wait while another task creates keys."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS master (mark BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS subjects (name BLOB PRIMARY KEY, key_id BLOB NOT NULL UNIQUE, wrapped BLOB) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class SecretPlace:
    """The location of a secret. Only the location is sent to executors, never the secret itself."""

    what: str
    variable: str
    file: str | None = None

    def read(self) -> bytes:
        """Read the secret from its file or environment variable.

        :raises OptionError: the secret is missing.
        """
        try:
            text = os.environ.get(self.variable, "") if self.file is None else Path(self.file).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"{self.what}: cannot read {self.file}") from error
        if len(text.strip()) < _LEAST_SECRET_BYTES:
            where = f"${self.variable} is" if self.file is None else f"{self.file} holds"
            raise OptionError(
                f"{self.what}: {where} missing or shorter than {_LEAST_SECRET_BYTES} characters",
                next_step="create one: openssl rand -base64 32",
            )
        return text.strip().encode()


def master_key_place(file: str | Path | None) -> SecretPlace:
    """Return the location of the master key: a file or, by default, an environment variable."""
    return SecretPlace("the master key", MASTER_VARIABLE, None if file is None else str(local_path(file).absolute()))


def hash_secret_place(file: str | Path | None) -> SecretPlace:
    """Return the location of the secret for hashes: a file or, by default, an environment variable."""
    return SecretPlace(
        "the secret of hashes", HASH_VARIABLE, None if file is None else str(local_path(file).absolute())
    )


def master_key(place: SecretPlace) -> bytes:
    """Read the master key, which has 32 bytes.

    :raises OptionError: the key is missing or malformed.
    """
    try:
        key = base64.b64decode(place.read(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise OptionError(
            f"{place.what} is not {KEY_BYTES} bytes in base64", next_step="create one: openssl rand -base64 32"
        )
    return key


class DataKey(NamedTuple):
    """One subject's key, and its id."""

    key_id: bytes
    key: bytes


class KeyStore:
    """A file of keys. Processes on one host, or on a shared file system with working locks, can use it at the same
    time.
    """

    def __init__(self, path: str | Path, master: SecretPlace, *, make: bool = False) -> None:
        """Open the file. With ``make``, create the file if it is missing.

        :raises OptionError: the master key is missing.
        :raises MaskError: the file is missing, damaged, or belongs to another master key.
        """
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._path = local_path(path)
        key = master_key(master)
        self._wrapping = AESGCM(key)
        self._naming = hmac.digest(key, b"names of subjects", "sha256")
        self._known: dict[str, DataKey | None] = {}
        if not make and not self._path.is_file():
            raise MaskError(
                f"the key store {self._path} does not exist", next_step="use the one that the copy was created with"
            )
        if make and not self._path.exists():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600))
        try:
            self._table = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
            self._table.execute("PRAGMA secure_delete = ON")
            self._table.execute("PRAGMA synchronous = FULL")
            self._demand_master(hmac.digest(key, b"mark of the master key", "sha256"), make)
        except sqlite3.DatabaseError as error:
            raise MaskError(f"cannot open the key store {self._path}: {error}") from error

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
        """Return each subject's key, or ``None`` for erased subjects. Missing keys are created.

        All keys are on disk when this method returns.
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
        """Return the key with this id, or ``None`` if the key was dropped or was never in this file."""
        row = self._table.execute("SELECT name, wrapped FROM subjects WHERE key_id = ?", (key_id,)).fetchone()
        return None if row is None or row[1] is None else self._unwrapped(row[0], row[1])

    def forget(self, subject: str) -> bool:
        """Permanently drop a subject's key. Return True if the subject had a key.

        Later copies drop this subject's values, even if the subject had no key yet.
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
        """Return True if the subject has a key."""
        row = self._wrapped(self._name(subject))
        return row is not None and row[0] is not None

    def _wrapped(self, name: bytes) -> tuple[bytes | None] | None:
        """Return a subject's wrapped key: ``(None,)`` if the key was dropped, ``None`` if the subject is unknown."""
        row: tuple[bytes | None] | None = self._table.execute(
            "SELECT wrapped FROM subjects WHERE name = ?", (name,)
        ).fetchone()
        return row

    def close(self) -> None:
        """Close the file."""
        self._table.close()


def subject_text(value: object) -> str | None:
    """Return a subject's name for a text or an integer, or ``None`` for any other value."""
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def digest(secret: bytes, text: str) -> str:
    """Return the hash that replaces a text: its HMAC-SHA256 in hex."""
    return hmac.new(secret, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


_PREFIX: Final = "enc:1:"
_TOKEN: Final = re.compile(r"enc:1:([A-Za-z0-9_-]{59,})")
"""Pattern of an encrypted value. The shortest value has 44 bytes: id, nonce, and the tag of an empty string."""

KeyOf = Callable[[bytes], bytes | None]


class ErasedError(Exception):
    """The key of a value no longer exists."""


def sealed(value: Any, key: DataKey) -> str:
    """Encrypt a value, and return the text that replaces it."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(NONCE_BYTES)
    secret = json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()
    raw = key.key_id + nonce + AESGCM(key.key).encrypt(nonce, secret, _PREFIX.encode() + key.key_id)
    return _PREFIX + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def opened(text: str, key_of: KeyOf) -> Any:
    """Decrypt a text that is one encrypted value.

    :raises ErasedError: the key of the value no longer exists.
    :raises ValueError: the text is not an encrypted value, or was changed.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    match = _TOKEN.fullmatch(text)
    if match is None:
        raise ValueError("not an encrypted value")
    try:
        raw = base64.urlsafe_b64decode(match[1] + "=" * (-len(match[1]) % 4))
    except binascii.Error as error:
        raise ValueError("not an encrypted value") from error
    key_id, nonce, rest = raw[:KEY_ID_BYTES], raw[KEY_ID_BYTES : KEY_ID_BYTES + NONCE_BYTES], raw[28:]
    key = key_of(key_id)
    if key is None:
        raise ErasedError
    try:
        return json.loads(AESGCM(key).decrypt(nonce, rest, _PREFIX.encode() + key_id))
    except InvalidTag as error:
        raise ValueError("an encrypted value was changed") from error


def is_sealed(value: Any) -> bool:
    """Return True if a value looks like an encrypted value."""
    match = _TOKEN.fullmatch(value) if isinstance(value, str) else None
    return match is not None and len(match[1]) % 4 != 1  # so long is no base64


class Revealer:
    """Decrypts values, and counts those that cannot be decrypted.

    :param key_of: function that returns the key with an id, such as :meth:`KeyStore.key_of
        <cometmq.spark.jobs.mask.keys.KeyStore.key_of>`.
    """

    def __init__(self, key_of: KeyOf) -> None:
        self._key_of = key_of
        self.opened = 0
        self.erased = 0
        """Number of values whose key was dropped."""

    def value(self, value: Any) -> Any:
        """Decrypt every encrypted value inside a JSON value.

        :raises ValueError: an encrypted value was changed.
        """
        holder = [value]
        places: list[tuple[Any, Any]] = [(holder, 0)]
        while places:  # no recursion: bodies may be nested deeper than Python's stack
            container, key = places.pop()
            found = self._one(container[key])
            if isinstance(found, dict | list):
                found = found.copy()
                places += ((found, inner) for inner in (found if isinstance(found, dict) else range(len(found))))
            container[key] = found
        return holder[0]

    def _one(self, value: Any) -> Any:
        if not is_sealed(value):
            return value
        try:
            found = opened(value, self._key_of)
        except ErasedError:
            self.erased += 1
            return value
        self.opened += 1
        return found

    def text(self, text: str) -> str:
        """Decrypt a property word by word, since each key in KEYS is masked separately."""
        words = [self.value(word) for word in text.split(KEY_SEPARATOR)]
        return KEY_SEPARATOR.join(word if isinstance(word, str) else json.dumps(word) for word in words)

    def body(self, body: bytes) -> str:
        """Decrypt every encrypted value in a body, and return the body as text."""
        text = body.decode("utf-8", "replace")
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return text
        found = self.value(document)
        return found if isinstance(found, str) and is_sealed(document) else json.dumps(found, ensure_ascii=False)


_REVEALED_ROWS: Final = 1024
"""Number of messages that are decrypted in one batch."""


def revealed_messages(
    archive: str | Path,
    revealer: Revealer,
    topics: Sequence[str] = (),
    *,
    apart: Callable[[BadMessage], object],
    storage: Mapping[str, str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the decrypted messages from a masked archive, file by file. This function does not need Spark.

    :param apart: function that is called with each message that is left out because one of its encrypted values was
        changed.
    :param storage: options of the object store, such as ``endpoint``.
    :raises OptionError: the archive or a topic in it does not exist.
    """
    from cometmq.spark.archives.files import read_batches

    columns = ["topic", "brokerName", "queueId", "queueOffset", "tags", "keys", "properties", "body"]
    log = ArchiveLog(archive, storage=storage)
    log.demand_any(topics)
    for file in log.files():
        if topics and file.topic not in topics:
            continue
        for batch in read_batches(log.storage, file, columns, rows=_REVEALED_ROWS):
            for row in batch.to_pylist():
                counts = (revealer.opened, revealer.erased)
                try:
                    found = _revealed(row, revealer)
                except ValueError as error:
                    revealer.opened, revealer.erased = counts
                    apart(BadMessage(row["topic"], row["brokerName"], row["queueId"], row["queueOffset"], str(error)))
                else:
                    yield found


def _revealed(row: dict[str, Any], revealer: Revealer) -> dict[str, Any]:
    properties = {name: revealer.text(value) for name, value in row["properties"]}
    found = row | {"properties": properties, "body": revealer.body(row["body"])}
    for name, key in (("tags", "TAGS"), ("keys", "KEYS")):
        found[name] = properties.get(key)
    return found
