"""The topics created by subjects with a topic limit, in ``quotaTopics.json``.

A topic counts while it exists. The file is written every few seconds, so that after a crash the latest topics may not
be counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from cometmq.clock import Clock
from cometmq.durable import replace_file
from cometmq.errors import reason_of
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
"""Pause between two checks for deleted topics."""
_LOOK_TOPICS: Final = 1_000
"""If a subject has this many topics, their existence is checked, since some may never have been created."""


class TopicOwners:
    """The topics created by each subject."""

    def __init__(self, path: Path, exists: Callable[[str], bool], *, clock: Clock) -> None:
        """Read the file; if it cannot be read, no topics are counted.

        :param exists: returns whether a topic exists.
        """
        self._path = path
        self._exists = exists
        self._clock = clock
        self._topics: dict[str, set[str]] = {}
        self._looked_at: dict[str, float] = {}
        self._has_changed = False
        try:
            self._topics = msgspec.json.decode(path.read_bytes(), type=dict[str, set[str]])
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            _log.warning("existing topics do not count toward quotas, because %s cannot be read: %s", path, error)

    def count(self, subject: str, most: int) -> int:
        """Return the number of a subject's topics; it is exact if it is at least ``most``."""
        names = self._topics.get(subject, set())
        if len(names) < min(most, _LOOK_TOPICS):
            return len(names)
        now = self._clock.monotonic()
        if names and now - self._looked_at.get(subject, -_LOOK_SECONDS) >= _LOOK_SECONDS:
            self._looked_at[subject] = now
            names = {name for name in names if self._exists(name)}
            self._put(subject, names)
        return len(names)

    def add(self, subject: str, topic: str) -> None:
        """Count a topic that a subject is creating."""
        names = self._topics.setdefault(subject, set())
        if topic not in names:
            names.add(topic)
            self._has_changed = True

    def existing(self, subject: str) -> int:
        """Return the number of existing topics created by a subject."""
        return sum(map(self._exists, self._topics.get(subject, ())))

    def _put(self, subject: str, names: set[str]) -> None:
        self._has_changed = True
        if names:
            self._topics[subject] = names
        else:
            self._topics.pop(subject, None)
            self._looked_at.pop(subject, None)

    async def save_in_background(self) -> None:
        """Write the file in a thread if anything has changed."""
        data = self._encoded()
        if data is not None:
            await in_thread(self._write, data)

    def save(self) -> None:
        """Write the file if anything has changed; this blocks."""
        data = self._encoded()
        if data is not None:
            self._write(data)

    def _encoded(self) -> bytes | None:
        if not self._has_changed:
            return None
        self._has_changed = False
        return msgspec.json.encode(self._topics)

    def _write(self, data: bytes) -> None:
        try:
            replace_file(self._path, data, private=True)
        except OSError as error:
            self._has_changed = True
            _log.error("%s cannot be written: %s", self._path, reason_of(error))
