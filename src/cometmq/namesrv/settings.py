"""The nameserver's configuration as tools read and change it while it runs (codes 318 and 319)."""

from __future__ import annotations

from pathlib import Path

from cometmq.errors import CometMQError
from cometmq.limits import MAX_CONFIG_UPDATE_BYTES
from cometmq.namesrv.config import NOT_UPDATABLE, NamesrvConfig, keys_without_effect
from cometmq.options import ConfigError, changed, format_properties
from cometmq.properties_file import parse_properties, update_file


class PathChangeError(CometMQError):
    """A request wanted to change a path; answered with NO_PERMISSION in Apache's words."""


class Settings:
    """Holds the configuration in force; a change is checked whole, then written back, then in force."""

    def __init__(self, config: NamesrvConfig) -> None:
        self.config = config
        self._without_effect = keys_without_effect()

    def text(self) -> str:
        """Every option as properties text."""
        return format_properties(self.config, self._without_effect)

    def update(self, text: str) -> tuple[str, ...]:
        """Apply properties text; return the keys among them that have no effect here.

        :raises PathChangeError: a key of the black list is among them.
        :raises ConfigError: a key or value cannot be taken, or the file cannot be written.
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
        return change.without_effect
