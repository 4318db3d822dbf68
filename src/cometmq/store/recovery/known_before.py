"""KnownBefore: the facts about a store that are known before its log is read."""

from __future__ import annotations

import dataclasses

from cometmq.store.log.checkpoint import Checkpoint
from cometmq.store.recovery.known_files import KnownFiles
from cometmq.store.recovery.known_topics import KnownTopics
from cometmq.store.recovery.position import Position


@dataclasses.dataclass(frozen=True, slots=True)
class KnownBefore:
    """The facts from a store's small files and configuration, which are known before its log is read."""

    crashed: bool
    checkpoint: Checkpoint | None
    position: Position | None
    topics: KnownTopics
    check_crc: bool
    is_slave: bool
    files: KnownFiles
