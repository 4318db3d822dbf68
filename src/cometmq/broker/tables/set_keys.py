"""The keys that were set at run time at the master of a set: ``config/setKeys.json``.

They are values of the set: they replace those of ``broker.conf`` at all members, also after a restart, until they are
set again. A member copies them from its master, so the next master has them. ``broker.conf`` itself is not changed. A
key that belongs to one machine is not among them, nor is one that cannot change at run time, such as a port or a path.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq.broker.config import BrokerConfig
from cometmq.durable import replace_file
from cometmq.errors import reason_of
from cometmq.limits import MAX_CONFIG_UPDATE_BYTES
from cometmq.options import ConfigError, format_value, options_of, parse_value

_log = logging.getLogger(__name__)

OWN_KEYS: Final = frozenset({"logLevel", "diskMaxUsedSpaceRatio", "accessMessageInMemoryMaxRatio"})
"""The keys that may change at run time, but belong to one machine: its log, disk and memory."""


class SetKeys:
    """The keys of a set, by name, at one of its members.

    If the file is damaged, its ``.bak`` is read. If both are, the member has no keys until it copies its master's.

    :param base: the configuration without them.
    """

    def __init__(self, base: BrokerConfig) -> None:
        self.path: Final = Path(base.store_path_root_dir) / "config" / "setKeys.json"
        self._backup: Final = self.path.with_name(self.path.name + ".bak")
        self._base = base
        self.texts: dict[str, str] = self._read()
        """The values as text."""
        self.version = _digest(self.texts)

    @staticmethod
    def of_set(keys: Iterable[str]) -> frozenset[str]:
        """Return those of some keys that are values of the set."""
        known = options_of(BrokerConfig)
        return frozenset(key for key in keys if key in known and known[key].runtime and key not in OWN_KEYS)

    def exported(self) -> bytes:
        """Return all keys for another member."""
        return msgspec.json.encode(self.texts, order="sorted")

    def decoded(self, data: bytes) -> dict[str, str]:
        """Return the keys that another member has exported.

        A key that this version does not know, or a value that it does not allow, is kept and has no effect.

        :raises ConfigError: the data is too large or malformed, or contains a key that belongs to one machine.
        """
        try:
            if len(data) > MAX_CONFIG_UPDATE_BYTES:
                raise msgspec.ValidationError(f"{len(data)} bytes are more than {MAX_CONFIG_UPDATE_BYTES}")
            texts = msgspec.json.decode(data, type=dict[str, str])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(f"the set's keys cannot be read: {error}") from None
        known = options_of(BrokerConfig)
        own = sorted(key for key in texts if key in OWN_KEYS or (key in known and not known[key].runtime))
        if own:
            raise ConfigError(f"{', '.join(own)} cannot be keys of a set: they belong to one machine")
        return texts

    def into(self, config: BrokerConfig, texts: Mapping[str, str] | None = None) -> BrokerConfig:
        """Return a configuration with the keys of the set.

        :param texts: the keys; those of this object by default. A key that only this object has gets its value of
            ``broker.conf`` again.
        """
        known = options_of(BrokerConfig)
        wanted = self.texts if texts is None else texts
        values: dict[str, Any] = {
            known[key].name: getattr(self._base, known[key].name) for key in self.texts.keys() - wanted if key in known
        }
        for key, text in wanted.items():
            try:
                values[known[key].name] = parse_value(known[key], text)
            except KeyError:
                _log.warning("the set's key %s is not known here, and has no effect", key)
            except ConfigError as error:
                _log.warning("a key of the set has no effect here: %s", error)
        return dataclasses.replace(config, **values)

    def save(self, texts: Mapping[str, str]) -> None:
        """Write keys, which :meth:`use` then takes over. Blocking.

        :raises OSError: the file cannot be written; the old one is unchanged.
        """
        replace_file(self.path, msgspec.json.encode(texts, order="sorted"), backup=self._backup)

    def use(self, texts: Mapping[str, str]) -> None:
        """Take over keys that were saved."""
        self.texts = dict(texts)
        self.version = _digest(self.texts)

    def log(self) -> None:
        """Log the keys whose values in ``broker.conf`` are not used."""
        known = options_of(BrokerConfig)
        for key, text in self.texts.items():
            own = format_value(getattr(self._base, known[key].name)) if key in known else ""
            if own != text:
                _log.warning(
                    "%s=%s of the set is used, not %s of broker.conf; cometmq broker config set changes it at all "
                    "members",
                    *(key, text, own or "that"),
                )

    def _read(self) -> dict[str, str]:
        for path in (self.path, self._backup):
            try:
                with path.open("rb") as file:
                    return self.decoded(file.read(MAX_CONFIG_UPDATE_BYTES + 1))
            except FileNotFoundError:
                continue
            except (OSError, ConfigError) as error:
                why = reason_of(error) if isinstance(error, OSError) else error.message
                _log.error(
                    "%s cannot be used: %s; the keys of the set may be older, until a master has them", path, why
                )
        return {}


def _digest(texts: Mapping[str, str]) -> str:
    return hashlib.sha256(msgspec.json.encode(texts, order="sorted")).hexdigest()
