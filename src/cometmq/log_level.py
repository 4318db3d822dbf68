"""The level of CometMQ's log lines, which the key ``logLevel`` of brokers and nameservers changes while they run."""

from __future__ import annotations

import logging
from typing import Final

LOG_LEVELS: Final = ("", "DEBUG", "INFO", "WARNING", "ERROR")
"""Values of the key; the empty one stands for the level of the start."""
LOG_LEVEL_DOC: Final = "Least level of CometMQ's log lines; empty: that of the start (--log-level)."


class LogLevel:
    """Sets the level of the logger ``cometmq``; it knows the level of the start."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("cometmq")
        self._of_the_start = self._logger.level
        self._named = ""

    def set(self, level: str) -> None:
        """Put a level in force; an empty one is that of the start. The same level again changes nothing."""
        if level != self._named:
            self._named = level
            self._logger.setLevel(level or self._of_the_start)
