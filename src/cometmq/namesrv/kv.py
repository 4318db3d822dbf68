"""KVConfigManager: namespaces of keys and values, stored in ``kvConfig.json`` in Apache's format.

The file has the form ``{"configTable":{namespace:{key:value}}}`` and is always written completely. A change is first
staged, then written together with all other staged changes, and then becomes visible, so response code 0 means that the
change is durable. If a write fails, all staged changes are discarded. A staged table is never modified, since a thread
may be writing it; a change creates a new table.

A file that cannot be read is renamed, and its previous version (``.bak``) is read. If there is no previous version, the
nameserver starts with no entries.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from cometmq import fastjson
from cometmq.config_file import ConfigFile
from cometmq.durable import flush_directory
from cometmq.errors import CometMQError, reason_of
from cometmq.namesrv.limits import (
    MAX_KV_CHARS,
    MAX_KV_ENTRIES,
    MAX_KV_NAME_CHARS,
    MAX_KV_VALUE_CHARS,
    MAX_WAITING_KV_CHANGES,
)
from cometmq.threads import in_thread

_SHOWN_CHARS: Final = 200
"""Maximum length of an error message in the log."""

_log = logging.getLogger(__name__)

Tables = dict[str, dict[str, str]]


class KvError(CometMQError):
    """Raised when a change exceeds a limit or cannot be written."""


class KvConfig:
    """The KV configuration of a nameserver."""

    def __init__(self, path: Path) -> None:
        """Load ``path``, or its ``.bak`` file if that fails; a file that cannot be read is renamed."""
        self._file = ConfigFile(path)
        backup = path.with_name(f"{path.name}.bak")
        self._written = next((found for file in (path, backup) if (found := _read(file)) is not None), {})
        self._staged = self._written
        self._entries = 0
        self._chars = 0
        self.give_up()

    # --- changes ------------------------------------------------------------------------------
    def put(self, namespace: str, key: str, value: str) -> None:
        """Stage setting a value (request code 100).

        :raises KvError: the change exceeds a limit; nothing is changed.
        """
        if not 0 < len(namespace) <= MAX_KV_NAME_CHARS or not 0 < len(key) <= MAX_KV_NAME_CHARS:
            raise KvError(f"a namespace or key must have 1 to {MAX_KV_NAME_CHARS} characters")
        if len(value) > MAX_KV_VALUE_CHARS:
            raise KvError(f"the value has {len(value)} characters; at most {MAX_KV_VALUE_CHARS} are allowed")
        table = self._staged.get(namespace, {})
        old = table.get(key)
        if old is None and self._entries >= MAX_KV_ENTRIES:
            raise KvError(f"this nameserver already has the maximum of {MAX_KV_ENTRIES} KV entries")
        grown = len(value) - len(old) if old is not None else len(key) + len(value)
        grown += 0 if namespace in self._staged else len(namespace)
        if grown > 0 and self._chars + grown > MAX_KV_CHARS:
            raise KvError(f"the KV configuration would exceed the maximum of {MAX_KV_CHARS} characters")
        self._entries += (old is None) + (namespace not in self._staged)
        self._chars += grown
        self._staged = {**self._staged, namespace: {**table, key: value}}

    def delete(self, namespace: str, key: str) -> None:
        """Stage the removal of a value (request code 102); a missing value is not an error."""
        table = self._staged.get(namespace)
        if table is not None and key in table:
            rest = dict(table)
            self._chars -= len(key) + len(rest.pop(key))
            self._entries -= 1
            self._staged = {**self._staged, namespace: rest}

    @property
    def staged(self) -> Tables:
        """The staged tables; callers must not modify them."""
        return self._staged

    @property
    def is_written(self) -> bool:
        """True if all staged changes have been written."""
        return self._staged is self._written

    def save(self, tables: Tables) -> None:
        """Write the staged tables; only one thread at a time may call this.

        :raises KvError: the file cannot be written; its old contents are kept.
        """
        try:
            self._file.save(msgspec.json.encode({"configTable": tables}))
        except OSError as error:
            raise KvError(f"cannot write the KV configuration: {error}") from error

    def saved(self, tables: Tables) -> None:
        """Make the written tables visible to readers."""
        self._written = tables

    def give_up(self) -> None:
        """Discard the staged changes that have not been written."""
        self._staged = self._written
        self._entries = len(self._staged) + sum(map(len, self._staged.values()))
        entries = sum(len(key) + len(value) for table in self._staged.values() for key, value in table.items())
        self._chars = entries + sum(map(len, self._staged))

    # --- questions ----------------------------------------------------------------------------
    def get(self, namespace: str, key: str) -> str | None:
        """Return a value (request code 101)."""
        return self._written.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return a namespace (request code 219), or ``None`` if it has never contained a key; callers must not modify
        the result.
        """
        return self._written.get(namespace)


class KvWriter:
    """Writes the KV configuration in a thread; each write includes all pending changes."""

    def __init__(self, kv: KvConfig) -> None:
        self._kv: Final = kv
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        """Return whether the maximum number of changes is pending."""
        return len(self._waiting) >= MAX_WAITING_KV_CHANGES

    async def write(self) -> None:
        """Write the staged changes, if any.

        :raises KvError: the write failed; the changes are discarded.
        """
        if self._kv.is_written:
            return
        written = asyncio.get_running_loop().create_future()
        self._waiting.append(written)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        await written

    async def stop(self) -> None:
        """Write the pending changes."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                tables = self._kv.staged
                try:
                    await in_thread(self._kv.save, tables)
                except KvError as error:
                    self._kv.give_up()
                    waiting += self._waiting  # changes that were staged in the meantime build on the discarded ones
                    self._waiting = []
                    for written in waiting:
                        written.set_exception(KvError(str(error)))
                else:
                    self._kv.saved(tables)
                    for written in waiting:
                        written.set_result(None)
        finally:
            self._task = None


def _read(path: Path) -> Tables | None:
    """Return the tables in a file, or ``None`` if the file is missing, empty or damaged. A damaged file is renamed."""
    try:
        text = path.read_bytes()
        if not text.strip():
            return None
        tables = msgspec.convert(fastjson.loads(text), dict[str, Tables])["configTable"]
        msgspec.json.encode(tables)  # half of a surrogate pair can be read, but not written again
    except FileNotFoundError:
        return None
    except OSError as error:
        why = reason_of(error)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
    else:
        return tables
    _set_aside(path, why[:_SHOWN_CHARS])
    return None


def _set_aside(path: Path, why: str) -> None:
    """Rename a damaged file to an unused name, and log the result."""
    names = (path.with_name(f"{path.name}.damaged.{number}") for number in itertools.count(1))
    place = next(name for name in names if not name.exists())
    try:
        path.rename(place)
        flush_directory(path.parent)
    except OSError as error:
        _log.error("%s cannot be used: %s; it cannot be renamed either: %s", path, why, reason_of(error))
    else:
        _log.error("%s cannot be used: %s; moved to %s", path, why, place.name)
