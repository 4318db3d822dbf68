"""The file in a member's store that says which member it is: ``comet/failover.json``.

A replica keeps its generation as long as no byte that somebody relies on can have been lost:

* The same boot id (``/proc/sys/kernel/random/boot_id``): the process died, but the kernel lives and still has all bytes
  that were written.
* ``clean``: the broker was stopped and has flushed its log.
* ``solid``: everything that this replica has reported or acknowledged was flushed before. The file says False before
  the first unflushed byte counts.

Otherwise the generation rises. So it does when the log ends before the end of the last clean stop, when the store knows
that it has lost the log's end, or when it begins anew without its log. It also rises when the file is in another
directory than the one for which it was written (``place``): a copy of a store may be older than the store. A store
without the file, for example on a new disk, begins with a random generation: a number counted from the document could
be that of an entry that is still on its way to the engine.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from cometmq.broker.failover.document import MAX_NUMBER, Member
from cometmq.broker.limits import MAX_FAILOVER_IDENTITY_BYTES
from cometmq.durable import make_directory, replace_file
from cometmq.errors import CometMQError

IDENTITY_FILE: Final = "failover.json"
"""Name of the file below ``comet``. Backups leave it out: a store that was restored from one has lost bytes."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_FIRST_BITS: Final = 40
"""Size of a new store's generation: one of 10¹² numbers."""


class IdentityError(CometMQError):
    """The identity file cannot be used."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The content of the identity file."""

    generation: int
    boot_id: str
    is_clean: bool = False
    is_solid: bool = False
    set_id: str = ""
    """The set to which the store belongs; empty until it has read a document."""
    end: int = 0
    """The end of the log at a clean stop; an older log, for example from another disk, ends before it."""
    place: int = 0
    """The inode of the file's directory, which a copy does not have; 0 if it is not known."""

    def after_loss(self) -> Identity:
        """Return the identity of a store that may have lost bytes: the next process is another member.

        After a failed flush, the kernel may have dropped the bytes although it lives.
        """
        return replace(self, boot_id="", is_clean=False, is_solid=False, end=0)

    def member(self, name: str) -> Member:
        """Return the member that a replica is with this identity."""
        return Member(name, self.generation)


class _Wire(msgspec.Struct, rename="camel"):
    format: int
    generation: int
    boot_id: str
    clean: bool
    solid: bool
    set_id: str
    end: int = 0
    place: int = 0


def next_identity(
    saved: Identity | None, boot_id: str, first_generation: int | None = None, *, has_lost: bool = False
) -> Identity:
    """Return the identity with which a process starts. It must be saved before the member does anything else.

    :param has_lost: True if the store knows that it has lost messages, whatever the file says.
    :param saved: the file's content, or ``None`` if the store has none.
    :param first_generation: the generation of a store without a file; random by default.
    """
    if saved is None:
        first = first_generation if first_generation is not None else secrets.randbits(_FIRST_BITS)
        return Identity(first + 1, boot_id)
    is_complete = not has_lost and (saved.is_clean or saved.is_solid or saved.boot_id == boot_id)
    generation = saved.generation if is_complete else saved.generation + 1
    return replace(
        saved, generation=generation, boot_id=boot_id, is_clean=False, is_solid=saved.is_solid and not has_lost, end=0
    )


def place_of(directory: Path) -> int:
    """Return the inode of a directory, which is created if necessary.

    It survives a restart of the machine, and a volume that is attached to another one.

    :raises OSError: the directory cannot be created or read.
    """
    make_directory(directory)
    return directory.stat().st_ino


def boot_id() -> str:
    """Return the id of the running kernel's start.

    On systems without one, each call returns another id, so that every start counts as a loss of power.
    """
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return secrets.token_hex(16)


def read_identity(path: Path) -> Identity | None:
    """Return the content of an identity file, or ``None`` if there is no file.

    :raises IdentityError: the file is damaged.
    :raises OSError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FAILOVER_IDENTITY_BYTES + 1)
    except FileNotFoundError:
        return None
    try:
        wire = msgspec.json.decode(data, type=_Wire)
        if wire.format != 1 or not 0 < wire.generation <= MAX_NUMBER or len(data) > MAX_FAILOVER_IDENTITY_BYTES:
            raise msgspec.ValidationError("a value is outside its range")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise IdentityError(
            f"{path} is damaged: {error}",
            next_step="rename the file: the broker then starts as a new member, which copies what it lacks",
        ) from error
    return Identity(wire.generation, wire.boot_id, wire.clean, wire.solid, wire.set_id, wire.end, wire.place)


def write_identity(path: Path, identity: Identity) -> None:
    """Write an identity file, so that it survives a power cut.

    :raises OSError: the file cannot be written.
    """
    clean, solid = identity.is_clean, identity.is_solid
    wire = _Wire(1, identity.generation, identity.boot_id, clean, solid, identity.set_id, identity.end, identity.place)
    replace_file(path, msgspec.json.encode(wire))
