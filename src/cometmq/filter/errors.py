"""Selector errors: those found while parsing (:class:`FilterError`), and those found during evaluation."""

from __future__ import annotations

from cometmq.errors import CometMQError


class FilterError(CometMQError):
    """An expression is invalid (RocketMQ's ``MQFilterException``).

    ``position`` is the position of the first invalid character, counted from 1.
    """

    def __init__(self, message: str, position: int, *, next_step: str | None = None) -> None:
        super().__init__(f"{message}, at character {position}", next_step=next_step)
        self.position = position


class EvaluationError(Exception):
    """A property value cannot be compared in the way that the expression requires; the message does not match."""
