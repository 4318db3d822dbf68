"""Configuration keys on the command line: ``-o key=value`` of the server commands, and the list of all keys."""

from __future__ import annotations

from typing import Any

import click

from cometmq.apache_keys import BROKER, NAMESERVER, apache_keys
from cometmq.cli.failures import WrongUseError
from cometmq.options import ConfigError, format_value, nearest, options_of, spellings_of

set_option = click.option(
    "-o", "--option", "settings", multiple=True, metavar="KEY=VALUE", help="Set a key of the configuration; repeatable."
)
"""The ``-o`` of the server commands."""


def parse_overrides(config_type: type, settings: tuple[str, ...]) -> dict[str, Any]:
    """Turn ``key=value`` texts into attribute values of a configuration dataclass.

    :raises WrongUseError: when a key is unknown or a value is outside its range.
    """
    known = spellings_of(config_type)
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise WrongUseError(f"-o {setting}: write it as key=value")
        found = known.get(key.strip())
        if found is None and key.strip() in apache_keys(BROKER + NAMESERVER):
            raise WrongUseError(f"-o {setting}: that key of Apache's has no effect here; leave it out")
        if found is None:
            near = nearest(key, known)
            hint = f"did you mean {near}?" if near else "--help-config lists all keys"
            raise WrongUseError(f"-o {setting}: there is no key {key} ({hint})")
        try:
            values[found.name] = found.parse(text)
        except ConfigError as error:
            raise WrongUseError(f"-o {error.message}") from None
    return values


def show_config_keys(config_type: type) -> None:
    """Print every key with meaning, unit, allowed values and default, in the form of a configuration file."""
    for found in options_of(config_type).values():
        live = " May change while the process runs." if found.runtime else ""
        click.echo(f"# {found.doc}")
        click.echo(f"# Allowed: {found.range_text}.{live}")
        click.echo(f"{found.key}={'' if found.secret else format_value(found.default)}\n")
