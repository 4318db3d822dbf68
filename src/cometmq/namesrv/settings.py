"""The nameserver's configuration as tools read and change it while it runs (codes 318 and 319)."""

from __future__ import annotations

from pathlib import Path

from cometmq.errors import CometMQError
from cometmq.namesrv.config import APACHE_ONLY_KEYS, NOT_UPDATABLE, NamesrvConfig
from cometmq.options import ConfigError, changed, format_properties
from cometmq.properties_file import parse_properties, update_file


class PathChangeError(CometMQError):
    """A request wanted to change a path; answered with NO_PERMISSION in Apache's words."""


class Settings:
    """Holds the configuration in force; a change is checked whole, then written back, then in force."""

    def __init__(self, config: NamesrvConfig) -> None:
        self.config = config

    def text(self) -> str:
        """Every option as properties text."""
        return format_properties(self.config)

    def update(self, text: str) -> None:
        """Apply properties text.

        :raises PathChangeError: a key of the black list is among them.
        :raises ConfigError: a key or value cannot be taken, or the file cannot be written.
        """
        if any(key in NOT_UPDATABLE for _, key, _ in parse_properties(text)):
            raise PathChangeError("Can not update config path")
        config, updates = changed(self.config, text, accepted=APACHE_ONLY_KEYS)
        if updates and config.config_store_path:
            try:
                update_file(Path(config.config_store_path), updates)
            except OSError as error:
                raise ConfigError(f"the change could not be written: {error}") from error
        self.config = config
