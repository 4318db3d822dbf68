"""A backup's manifest, which lists its files with sizes and checksums. The manifest is written last, so a backup
without a manifest is incomplete.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final

import msgspec

from cometmq.errors import CometMQError

MANIFEST: Final = "manifest.json"
FORMAT: Final = "cometmq-backup"
VERSION: Final = 1
MAX_MANIFEST_BYTES: Final = 512 << 20
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class BackupError(CometMQError):
    """A backup cannot be created, is damaged, or cannot be restored."""


class StoredFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file in a backup."""

    size: int
    data: int
    """Number of stored bytes. Zeros follow them up to ``size``."""
    sha256: str
    """Checksum of the stored bytes."""
    mtime_ns: int
    """Modification time of the file in the store when it was copied."""
    sealed: bool = False
    """True if the store no longer writes to the file."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A backup, as described by its manifest."""

    format: str = FORMAT
    version: int = VERSION
    cometmq: str
    """Version of CometMQ that created the backup."""
    created_ms: int
    source: str
    """Directory of the store."""
    log_begin: int
    log_end: int
    """Log offsets of the first record and of the end."""
    files: dict[str, StoredFile]
    """Files by their paths in the store."""

    @property
    def data_bytes(self) -> int:
        """Total size of all files."""
        return sum(file.data for file in self.files.values())

    def encode(self) -> bytes:
        """Return the manifest as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


class _Head(msgspec.Struct):
    format: str = ""
    version: int = 0


def incomplete(backup: str) -> BackupError:
    """Return the error for a place that has no manifest."""
    return BackupError(
        f"{backup} is not a complete backup: it has no {MANIFEST}",
        next_step="create another one; cometmq backup create was interrupted, or never ran there",
    )


def decode_manifest(backup: str, text: bytes) -> Manifest:
    """Decode a backup's manifest.

    :raises BackupError: the manifest is damaged, or has a version that cannot be read.
    """
    manifest_name = f"{backup}/{MANIFEST}"
    try:
        head = msgspec.json.decode(text, type=_Head)
        if head.format != FORMAT:
            raise BackupError(f"{manifest_name} is not a manifest of a CometMQ backup")
        if head.version != VERSION:
            raise BackupError(
                f"{backup} has backup version {head.version}, and this CometMQ reads version {VERSION}",
                next_step="restore it with the CometMQ that created it, or a newer one",
            )
        manifest = msgspec.json.decode(text, type=Manifest)
    except msgspec.MsgspecError as error:
        raise BackupError(f"{manifest_name} is damaged: {error}", next_step="create another backup") from None
    for name, stored in manifest.files.items():
        _check(manifest_name, name, stored)
    return manifest


def _check(manifest: str, name: str, file: StoredFile) -> None:
    """Check that a file's path is inside the backup, and that its numbers are plausible.

    :raises BackupError: the manifest is damaged.
    """
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise BackupError(f"{manifest} is damaged: it contains the invalid path {name[:200]!r}")
    if not (0 <= file.data <= file.size and _DIGEST.fullmatch(file.sha256)):
        raise BackupError(f"{manifest} is damaged: invalid numbers for {name}")
