"""KVConfigManager: namespaces of keys and values, kept in ``kvConfig.json`` in Apache's form.

The file is ``{"configTable":{namespace:{key:value}}}`` and is written whole at every change, so that
an answer with code 0 means that the change is on disk.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from cometmq.config_file import ConfigFile
from cometmq.errors import CometMQError
from cometmq.fastjson import FastjsonError, dumps
from cometmq.limits import MAX_KV_CHARS, MAX_KV_ENTRIES, MAX_KV_NAME_CHARS, MAX_KV_VALUE_CHARS

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
"""Namespace of the order configurations; the key is the topic, the value ``broker:queues;…``."""

Tables = dict[str, dict[str, str]]


class KvError(CometMQError):
    """A change that breaks a limit or could not be written."""


def _count_chars(tables: Tables) -> int:
    entries = sum(len(key) + len(value) for table in tables.values() for key, value in table.items())
    return entries + sum(map(len, tables))


class KvConfig:
    """The KV configuration of one nameserver."""

    def __init__(self, path: Path) -> None:
        """Read ``path``.

        :raises KvError: the file exists and cannot be understood.
        """
        self._file = ConfigFile(path)
        self._tables: Tables = {}
        try:
            loaded = self._file.load()
            if loaded is not None:
                self._tables = msgspec.convert(loaded, dict[str, Tables])["configTable"]
        except (msgspec.ValidationError, FastjsonError, KeyError) as error:
            raise KvError(f"{path} is not a KV configuration: {error}", next_step="repair or remove the file") from None
        self._chars = _count_chars(self._tables)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set one value (code 100).

        :raises KvError: nothing is changed then.
        """
        if not 0 < len(namespace) <= MAX_KV_NAME_CHARS or not 0 < len(key) <= MAX_KV_NAME_CHARS:
            raise KvError(f"a namespace or key has 1 to {MAX_KV_NAME_CHARS} characters")
        if len(value) > MAX_KV_VALUE_CHARS:
            raise KvError(f"the value has {len(value)} characters; at most {MAX_KV_VALUE_CHARS} are allowed")
        table = self._tables.get(namespace, {})
        if key not in table and len(self._tables) + sum(map(len, self._tables.values())) >= MAX_KV_ENTRIES:
            raise KvError(f"this nameserver holds at most {MAX_KV_ENTRIES} KV entries")
        grown = len(key) + len(value) if key not in table else len(value) - len(table[key])
        grown += 0 if namespace in self._tables else len(namespace)
        if grown > 0 and self._chars + grown > MAX_KV_CHARS:
            raise KvError(f"this nameserver holds at most {MAX_KV_CHARS} characters of KV configuration")
        self._save({**self._tables, namespace: {**table, key: value}})

    def get(self, namespace: str, key: str) -> str | None:
        """Return one value (code 101)."""
        return self._tables.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        """Remove one value; an absent one is no error (code 102).

        :raises KvError: the change could not be written.
        """
        table = self._tables.get(namespace)
        if table is not None and key in table:
            rest = {name: value for name, value in table.items() if name != key}
            self._save({**self._tables, namespace: rest})

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return a whole namespace, or ``None`` when it never held anything (code 219)."""
        table = self._tables.get(namespace)
        return None if table is None else dict(table)

    def _save(self, tables: Tables) -> None:
        try:
            self._file.save(dumps({"configTable": tables}))
        except OSError as error:
            raise KvError(f"cannot write the KV configuration: {error}") from error
        self._tables = tables
        self._chars = _count_chars(tables)
