"""CometMQ's log level, which brokers and nameservers change at run time with the key ``logLevel``."""

from __future__ import annotations

import logging
from typing import Final

LOG_LEVELS: Final = ("", "DEBUG", "INFO", "WARNING", "ERROR")
"""The values of ``logLevel``; an empty value means the initial level."""
LOG_LEVEL_DOC: Final = "Minimum level of CometMQ's log lines. Empty: the level set at startup (--log-level)."


class LogLevel:
    """Sets the level of the logger ``cometmq``, and remembers the initial one."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("cometmq")
        self._of_the_start = self._logger.level
        self._named = ""

    def set(self, level: str) -> None:
        """Apply a level; an empty string means the initial level. Do nothing if the level is already in effect."""
        if level != self._named:
            self._named = level
            self._logger.setLevel(level or self._of_the_start)
