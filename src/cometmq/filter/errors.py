"""Errors of selectors: at parse time (:class:`FilterError`), and at evaluation."""

from __future__ import annotations

from cometmq.errors import CometMQError


class FilterError(CometMQError):
    """Raised for an invalid expression (RocketMQ's ``MQFilterException``).

    ``position`` is the character, counted from 1, at which the expression is invalid.
    """

    def __init__(self, message: str, position: int, *, next_step: str | None = None) -> None:
        super().__init__(f"{message}, at character {position}", next_step=next_step)
        self.position = position


class EvaluationError(Exception):
    """A property value cannot be compared as the expression demands; the message does not match."""
