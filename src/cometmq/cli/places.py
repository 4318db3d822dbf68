"""Default ports, addresses and directories of the commands."""

from __future__ import annotations

from typing import Final

DEFAULT_NAMESRV_PORT: Final = 9876
DEFAULT_PORT: Final = 10911
DEFAULT_DATA: Final = "cometmq-data"
DEFAULT_NAMESRV: Final = f"127.0.0.1:{DEFAULT_NAMESRV_PORT}"
PORTS_PER_BROKER: Final = 10
"""Distance between the ports of two brokers of one `serve`; Apache's use port - 2 and port + 1 as well."""
NAMESRV_VARIABLE: Final = "NAMESRV_ADDR"
"""Environment variable with the nameserver's address, the same one that Apache's clients read."""
