"""The broker's configuration while it runs: one place that holds the current one and tells who must know."""

from __future__ import annotations

from collections.abc import Callable

from cometmq.broker.config import BrokerConfig


class LiveConfig:
    """Holds the frozen configuration of this moment; ``replace`` puts another in its place.

    What is read often is read from ``current`` each time; who keeps something derived from it
    listens to ``on_change``.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.current = config
        self.on_change: list[Callable[[BrokerConfig], None]] = []

    def replace(self, config: BrokerConfig) -> None:
        """Use ``config`` from now on."""
        self.current = config
        for listener in self.on_change:
            listener(config)
