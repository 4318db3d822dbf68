"""NamesrvConfig: the keys in Apache's ``namesrv.conf`` that have an effect, and how they change at run time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cometmq.apache_keys import NAMESERVER, apache_keys
from cometmq.auth.options import SecurityOptions
from cometmq.errors import CometMQError
from cometmq.limits import MAX_CONFIG_UPDATE_BYTES, MAX_CONNECTIONS
from cometmq.log_level import LOG_LEVEL_DOC, LOG_LEVELS, LogLevel
from cometmq.message.listeners import parse_listeners
from cometmq.message.ports import NAMESRV_PORT
from cometmq.metrics.options import MetricsOptions
from cometmq.options import (
    ApacheRules,
    ConfigError,
    changed,
    format_properties,
    option,
)
from cometmq.options.forms import PATH, one_of
from cometmq.properties_file import parse_properties, update_file
from cometmq.remoting.tls.options import load_with_tls


@dataclasses.dataclass(frozen=True, slots=True)
class NamesrvConfig(SecurityOptions, MetricsOptions):
    """The options of a nameserver process (``NamesrvConfig`` and ``NettyServerConfig``)."""

    listen_port: int = option(
        NAMESRV_PORT,
        "Port for brokers, clients and tools. 0 selects a free port.",
        maximum=65_535,
        apache=ApacheRules(outside="refused"),
    )
    bind_address: str = option("0.0.0.0", "Address to listen on. Empty: all IPv4 and IPv6 addresses.")
    listeners: str = option(
        "",
        "Listeners, separated by commas: NAME=PORT for an additional port, or NAME=NETWORK. Clients on this port or "
        "from "
        "this network get routes with the addresses that brokers advertise for NAME.",
    )
    kv_config_path: str = option(
        str(Path.home() / "namesrv" / "kvConfig.json"),
        "File for the KV configuration (request codes 100 to 102).",
        form=PATH,
    )
    log_level: str = option("", LOG_LEVEL_DOC, form=one_of(*LOG_LEVELS), runtime=True)
    order_message_enable: bool = option(
        False, "Add a topic's ORDER_TOPIC_CONFIG to its route as orderTopicConf.", runtime=True
    )
    scan_not_active_broker_interval: int = option(
        10_000, "Interval between scans for silent brokers, in milliseconds.", minimum=100, maximum=3_600_000
    )
    broker_channel_expired_time: int = option(
        120_000,
        "Time without registration after which a broker is removed from the routes, in milliseconds.",
        minimum=1_000,
        maximum=86_400_000,
        runtime=True,
    )
    server_channel_max_idle_time_seconds: int = option(
        120, "Number of seconds without traffic after which a connection is closed.", minimum=1, maximum=86_400
    )
    server_max_connections: int = option(
        MAX_CONNECTIONS,
        "Maximum number of open connections of a port; lower if `ulimit -n` requires it.",
        minimum=1,
    )

    unused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Apache's keys that have no effect in CometMQ, with their values as text."""


NOT_UPDATABLE: Final = ("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome")
"""Keys that no admin request may change (``NamesrvConfig.configBlackList``)."""


def load_namesrv_config(path: str | Path | None, **overrides: Any) -> tuple[NamesrvConfig, list[str]]:
    """Read a ``namesrv.conf`` file; ``overrides`` are attributes from the command line.

    Return the configuration, and warnings about unknown keys and keys that have no effect.

    :raises ConfigError: the file cannot be read, or a value is not allowed.
    """
    config, warnings = load_with_tls(NamesrvConfig, path, overrides=overrides, apache=apache_keys(NAMESERVER))
    try:
        parse_listeners(config.listeners)
    except ValueError as error:
        raise ConfigError(f"listeners={config.listeners}: {error}") from None
    return config, warnings


class PathChangeError(CometMQError):
    """Raised when a request tries to change a path; the response is NO_PERMISSION with Apache's text."""


class Settings:
    """The current configuration. Each change is checked, then written, then applied."""

    def __init__(self, config: NamesrvConfig) -> None:
        self.config = config
        self._log_level = LogLevel()
        self._log_level.set(config.log_level)
        self._apache = apache_keys(NAMESERVER)

    def text(self) -> str:
        """Return every option as properties text."""
        return format_properties(self.config, self._apache)

    def update(self, text: str) -> tuple[str, ...]:
        """Apply properties text; return the keys that have no effect.

        :raises PathChangeError: the key may not be changed.
        :raises ConfigError: a key or value is not allowed, or the file cannot be written.
        """
        if len(text) <= MAX_CONFIG_UPDATE_BYTES and any(key in NOT_UPDATABLE for _, key, _ in parse_properties(text)):
            raise PathChangeError("Can not update config path")
        change = changed(self.config, text, apache=self._apache)
        if change.texts and self.config.config_store_path:
            try:
                update_file(Path(self.config.config_store_path), change.texts)
            except OSError as error:
                raise ConfigError(f"cannot write the change: {error}") from error
        self.config = change.config
        self._log_level.set(change.config.log_level)
        return change.without_effect
