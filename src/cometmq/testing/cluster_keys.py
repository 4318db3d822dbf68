"""The configuration of the servers in a test cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

from cometmq.broker.config import BrokerConfig
from cometmq.options import ConfigError, parse_value, spellings_of

T = TypeVar("T")

HOST: Final = "127.0.0.1"

LINK_HOST: Final = "127.0.0.2"
"""The loopback address of a broker behind a link; the port is the same as on :data:`HOST`."""

SMALL_STORE: Final = {
    "mappedFileSizeCommitLog": "16777216",
    "mappedFileSizeConsumeQueue": "600000",
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
    "cleanFileForciblyEnable": "false",
    "diskMaxUsedSpaceRatio": "95",
    "diskSpaceWarningLevelRatio": "100",
}
"""Broker keys for small store files, independent of the free disk space; ``broker_keys`` overrides them.

Messages are rejected only if a write fails because the disk is full.
"""


def keys_of_broker(index: int, port: int, root: Path, namesrv_address: str) -> dict[str, str]:
    """Return the ``broker.conf`` keys that differ between the brokers of a cluster."""
    return {
        "brokerName": f"broker-{index}",
        "brokerIP1": HOST,
        "bindAddress": HOST,
        "listenPort": str(port),
        "namesrvAddr": namesrv_address,
        "storePathRootDir": str(root),
    }


def broker_config(keys: Mapping[str, str]) -> BrokerConfig:
    """Return a broker's configuration.

    :raises ConfigError: a key is unknown, or a value is wrong.
    """
    unknown = sorted(keys.keys() - spellings_of(BrokerConfig).keys())
    if unknown:
        raise ConfigError(f"unknown broker key {', '.join(unknown)}")
    return config_from(BrokerConfig, keys)


def config_from(kind: type[T], keys: Mapping[str, str]) -> T:
    """Return a server's configuration from known keys.

    :raises ConfigError: a value is wrong.
    """
    known = spellings_of(kind)
    return kind(**{known[key].name: parse_value(known[key], text) for key, text in keys.items()})
