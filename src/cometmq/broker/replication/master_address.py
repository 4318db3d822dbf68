"""Where a slave finds its master: as configured, or as the nameservers say."""

from __future__ import annotations

import asyncio
import logging

from cometmq.remoting.headers import RegisterBrokerResponseHeader

_log = logging.getLogger(__name__)


class MasterAddress:
    """The addresses of one slave's master, and how they change.

    :param ha_master_address: ``host:port`` of ``haMasterAddress``; empty for what the nameservers say.
    """

    def __init__(self, ha_master_address: str) -> None:
        self._is_configured = bool(ha_master_address)
        self.ha: str | None = ha_master_address or None
        """``host:port`` that its log comes from; the last that was known, while the master is away."""
        self.remoting: str | None = None
        """``host:port`` for requests, likewise; ``None`` until a nameserver has told it."""
        self.changed = asyncio.Event()
        """Set when one of them has become another."""

    def registered(self, answer: RegisterBrokerResponseHeader) -> None:
        """Take what a nameserver answered to the registration of this slave."""
        before = (self.ha, self.remoting)
        if answer.master_addr:
            self.remoting = answer.master_addr
        if answer.ha_server_addr and not self._is_configured:
            self.ha = answer.ha_server_addr
        if (self.ha, self.remoting) != before:
            _log.info("the master is at %s, its log comes from %s", self.remoting, self.ha)
            self.changed.set()
