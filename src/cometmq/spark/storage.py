"""Access to files of ledgers, key indexes, masked copies, bad records and reports, which are local.

Files are addressed by their names below a directory.

This module contains all file-system calls for these files, with one way for each operation. So only one class must be
replaced to support another kind of storage. Spark itself and PyArrow read and write Parquet files by their paths
(:meth:`Directory.path`). Broker stores, which are always local, and key stores, which are SQLite databases, do not use
this module.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from cometmq.durable import flush_directory, replace_file
from cometmq.paths import local_path
from cometmq.spark.errors import ArchiveError

T = TypeVar("T")

LOCK: Final = "_lock"
_DIGITS: Final = 20


class Directory:
    """A directory whose files are addressed by their relative paths. It can be pickled."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Store the path. The directory may not exist yet.

        :raises PathError: the path has an unsupported scheme.
        """
        self.root: Final = local_path(root).absolute()

    def __str__(self) -> str:
        return str(self.root)

    def path(self, name: str) -> Path:
        """Return the path of a file or directory, for Spark and PyArrow."""
        return self.root / name

    # Reading --------------------------------------------------------------------------------------

    def exists(self, name: str = "") -> bool:
        """Return True if the file or directory exists. If no name is given, check this directory."""
        return self.path(name).exists()

    def names(self, pattern: str) -> list[str]:
        """Return the sorted names of the files and directories that match a glob pattern."""
        return [path.relative_to(self.root).as_posix() for path in sorted(self.root.glob(pattern))]

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if the file does not exist."""
        try:
            return self.path(name).read_bytes()
        except FileNotFoundError:
            return None

    def read_json(self, name: str, kind: type[T]) -> T | None:
        """Return the value in a JSON file, or None if the file does not exist.

        :raises ArchiveError: the file is damaged.
        """
        content = self.read(name)
        if content is None:
            return None
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.MsgspecError as error:
            raise ArchiveError(
                f"{self.path(name)} is damaged: {error}", next_step="restore it from a backup"
            ) from error

    # Writing --------------------------------------------------------------------------------------

    def write(self, name: str, content: bytes) -> None:
        """Create or replace a file atomically. After a crash, either the old or the new content is on disk."""
        replace_file(self.path(name), content)

    def write_from_task(self, name: str, content: bytes) -> None:
        """Write a file. Another attempt of the same task may write the same content at the same time."""
        fresh = self.path(name).with_name(f"{uuid.uuid4().hex}.new")
        replace_file(fresh, content)
        fresh.replace(self.path(name))

    def write_json(self, name: str, value: Any, *, indented: bool = False) -> None:
        """Write a value as a JSON file."""
        content = msgspec.json.encode(value)
        self.write(name, msgspec.json.format(content, indent=1) if indented else content)

    def new_path(self, name: str) -> Path:
        """Return the path at which PyArrow creates a file. The file's directory is created."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def move(self, targets: Mapping[str, str]) -> None:
        """Move files to the names to which they are mapped. The new names survive a power cut.

        :raises FileNotFoundError: a file does not exist.
        """
        changed: set[Path] = set()
        for name, target in targets.items():
            path = self.new_path(target)
            self.path(name).replace(path)
            changed.update(above for above in path.parents if above.is_relative_to(self.root))
        for directory in changed:
            flush_directory(directory)

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        self.path(name).unlink(missing_ok=True)

    # Locks ----------------------------------------------------------------------------------------

    @contextmanager
    def locked(self, name: str = LOCK, *, wait: bool = False) -> Iterator[None]:
        """Lock the directory for one writer, and create the directory if it is missing. The lock is released when the
        process ends.

        :param name: name of the lock; different locks are independent.
        :param wait: wait until the lock is free.
        :raises ArchiveError: another process holds the lock.
        """
        with self.locked_if_free(name, wait=wait) as is_locked:
            if not is_locked:
                raise ArchiveError(
                    f"another job is writing to {self.root}", next_step="wait for it, or write to another directory"
                )
            yield

    @contextmanager
    def locked_if_free(self, name: str = LOCK, *, wait: bool = False) -> Iterator[bool]:
        """Try to lock the directory. Yield True if this process now holds the lock, or False if another process holds
        it.
        """
        import fcntl

        with self.new_path(name).open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_locked = False
            else:
                is_locked = True
            yield is_locked


class NumberedFiles(Generic[T]):
    """A series of JSON files with numbers as names, such as ``commits/00000000000000000007.json``."""

    def __init__(self, directory: Directory, place: str, kind: type[T], *, indented: bool = False) -> None:
        """Use the files in ``place``. Each contains a value of type ``kind``."""
        self._directory = directory
        self._place = place
        self._kind = kind
        self._indented = indented

    def numbers(self) -> list[int]:
        """Return the sorted numbers of all files."""
        return [int(Path(name).stem) for name in self._directory.names(f"{self._place}/[0-9]*.json")]

    def find(self, number: int) -> T | None:
        """Return the value with the given number, or None if the file does not exist.

        :raises ArchiveError: the file is damaged.
        """
        return self._directory.read_json(self._name(number), self._kind)

    def read(self, number: int) -> T:
        """Return the value with the given number.

        :raises ArchiveError: the file is missing or damaged.
        """
        found = self.find(number)
        if found is None:
            raise ArchiveError(
                f"{self._directory.path(self._name(number))} is missing", next_step="restore it from a backup"
            )
        return found

    def write(self, number: int, value: T) -> None:
        """Write the value with the given number."""
        self._directory.write_json(self._name(number), value, indented=self._indented)

    def delete(self, number: int) -> None:
        """Delete the value with the given number, if it exists."""
        self._directory.delete(self._name(number))

    def _name(self, number: int) -> str:
        return f"{self._place}/{number:0{_DIGITS}d}.json"
