"""Stores as a crash leaves them (copies, made while the broker runs), and those of real brokers."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from tests.helpers.unpack import unpack

from cometmq.broker.config import BrokerConfig, load_broker_config
from cometmq.store.disk import Disk


def copy_store(store: Path, copy: Path) -> None:
    """Copy a store as it was at one moment, though threads of its broker may replace small files meanwhile."""

    def written() -> dict[Path, tuple[int, int]]:
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in store.rglob("*")}

    while True:
        shutil.rmtree(copy, ignore_errors=True)
        with contextlib.suppress(OSError, shutil.Error):
            before = written()
            shutil.copytree(store, copy, ignore=shutil.ignore_patterns("lock"))
            if before == written():
                return


def unpacked(packed: Path, place: Path, **keys: Any) -> BrokerConfig:
    """The configuration of a broker on a real broker's packed store, from which retention deletes nothing."""
    unpack(packed, place)
    (conf,) = place.rglob("broker.conf")
    config, _ = load_broker_config(
        conf,
        store_path_root_dir=str(conf.parent / "store"),
        store_path_commit_log=str(conf.parent / "store" / "commitlog"),
        bind_address="127.0.0.1",
        listen_port=0,
        file_reserved_time=1_000_000,
        **keys,
    )
    return config


Note = TypeVar("Note")


class SnapshotDisk(Disk, Generic[Note]):
    """Copies the store before each write, in the middle of it, and before each flush.

    :param store: its directory; copies stand beside it.
    :param note: called at each moment; what it returns is kept beside the copy's directory in ``copies``.
    """

    def __init__(self, store: Path, note: Callable[[], Note]) -> None:
        self.copies: list[tuple[Path, Note]] = []
        self._store = store
        self._note = note
        self._lock = threading.Lock()

    def _moment(self) -> None:
        directory = self._store.parent / f"moment-{len(self.copies)}"
        copy_store(self._store, directory / self._store.name)
        self.copies.append((directory, self._note()))

    def write(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
        with self._lock:
            self._moment()
            super().write(fd, memoryview(data)[: len(data) // 2], at)
            self._moment()
            super().write(fd, data, at)

    def flush(self, fd: int) -> None:
        with self._lock:
            self._moment()
            super().flush(fd)
