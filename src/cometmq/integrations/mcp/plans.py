"""Changes in two steps: a plan with a token, and its execution."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cometmq.clock import Clock
from cometmq.errors import CometMQError
from cometmq.integrations.mcp.options import MAX_PLANS, PLAN_SECONDS


class PlanError(CometMQError):
    """A token does not permit this call."""


@dataclass(frozen=True)
class Plan:
    """A change that has not been carried out, in the shape of Studio's catalogue."""

    summary: str
    impact: list[str]
    before: dict[str, Any]
    """The state from which the plan was made."""
    after: dict[str, Any]
    run: Callable[[], Awaitable[dict[str, Any]]]
    """Carries out the change, and returns the tool's result."""
    warnings: list[str] = field(default_factory=list)
    guard: Any = None
    """The part of the state that must be the same at the second call; by default ``before`` and ``after``. Offsets that
    move all the time are no part of it.
    """

    @property
    def fields(self) -> dict[str, Any]:
        """Return the plan as the answer shows it."""
        return {
            "summary": self.summary,
            "impact": self.impact,
            "before": self.before,
            "after": self.after,
            "warnings": self.warnings,
        }


@dataclass(frozen=True)
class _Waiting:
    digest: bytes
    expires: float


class Plans:
    """The plans that wait for their second call. A token is 256 random bits, and known only to its caller."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[str, _Waiting] = {}

    def remember(self, tool: str, arguments: Mapping[str, Any], plan: Plan) -> str:
        """Return a token for a plan."""
        while len(self._waiting) >= MAX_PLANS:
            del self._waiting[next(iter(self._waiting))]
        token = secrets.token_urlsafe(32)
        self._waiting[token] = _Waiting(_digest(tool, arguments, plan), self._clock.monotonic() + PLAN_SECONDS)
        return token

    def redeem(self, token: str, tool: str, arguments: Mapping[str, Any], plan: Plan) -> None:
        """Check a token, which can then not be used again.

        :param plan: the plan as it would be made now.
        :raises PlanError: the token is unknown, used or expired, belongs to another call, or the state has changed.
        """
        waiting = self._waiting.pop(token, None)
        step = "call the tool with dry_run, show the new plan to the user, and use its confirm_token"
        if waiting is None:
            raise PlanError("the confirm_token is unknown or was used before; nothing was changed", next_step=step)
        if self._clock.monotonic() > waiting.expires:
            raise PlanError(
                f"the confirm_token has expired after {PLAN_SECONDS:.0f} seconds; nothing was changed", next_step=step
            )
        if waiting.digest != _digest(tool, arguments, plan):
            raise PlanError(
                "the confirm_token belongs to another tool, to other arguments, or the state has changed since the "
                "plan; nothing was changed",
                next_step=step,
            )


def _digest(tool: str, arguments: Mapping[str, Any], plan: Plan) -> bytes:
    guard = [plan.before, plan.after] if plan.guard is None else plan.guard
    what = {"tool": tool, "arguments": dict(arguments), "guard": guard}
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).digest()
