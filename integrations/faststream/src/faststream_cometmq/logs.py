"""The columns of log lines."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from faststream._internal.basic_types import LoggerProto
from faststream._internal.context import ContextRepo
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger

_ID_CHARS = 32


class RocketMQLogColumns(DefaultLoggerStorage):
    """Columns as wide as the longest topic and group."""

    def __init__(self) -> None:
        super().__init__()
        self._level = logging.INFO
        self._widths = {"topic": 5, "group": 5}

    def set_level(self, level: int) -> None:
        """Set the level of the logger."""
        self._level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Make room for a subscriber's names."""
        for name, width in self._widths.items():
            self._widths[name] = max(width, len(params.get(name, "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """Return the logger."""
        if found := self._get_logger_ref():
            return found
        columns = " | ".join(f"%({name})-{width}s" for name, width in self._widths.items())
        logger = get_broker_logger(
            name="rocketmq",
            default_context=dict.fromkeys(self._widths, ""),
            message_id_ln=_ID_CHARS,
            fmt=f"%(asctime)s %(levelname)-8s - {columns} | %(message_id)-{_ID_CHARS}s - %(message)s",
            context=context,
            log_level=self._level,
        )
        self._logger_ref.add(logger)
        return logger


logger_state = partial(make_logger_state, default_storage_cls=RocketMQLogColumns)
