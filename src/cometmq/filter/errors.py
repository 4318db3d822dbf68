"""Errors in selectors, found while parsing (:class:`FilterError`) or while evaluating (:class:`EvaluationError`)."""

from __future__ import annotations

from cometmq.errors import CometMQError


class FilterError(CometMQError):
    """Raised when an expression is invalid (RocketMQ's ``MQFilterException``).

    ``position`` is the position of the first invalid character, counted from 1.
    """

    def __init__(self, message: str, position: int, *, next_step: str | None = None) -> None:
        super().__init__(f"{message}, at character {position}", next_step=next_step)
        self.position = position


class EvaluationError(Exception):
    """Raised when a property value cannot be compared as the expression requires, so that the message does not
    match.
    """
