"""Contexts: named connections to clusters. They are stored in one file per user, which contains no secrets."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cometmq.durable import locked, replace_file
from cometmq.errors import CometMQError, reason_of
from cometmq.options import nearest
from cometmq.remoting.security import (
    ACCESS_KEY_VARIABLE,
    AUTH_SERVER_VARIABLE,
    CERT_VARIABLE,
    CHECK_HOST_VARIABLE,
    CREDENTIALS_FILE_VARIABLE,
    KEY_PASSWORD_VARIABLE,
    KEY_VARIABLE,
    SECRET_KEY_VARIABLE,
    SECURITY_TOKEN_VARIABLE,
    TLS_VARIABLE,
    TRUST_CERT_VARIABLE,
    VARIABLES,
)

CONTEXT_VARIABLE: Final = "COMETMQ_CONTEXT"
"""Environment variable that contains the name of a context."""
NAMESRV_VARIABLE: Final = "NAMESRV_ADDR"
"""Environment variable that contains the nameserver's address. Apache's clients read the same variable."""
NO_CONTEXT: Final = "none"
"""Name that stands for no context."""
MAX_CONTEXTS: Final = 1_000
MAX_FILE_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CREDENTIALS: Final = (
    CREDENTIALS_FILE_VARIABLE,
    ACCESS_KEY_VARIABLE,
    SECRET_KEY_VARIABLE,
    SECURITY_TOKEN_VARIABLE,
)
_TLS: Final = tuple(name for name in VARIABLES if name not in _CREDENTIALS)


class ContextError(CometMQError):
    """A context does not exist, cannot be used, or cannot be stored."""


class Connection(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A named connection to a cluster, and the output format for its commands. All paths are absolute."""

    nameservers: str
    description: str = ""
    output: str = ""
    """Output format, or empty for a table."""
    credentials_file: str = ""
    """Path of a credentials file, with the format of ``tools.yml``."""
    access_key_env: str = ""
    """Environment variables that contain the access key and the secret key."""
    secret_key_env: str = ""
    security_token_env: str = ""
    tls: bool = False
    tls_trust_cert: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_key_password_env: str = ""
    tls_auth_server: bool = True
    tls_check_host: bool = True

    def credentials(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables from which clients read these credentials.

        :raises ContextError: a variable for a secret is not set.
        """
        found = {
            CREDENTIALS_FILE_VARIABLE: self.credentials_file,
            ACCESS_KEY_VARIABLE: _secret(environment, self.access_key_env),
            SECRET_KEY_VARIABLE: _secret(environment, self.secret_key_env),
            SECURITY_TOKEN_VARIABLE: _secret(environment, self.security_token_env),
        }
        return {name: value for name, value in found.items() if value}

    def tls_settings(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables from which clients read these TLS settings. If TLS is off, there are none.

        :raises ContextError: a variable for a secret is not set.
        """
        if not self.tls:
            return {}
        found = {
            TLS_VARIABLE: "true",
            TRUST_CERT_VARIABLE: self.tls_trust_cert,
            CERT_VARIABLE: self.tls_cert,
            KEY_VARIABLE: self.tls_key,
            KEY_PASSWORD_VARIABLE: _secret(environment, self.tls_key_password_env),
            AUTH_SERVER_VARIABLE: str(self.tls_auth_server).lower(),
            CHECK_HOST_VARIABLE: str(self.tls_check_host).lower(),
        }
        return {name: value for name, value in found.items() if value}


class Contexts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All contexts of a user, and the current context."""

    current: str = ""
    contexts: dict[str, Connection] = {}

    def named(self, name: str) -> Connection:
        """Return the context with the given name.

        :raises ContextError: no context has this name.
        """
        try:
            return self.contexts[name]
        except KeyError:
            near = nearest(name, self.contexts)
            known = ", ".join(sorted(self.contexts)[:10])
            step = f"did you mean {near}?" if near else f"known: {known}" if known else "cometmq context create"
            raise ContextError(f"context {name} does not exist", next_step=step) from None

    def with_context(self, name: str, connection: Connection, *, replace: bool) -> Contexts:
        """Return a copy with a new context added.

        :param replace: the new context may replace a context with the same name.
        :raises ContextError: the name is invalid or already used, or there are too many contexts.
        """
        if not _NAME.fullmatch(name) or name == NO_CONTEXT:
            raise ContextError(
                f"{name!r} is not a valid context name",
                next_step=f"use at most 64 letters, digits, dots, dashes and underscores; {NO_CONTEXT} is reserved",
            )
        if name in self.contexts and not replace:
            raise ContextError(f"context {name} already exists", next_step="add --replace to replace it")
        if len(self.contexts) >= MAX_CONTEXTS and name not in self.contexts:
            raise ContextError(f"there are already {MAX_CONTEXTS} contexts", next_step="delete one")
        return msgspec.structs.replace(self, contexts=dict(sorted({**self.contexts, name: connection}.items())))

    def without(self, name: str) -> Contexts:
        """Return a copy without the given context. If it was the current context, the copy has no current context.

        :raises ContextError: no context has this name.
        """
        self.named(name)
        left = {other: found for other, found in self.contexts.items() if other != name}
        return Contexts("" if self.current == name else self.current, left)


def contexts_file() -> Path:
    """Return the path of the contexts file in the user's configuration directory."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "cometmq" / "contexts.json"


def read_contexts() -> Contexts:
    """Read the contexts from the file. If the file does not exist, there are no contexts.

    :raises ContextError: the file cannot be read, or other users may write to it.
    """
    path = contexts_file()
    try:
        with path.open("rb") as file:
            writers = os.fstat(file.fileno()).st_mode & 0o022 if sys.platform != "win32" else 0
            text = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise ContextError(f"{path}: {reason_of(error)}", next_step="check its permissions") from None
    if writers:
        raise ContextError(
            f"other users may write {path} and redirect commands to other servers", next_step=f"chmod 600 {path}"
        )
    if len(text) > MAX_FILE_BYTES:
        raise ContextError(f"{path} has more than {MAX_FILE_BYTES:,} bytes", next_step="move it away")
    try:
        return msgspec.json.decode(text, type=Contexts)
    except msgspec.MsgspecError as error:
        raise ContextError(f"{path}: {error}", next_step="correct it, or move it away") from None


def context_names() -> list[str]:
    """Return the names of all contexts, or no names if the contexts cannot be read."""
    try:
        return sorted(read_contexts().contexts)
    except ContextError:
        return []


def change_contexts(change: Callable[[Contexts], Contexts]) -> Contexts:
    """Read the contexts, apply ``change``, store the result and return it. Changes by other processes wait until the
    result is stored.

    :raises ContextError: the file cannot be read or written.
    """
    path = contexts_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(path.with_name(f".{path.name}.lock")):
            changed = change(read_contexts())
            replace_file(path, msgspec.json.format(msgspec.json.encode(changed), indent=2) + b"\n", private=True)
            return changed
    except OSError as error:
        raise ContextError(f"{path}: {reason_of(error)}", next_step="check its permissions") from None


def chosen_name(option: str | None, contexts: Contexts) -> str | None:
    """Return the name of the context from the option, from the environment or from the contexts file, in this order."""
    name = option or os.environ.get(CONTEXT_VARIABLE) or contexts.current
    return None if not name or name == NO_CONTEXT else name


def use_context(option: str | None) -> Connection | None:
    """Choose a context, and let this process and the processes that it starts connect with it. Return the context.

    Nameservers, credentials and TLS are each read from one source: from the context if the option names one, otherwise
    from the environment if it sets any of the variables, otherwise from the current context. ``tools.yml`` has the
    lowest precedence.

    :param option: value of the command's ``--context``.
    :raises ContextError: the context does not exist, or one of its secrets is missing.
    """
    contexts = read_contexts()
    name = chosen_name(option, contexts)
    if name is None:
        return None
    connection = contexts.named(name)
    parts: tuple[tuple[Sequence[str], Callable[[Mapping[str, str]], dict[str, str]]], ...] = (
        ((NAMESRV_VARIABLE,), lambda _: {NAMESRV_VARIABLE: connection.nameservers}),
        (_CREDENTIALS, connection.credentials),
        (_TLS, connection.tls_settings),
    )
    for variables, settings in parts:
        given = {variable: os.environ[variable] for variable in variables if os.environ.get(variable)}
        if given and not option and given != {CREDENTIALS_FILE_VARIABLE: str(tools_file())}:
            continue
        try:
            wanted = settings(os.environ)
        except ContextError as error:
            raise ContextError(f"context {name}: {error.message}", next_step=error.next_step) from None
        if wanted:
            for variable in given:
                del os.environ[variable]
            os.environ.update(wanted)
    return connection


def tools_file() -> Path | None:
    """Return the path of the file with mqadmin's credentials, ``$ROCKETMQ_HOME/conf/tools.yml``, or None if it does not
    exist.
    """
    home = os.environ.get("ROCKETMQ_HOME")
    path = Path(home, "conf", "tools.yml") if home else None
    return path if path is not None and path.is_file() else None


def _secret(environment: Mapping[str, str], variable: str) -> str:
    if not variable:
        return ""
    value = environment.get(variable)
    if not value:
        raise ContextError(f"${variable} is not set", next_step="set it, since the context reads a secret from it")
    return value
