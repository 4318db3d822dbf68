"""``--access``: credentials and TLS of a job, as options of the source, for what the environment does not say.

Everybody on a machine sees the arguments of a process, so a secret is named by its file or variable and never given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import click

_PLACES: Final = {
    "secretKey": "secretKeyFile=FILE or secretKeyEnv=VARIABLE",
    "securityToken": "credentialsFile=FILE, a file like tools.yml",
    "tlsKeyPassword": "tlsKeyPasswordFile=FILE",
}
"""Options whose values are secrets, and what a command takes instead."""


def access_option(name: str = "--access", what: str = "Credentials and TLS") -> Callable[[Any], Any]:
    """An option of a job that talks to brokers; its argument is a mapping, empty where it is not given."""
    return click.option(
        name,
        multiple=True,
        metavar="NAME=VALUE",
        callback=_access,
        help=f"{what}, by an option of the source: accessKey, secretKeyFile, useTLS …; may be given several times.",
    )


def settings_of(option: str, settings: Iterable[str]) -> dict[str, str]:
    """What ``NAME=VALUE`` several times says.

    :raises click.UsageError: one has another form, or gives a secret; the message does not show it.
    """
    options: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise click.UsageError(f"{option} {setting}: the form is NAME=VALUE")
        for secret, place in _PLACES.items():
            if name.lower() == secret.lower():
                raise click.UsageError(
                    f"{option} {secret}: everybody on this machine would see it in the list of processes; give {place}"
                )
        options[name] = value
    return options


def _access(_: click.Context, parameter: click.Parameter, settings: tuple[str, ...]) -> dict[str, str]:
    from cometmq.spark.errors import OptionError
    from cometmq.spark.reach import access_options

    try:
        return access_options(settings_of(parameter.opts[0], settings))
    except OptionError as error:
        raise click.BadParameter(str(error)) from error
