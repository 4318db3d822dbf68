"""Which part of the log is taken to be in memory: the end of it, by ``accessMessageInMemoryMaxRatio``."""

from __future__ import annotations

import os
from typing import Final

from cometmq.broker.config import BrokerConfig

_MEMORY_BYTES: Final = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def is_in_memory(bytes_behind: int, config: BrokerConfig) -> bool:
    """Whether a message so many bytes before the end of the log is, for all that one knows."""
    return bytes_behind <= _MEMORY_BYTES * config.access_message_in_memory_max_ratio // 100
