"""A broker that does not know requests of CometMQ's own, as those of Apache do not."""

from __future__ import annotations

from cometmq.broker.controller import Broker


def without(broker: Broker, code: int) -> None:
    """Let a running broker refuse a code as one that it does not know."""
    del broker.processors._by_code[code]
    del broker.processors._by_prefix[b'{"code":%d' % code]
