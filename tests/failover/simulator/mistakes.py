"""State machines that leave out one rule each. The simulator must find every one of them."""

from __future__ import annotations

from typing import Final

from cometmq.broker.failover.machine import MemberMachine

MISTAKES: Final[dict[str, type[MemberMachine]]] = {}
