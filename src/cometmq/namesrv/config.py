"""Configuration of a nameserver: Apache's ``namesrv.conf`` keys that mean something here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cometmq.apache_keys import NAMESERVER, apache_keys
from cometmq.limits import MAX_CONNECTIONS
from cometmq.options import Option, load_file, option, options_of


@dataclasses.dataclass(frozen=True, slots=True)
class NamesrvConfig:
    """The options of one nameserver process (``NamesrvConfig`` and ``NettyServerConfig``)."""

    listen_port: int = option(9876, "Port for brokers, clients and tools; 0 takes a free one.", maximum=65_535)
    bind_address: str = option("0.0.0.0", "Address to listen on; empty: every one, IPv4 and IPv6.")
    kv_config_path: str = option(
        str(Path.home() / "namesrv" / "kvConfig.json"), "File of the KV configuration (codes 100 to 102)."
    )
    config_store_path: str = option("", "File that changes made at run time (code 318) are written back to.")
    order_message_enable: bool = option(
        False, "Put a topic's ORDER_TOPIC_CONFIG into its route as orderTopicConf.", runtime=True
    )
    scan_not_active_broker_interval: int = option(
        10_000, "Milliseconds between two looks for brokers that fell silent.", minimum=100, maximum=3_600_000
    )
    broker_channel_expired_time: int = option(
        120_000,
        "Milliseconds without registration after which a broker is taken out of the routes.",
        minimum=1_000,
        maximum=86_400_000,
        runtime=True,
    )
    server_channel_max_idle_time_seconds: int = option(
        120, "Seconds without traffic after which a connection is closed.", minimum=1, maximum=86_400
    )
    server_max_connections: int = option(
        MAX_CONNECTIONS, "Connections open at the same time; fewer where `ulimit -n` allows less.", minimum=1
    )

    kept: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Keys of Apache's that are set and have no effect here, with their values as text."""


NOT_UPDATABLE: Final = ("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome")
"""Keys that no admin request may change (``NamesrvConfig.configBlackList``)."""


def keys_without_effect() -> Mapping[str, Option]:
    """Every key of Apache's nameserver that is no option of ours."""
    ours = options_of(NamesrvConfig)
    return {key: found for key, found in apache_keys(NAMESERVER).items() if key not in ours}


def load_namesrv_config(path: str | Path | None, **overrides: Any) -> tuple[NamesrvConfig, list[str]]:
    """Read a ``namesrv.conf``; ``overrides`` are attributes given on the command line.

    Returns the configuration and the warnings for unknown keys and for those without effect.

    :raises ConfigError: when the file cannot be read, or with file, line, value and allowed range.
    """
    return load_file(NamesrvConfig, path, overrides=overrides, without_effect=keys_without_effect())
