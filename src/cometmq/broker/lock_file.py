"""Who holds which queue, on disk: a broker that was restarted gives nobody a queue that its holder still reads.

``comet/locks.json`` is written when locks go from hand to hand, before the request that did it is answered;
renewals are not noted. It is not flushed to the disk, which others would wait for: after a power cut no client
trusts its locks any more by the time that the machine is up again. (Apache's broker forgets all locks.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from cometmq.broker.locks import HeldQueues, RebalanceLockManager
from cometmq.broker.table_file import set_aside

_log = logging.getLogger(__name__)


class LockFile:
    """The file of one broker's locks; ``on_due`` is called when it should be written."""

    def __init__(self, locks: RebalanceLockManager, path: Path) -> None:
        self._locks = locks
        self._path = path
        self._due = False
        self.on_due: Callable[[], None] = self.save
        locks.on_change = self._changed

    def load(self) -> None:
        """Take up the locks of the broker's life before; without the file, or if it is damaged, there are none."""
        try:
            held = msgspec.json.decode(self._path.read_bytes(), type=list[HeldQueues])
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            _log.warning("%s", set_aside(self._path, f"cannot be used, locks of queues are forgotten: {error}"))
            return
        self._locks.restore(held)

    def _changed(self) -> None:
        self._due = True
        self.on_due()

    def save(self) -> None:
        """Write the file if a lock changed hands; on a full or broken disk it stays due for the next call."""
        if self._due:
            fresh = self._path.with_name(self._path.name + ".tmp")
            try:
                fresh.parent.mkdir(parents=True, exist_ok=True)
                fresh.write_bytes(self._locks.text())
                fresh.replace(self._path)
                self._due = False
            except OSError as error:
                _log.error("cannot write %s: %s; it will be tried again", self._path, error)
