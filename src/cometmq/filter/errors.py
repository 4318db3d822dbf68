"""Errors of selectors: at parse time (:class:`FilterError`), and at evaluation."""

from __future__ import annotations

from cometmq.errors import CometMQError


class FilterError(CometMQError):
    """An expression that cannot be used (RocketMQ: ``MQFilterException``).

    ``position`` is the character, counted from 1, where the expression goes wrong.
    """

    def __init__(self, message: str, position: int, *, next_step: str | None = None) -> None:
        super().__init__(f"{message}, at character {position}", next_step=next_step)
        self.position = position


class EvaluationError(Exception):
    """The value of a property does not fit its comparison; the message does not match."""
