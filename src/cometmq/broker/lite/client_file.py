"""The file of the subscriptions to lite topics, ``comet/lite_clients.bin``.

Clients send their subscriptions again every 30 s. The file bridges the time until then when a broker restarts: their
lite topics are ready at once, and an exclusive lite topic keeps its client. It is written a few seconds after a
change. Without it, or if it is damaged, the broker waits for the clients.

The file is a CRC32 (big-endian) and MessagePack: an array of version and clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from cometmq.broker.lite.crowd import LiteClient
from cometmq.broker.lite.index import numbers_of
from cometmq.broker.lite.indexes import LiteIndexes
from cometmq.broker.lite.name_table import NO_NAME
from cometmq.broker.lite.snapshot_file import array_header, with_crc
from cometmq.broker.lite.subscriptions import LiteSubscriptions
from cometmq.broker.slices import batches
from cometmq.broker.tables.group_attributes import LiteGroup
from cometmq.broker.tables.table_file import set_aside
from cometmq.checksum import crc32
from cometmq.durable import replace_file
from cometmq.store.failure_log import FailureLog
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

_VERSION: Final = 1
_NAMES_AT_ONCE: Final = 5_000
_CLIENTS_AT_ONCE: Final = 100
_encode: Final = msgspec.msgpack.Encoder().encode


class SavedClient(msgspec.Struct, array_like=True):
    """A client and its lite topics."""

    client_id: str
    group: str
    parent: str
    version: int
    is_wildcard: bool
    names: list[str]


class SavedClients(msgspec.Struct, array_like=True):
    """The contents of the file."""

    version: int
    clients: list[SavedClient]


class LiteClientFile:
    """Reads and writes the file.

    :param path: ``comet/lite_clients.bin``.
    """

    def __init__(self, path: Path, indexes: LiteIndexes, subscriptions: LiteSubscriptions) -> None:
        self._path = path
        self._indexes = indexes
        self._subscriptions = subscriptions
        self._saved = 0
        self._failures = FailureLog(_log)

    def load(self) -> None:
        """Add the clients in the file."""
        try:
            data = self._path.read_bytes()
            if len(data) < 4 or crc32(data[4:]) & 0xFFFFFFFF != int.from_bytes(data[:4], "big"):
                raise ValueError("the CRC does not match")
            saved = msgspec.msgpack.decode(data[4:], type=SavedClients)
            if saved.version != _VERSION:
                raise ValueError(f"unknown version {saved.version}")
        except FileNotFoundError:
            return
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            _log.warning(set_aside(self._path, f"cannot be used ({error}), waiting for the clients"))
            return
        for found in saved.clients:
            if self._indexes.is_parent(found.parent):
                self._add(found)
        self._saved = self._subscriptions.changes

    def _add(self, saved: SavedClient) -> None:
        index = self._indexes.of(saved.parent)
        client = self._subscriptions.client(saved.client_id, saved.group, index, None)
        client.version = saved.version
        is_first = self._subscriptions.set_wildcard(client, saved.is_wildcard)
        for name in saved.names:
            number = index.find(name)
            self._subscriptions.add(client, index.add(name) if number == NO_NAME else number, LiteGroup())
        if is_first:
            for number in numbers_of(index):
                self._subscriptions.make_ready(client, number)

    async def save(self) -> None:
        """Write the file if a subscription has changed."""
        changes = self._subscriptions.changes
        if changes == self._saved:
            return
        clients: list[SavedClient] = []
        room = _NAMES_AT_ONCE
        for client in list(self._subscriptions.clients.values()):
            clients.append(_saved(client))
            room -= len(client.numbers) + 1
            if room <= 0:
                room = _NAMES_AT_ONCE
                await asyncio.sleep(0)
        try:
            await in_thread(self._write, clients)
        except OSError as error:
            self._failures.failed(f"write {self._path}", error)
        else:
            self._saved = changes
            self._failures.ended(f"write {self._path}")

    def _write(self, clients: list[SavedClient]) -> None:
        replace_file(self._path, with_crc(_encoded(clients)))


def _encoded(clients: list[SavedClient]) -> Iterator[bytes]:
    """Yield the pieces of encoded :class:`SavedClients`; one call for all would hold Python's lock for too long."""
    yield array_header(2) + _encode(_VERSION) + array_header(len(clients))
    for some in batches(clients, _CLIENTS_AT_ONCE):
        yield b"".join(map(_encode, some))


def _saved(client: LiteClient) -> SavedClient:
    index = client.index
    names = [index.name(number) for number in client.numbers]
    return SavedClient(client.client_id, client.group, index.parent, client.version, client.is_wildcard, names)
