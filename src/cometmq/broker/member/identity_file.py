"""A member's identity file in a running process: one write at a time, and none that promises more than the disk has."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Final

from cometmq.broker.failover.identity import (
    IDENTITY_FILE,
    Identity,
    IdentityError,
    boot_id,
    next_identity,
    place_of,
    read_identity,
    write_identity,
)
from cometmq.errors import reason_of
from cometmq.loop import completed
from cometmq.store.message_store import MessageStore
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)


class IdentityFile:
    """The identity file of the store in a directory."""

    def __init__(self, root: Path) -> None:
        self.path: Final = root / "comet" / IDENTITY_FILE
        self._has_lost_bytes = False
        self._lock = asyncio.Lock()

    async def begin(self, store: MessageStore, *, begins_anew: bool) -> Identity:
        """Return the identity with which this process starts, after it was written.

        :param begins_anew: True if the store may begin without its log.
        :raises IdentityError: the file is damaged or cannot be written.
        :raises OSError: the file cannot be read.
        """
        saved = await in_thread(read_identity, self.path)
        is_older = saved is not None and store.max_physical_offset < saved.end
        place = await in_thread(place_of, self.path.parent)
        is_copy = saved is not None and saved.place not in (0, place)
        if is_copy:
            _log.warning("this store is a copy of another one, or was moved, so it may be older")
        has_lost = is_copy or is_older or store.has_lost_end or store.lost_from is not None or begins_anew
        identity = replace(next_identity(saved, boot_id(), has_lost=has_lost), place=place)
        if has_lost and saved is not None:
            _log.warning(
                "this store has lost messages, so it is a new member of its set: generation %d", identity.generation
            )
        try:
            await self.write(identity)
        except OSError as error:
            raise IdentityError(
                f"{self.path} cannot be written: {reason_of(error)}",
                next_step="free some disk space or make the disk writable; the member does not start until then",
            ) from error
        return identity

    def lost_bytes(self) -> None:
        """Let all later writes say that the next process is another member."""
        self._has_lost_bytes = True

    async def write(self, identity: Identity) -> None:
        """Write the file. A write that has begun is completed, also if the caller is cancelled.

        :raises OSError: the file cannot be written.
        """
        async with self._lock:
            content = identity.after_loss() if self._has_lost_bytes else identity
            await completed(in_thread(write_identity, self.path, content))
