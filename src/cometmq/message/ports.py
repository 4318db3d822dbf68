"""The ports on which servers listen by default. Configurations, commands and clients take them from here."""

from __future__ import annotations

from typing import Final

NAMESRV_PORT: Final = 9_876
BROKER_PORT: Final = 10_911
FAST_PORT_DISTANCE: Final = 2
"""Difference between a broker's port and the lower port for clients with ``vipChannelEnabled``."""
HA_PORT_DISTANCE: Final = 1
"""Difference between a broker's port and the higher port for its slaves."""
METRICS_PORT: Final = 5_557
"""Port for metrics. The nameserver of `serve` uses the port below, and further brokers use the ports above."""
GRPC_PORT: Final = 8_081
"""Port for RocketMQ 5 clients. Apache's proxy uses the same port."""
CONSOLE_PORT: Final = 8_080
MCP_PORT: Final = 8_090
