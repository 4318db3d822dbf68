"""Configuration of ``cometmq proxy``: the supported keys of Apache's ``rmq-proxy.json``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cometmq.auth.options import SecurityOptions
from cometmq.errors import reason_of
from cometmq.message.hosts import parse_address, split_addresses
from cometmq.message.ports import GRPC_PORT
from cometmq.options import ConfigError, load_options, option
from cometmq.options.forms import one_of
from cometmq.properties_file import format_pairs
from cometmq.proxy.config import EndpointConfig

CLUSTER: Final = "CLUSTER"
_RENAMED: Final = {
    "tlsKeyPath": "tls.server.keyPath",
    "tlsKeyPassword": "tls.server.keyPassword",
    "tlsCertPath": "tls.server.certPath",
    "tlsTestModeEnable": "tls.test.mode.enable",
    "rocketMQClusterName": "rocketmqClusterName",
}
"""Keys that have different names in Apache's proxy."""
_HOUR_MS: Final = 3_600_000


@dataclasses.dataclass(frozen=True, slots=True)
class ProxyConfig(SecurityOptions):
    """The options of a gRPC endpoint for a fleet of brokers."""

    namesrv_addr: str = option("", "The brokers' nameservers: host:port, separated by semicolons.")
    proxy_mode: str = option(
        CLUSTER,
        "CLUSTER: serve the brokers that are registered with the nameservers. For a single broker's endpoint, set its "
        "grpcServerPort instead.",
        form=one_of(CLUSTER, "cluster"),
    )
    rocketmq_cluster_name: str = option("DefaultCluster", "Name of the cluster in account policies.")
    grpc_server_port: int = option(GRPC_PORT, "Port for clients. 0 selects a free port.", minimum=0, maximum=65_535)
    bind_address: str = option("0.0.0.0", "Address to listen on. Empty: all IPv4 and IPv6 addresses.")
    grpc_client_consumer_min_long_polling_timeout_millis: int = option(
        5_000, "Minimum time for which a request waits for messages, in milliseconds.", minimum=1, maximum=_HOUR_MS
    )
    grpc_client_consumer_max_long_polling_timeout_millis: int = option(
        20_000, "Maximum time for which a request waits for messages, in milliseconds.", minimum=1, maximum=_HOUR_MS
    )
    min_invisible_time_mills_for_recv: int = option(
        10_000, "Minimum invisible time that a consumer may request, in milliseconds.", minimum=0, maximum=_HOUR_MS
    )
    max_message_size: int = option(
        4_194_304, "Maximum size of a message body, in bytes.", minimum=1, maximum=16_777_216 - 65_536
    )
    max_delay_time_mills: int = option(86_400_000, "Maximum delay of a message, in milliseconds.", minimum=1)
    enable_topic_message_type_check: bool = option(
        True, "Refuse messages whose type differs from the type of their topic."
    )

    @property
    def endpoint(self) -> EndpointConfig:
        """Return the settings that the endpoint sends to its clients."""
        return EndpointConfig(
            long_polling_min_ms=self.grpc_client_consumer_min_long_polling_timeout_millis,
            long_polling_max_ms=self.grpc_client_consumer_max_long_polling_timeout_millis,
            invisible_min_ms=self.min_invisible_time_mills_for_recv,
            body_max_bytes=self.max_message_size,
            delay_max_ms=self.max_delay_time_mills,
            validates_type=self.enable_topic_message_type_check,
        )


def load_proxy_config(path: Path | None, overrides: Mapping[str, Any]) -> tuple[ProxyConfig, list[str]]:
    """Read an ``rmq-proxy.json`` file; return the configuration and a warning for each unknown key.

    :raises ConfigError: the file cannot be read, or a value is not allowed.
    """
    text = "" if path is None else _properties(path)
    config, warnings = load_options(ProxyConfig, text, source=str(path or "-"), overrides=overrides)
    for address in split_addresses(config.namesrv_addr):
        try:
            parse_address(address)
        except ValueError as error:
            raise ConfigError(f"namesrvAddr={config.namesrv_addr}: {error}") from None
    return config, warnings


def _properties(path: Path) -> str:
    """Convert the file to ``key=value`` lines.

    :raises ConfigError: the file does not contain a JSON object.
    """
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {reason_of(error)}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} does not contain a JSON object", next_step='write it as {"namesrvAddr": "…"}')
    texts = {
        _RENAMED.get(str(key), str(key)): json.dumps(value) if isinstance(value, (bool, dict, list)) else str(value)
        for key, value in settings.items()
    }
    return format_pairs(texts)
