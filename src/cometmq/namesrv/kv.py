"""KVConfigManager: namespaces of keys and values, kept in ``kvConfig.json`` in Apache's form.

The file is ``{"configTable":{namespace:{key:value}}}`` and is written whole. A change is staged first, then written
together with all others of its moment, and only then seen; so an answer with code 0 means that it is on disk. When
the write fails, all that is staged is given up. Staged tables are copied before they change: a thread may write them.

A file that cannot be used is set aside, beside its place, and the version before it (``.bak``) is read; without a
sound one the nameserver starts with no entries. Routes come from the brokers, so it serves either way.
"""

from __future__ import annotations

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
from cometmq.limits import MAX_KV_CHARS, MAX_KV_ENTRIES, MAX_KV_NAME_CHARS, MAX_KV_VALUE_CHARS

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
"""Namespace of the order configurations; the key is the topic, the value ``broker:queues;…``."""

_SHOWN_CHARS: Final = 200
"""So much of a reason is shown."""

_log = logging.getLogger(__name__)

Tables = dict[str, dict[str, str]]


class KvError(CometMQError):
    """A change that breaks a limit or could not be written."""


class KvConfig:
    """The KV configuration of one nameserver."""

    def __init__(self, path: Path) -> None:
        """Read ``path``, else its ``.bak``; what cannot be used is set aside."""
        self._file = ConfigFile(path)
        backup = path.with_name(f"{path.name}.bak")
        self._written = next((found for file in (path, backup) if (found := _read(file)) is not None), {})
        self._staged = self._written
        self._entries = 0
        self._chars = 0
        self.give_up()

    # --- changes ------------------------------------------------------------------------------
    def put(self, namespace: str, key: str, value: str) -> None:
        """Stage one value (code 100).

        :raises KvError: nothing is changed then.
        """
        if not 0 < len(namespace) <= MAX_KV_NAME_CHARS or not 0 < len(key) <= MAX_KV_NAME_CHARS:
            raise KvError(f"a namespace or key has 1 to {MAX_KV_NAME_CHARS} characters")
        if len(value) > MAX_KV_VALUE_CHARS:
            raise KvError(f"the value has {len(value)} characters; at most {MAX_KV_VALUE_CHARS} are allowed")
        table = self._staged.get(namespace, {})
        old = table.get(key)
        if old is None and self._entries >= MAX_KV_ENTRIES:
            raise KvError(f"this nameserver holds at most {MAX_KV_ENTRIES} KV entries")
        grown = len(value) - len(old) if old is not None else len(key) + len(value)
        grown += 0 if namespace in self._staged else len(namespace)
        if grown > 0 and self._chars + grown > MAX_KV_CHARS:
            raise KvError(f"this nameserver holds at most {MAX_KV_CHARS} characters of KV configuration")
        self._entries += (old is None) + (namespace not in self._staged)
        self._chars += grown
        self._staged = {**self._staged, namespace: {**table, key: value}}

    def delete(self, namespace: str, key: str) -> None:
        """Stage the removal of one value; an absent one is no error (code 102)."""
        table = self._staged.get(namespace)
        if table is not None and key in table:
            rest = dict(table)
            self._chars -= len(key) + len(rest.pop(key))
            self._entries -= 1
            self._staged = {**self._staged, namespace: rest}

    @property
    def staged(self) -> Tables:
        """What is to be written; not to be changed."""
        return self._staged

    @property
    def is_written(self) -> bool:
        """Whether nothing is staged that is not on disk."""
        return self._staged is self._written

    def save(self, tables: Tables) -> None:
        """Write tables that were staged; any thread may call it, one at a time.

        :raises KvError: the file could not be written and is the old one.
        """
        try:
            self._file.save(msgspec.json.encode({"configTable": tables}))
        except OSError as error:
            raise KvError(f"cannot write the KV configuration: {error}") from error

    def saved(self, tables: Tables) -> None:
        """These tables are on disk: they are seen from now on."""
        self._written = tables

    def give_up(self) -> None:
        """Forget what is staged and not on disk."""
        self._staged = self._written
        self._entries = len(self._staged) + sum(map(len, self._staged.values()))
        entries = sum(len(key) + len(value) for table in self._staged.values() for key, value in table.items())
        self._chars = entries + sum(map(len, self._staged))

    # --- questions ----------------------------------------------------------------------------
    def get(self, namespace: str, key: str) -> str | None:
        """Return one value (code 101)."""
        return self._written.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return a whole namespace, or ``None`` when it never held anything (code 219); not to be changed."""
        return self._written.get(namespace)


def _read(path: Path) -> Tables | None:
    """The tables in a file; ``None`` when it is not there, empty, or set aside because it cannot be used."""
    try:
        text = path.read_bytes()
        if not text.strip():
            return None
        tables = msgspec.convert(fastjson.loads(text), dict[str, Tables])["configTable"]
        msgspec.json.encode(tables)  # half a surrogate pair can be read, but never be written
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
    """Rename a file that cannot be used, and say so; its new name is free."""
    names = (path.with_name(f"{path.name}.damaged.{number}") for number in itertools.count(1))
    place = next(name for name in names if not name.exists())
    try:
        path.rename(place)
        flush_directory(path.parent)
    except OSError as error:
        _log.error("%s cannot be used: %s; it cannot be set aside: %s", path, why, reason_of(error))
    else:
        _log.error("%s cannot be used: %s; moved to %s", path, why, place.name)
