"""NamesrvConfig: the keys of Apache's ``namesrv.conf`` that have an effect, and changes at run time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cometmq.apache_keys import NAMESERVER, apache_keys
from cometmq.errors import CometMQError
from cometmq.limits import MAX_CONFIG_UPDATE_BYTES, MAX_CONNECTIONS
from cometmq.log_level import LOG_LEVEL_DOC, LOG_LEVELS, LogLevel
from cometmq.options import (
    ConfigError,
    Option,
    changed,
    format_properties,
    option,
    options_of,
)
from cometmq.properties_file import parse_properties, update_file
from cometmq.remoting.tls_options import TlsOptions, load_with_tls


@dataclasses.dataclass(frozen=True, slots=True)
class NamesrvConfig(TlsOptions):
    """The options of one nameserver process (``NamesrvConfig`` and ``NettyServerConfig``)."""

    listen_port: int = option(9876, "Port for brokers, clients and tools; 0 takes a free one.", maximum=65_535)
    bind_address: str = option("0.0.0.0", "Address to listen on; empty: every one, IPv4 and IPv6.")
    kv_config_path: str = option(
        str(Path.home() / "namesrv" / "kvConfig.json"), "File of the KV configuration (codes 100 to 102)."
    )
    config_store_path: str = option("", "File that changes at run time (code 318) are written to.")
    acl_enable: bool = option(
        False, "Ask every request for the signature of an account in plain_acl.yml, and for its permissions."
    )
    acl_path: str = option(
        "", "Directory of plain_acl.yml and acl/. Empty: $ROCKETMQ_HOME/conf, else that of the configuration file."
    )
    authentication_enabled: bool = option(
        False, "ACL 2.0: ask every request for the signature of a user; excludes aclEnable."
    )
    authorization_enabled: bool = option(
        False, "ACL 2.0: ask the policies of users, too. Without it every user may do everything."
    )
    authentication_whitelist: str = option("", "ACL 2.0: request codes that need no user, joined by commas.")
    authorization_whitelist: str = option(
        "", "ACL 2.0: request codes for which policies are not asked, joined by commas."
    )
    init_authentication_user: str = option(
        "", 'ACL 2.0: super user made at the start: {"username":"…","password":"…"}.', secret=True
    )
    inner_client_authentication_credentials: str = option(
        "",
        'Account with which this server signs its requests to other servers: {"accessKey":"…","secretKey":"…"}; with '
        "ACL 2.0 it is made as a super user.",
        secret=True,
    )
    migrate_auth_from_v1_enabled: bool = option(
        False, "ACL 2.0: make users and policies of plain_acl.yml at the start, where they do not exist."
    )
    auth_config_path: str = option("", "ACL 2.0: file of users and policies. Empty: auth.json beside kvConfigPath.")
    auth_key_path: str = option(
        "",
        "ACL 2.0: file with the key that encrypts passwords in the file of users. Empty: $COMETMQ_AUTH_KEY, else they "
        "are not encrypted.",
    )
    log_level: str = option("", LOG_LEVEL_DOC, choices=LOG_LEVELS, runtime=True)
    order_message_enable: bool = option(
        False, "Put a topic's ORDER_TOPIC_CONFIG into its route as orderTopicConf.", runtime=True
    )
    scan_not_active_broker_interval: int = option(
        10_000, "Milliseconds between two scans for silent brokers.", minimum=100, maximum=3_600_000
    )
    broker_channel_expired_time: int = option(
        120_000,
        "Milliseconds without registration after which a broker is removed from the routes.",
        minimum=1_000,
        maximum=86_400_000,
        runtime=True,
    )
    server_channel_max_idle_time_seconds: int = option(
        120, "Seconds without traffic after which a connection is closed.", minimum=1, maximum=86_400
    )
    server_max_connections: int = option(
        MAX_CONNECTIONS, "Most open connections; fewer if `ulimit -n` allows less.", minimum=1
    )

    unused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Keys of Apache's without effect here, with their values as text."""


NOT_UPDATABLE: Final = ("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome")
"""Keys that no admin request may change (``NamesrvConfig.configBlackList``)."""


def keys_without_effect() -> Mapping[str, Option]:
    """Return the keys of Apache's nameserver that have no effect here."""
    ours = options_of(NamesrvConfig)
    return {key: found for key, found in apache_keys(NAMESERVER).items() if key not in ours}


def load_namesrv_config(path: str | Path | None, **overrides: Any) -> tuple[NamesrvConfig, list[str]]:
    """Read a ``namesrv.conf``; ``overrides`` are attributes given on the command line.

    Returns the configuration, and warnings for unknown keys and keys without effect.

    :raises ConfigError: the file cannot be read, or a value is not allowed.
    """
    return load_with_tls(NamesrvConfig, path, overrides=overrides, without_effect=keys_without_effect())


class PathChangeError(CometMQError):
    """A request wants to change a path; the answer is NO_PERMISSION in Apache's words."""


class Settings:
    """The configuration in force; a change is checked as a whole, then written, then in force."""

    def __init__(self, config: NamesrvConfig) -> None:
        self.config = config
        self._log_level = LogLevel()
        self._log_level.set(config.log_level)
        self._without_effect = keys_without_effect()

    def text(self) -> str:
        """Return every option as properties text."""
        return format_properties(self.config, self._without_effect)

    def update(self, text: str) -> tuple[str, ...]:
        """Apply properties text; return its keys without effect.

        :raises PathChangeError: a key is on the black list.
        :raises ConfigError: a key or value is not allowed, or the file cannot be written.
        """
        if len(text) <= MAX_CONFIG_UPDATE_BYTES and any(key in NOT_UPDATABLE for _, key, _ in parse_properties(text)):
            raise PathChangeError("Can not update config path")
        change = changed(self.config, text, without_effect=self._without_effect)
        if change.texts and self.config.config_store_path:
            try:
                update_file(Path(self.config.config_store_path), change.texts)
            except OSError as error:
                raise ConfigError(f"the change could not be written: {error}") from error
        self.config = change.config
        self._log_level.set(change.config.log_level)
        return change.without_effect
