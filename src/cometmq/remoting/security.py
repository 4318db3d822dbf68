"""A client's credentials and TLS options, set in code or through environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cometmq.errors import CometMQError, reason_of
from cometmq.remoting.signing import Credentials
from cometmq.remoting.tls.contexts import Tls

ACCESS_KEY_VARIABLE: Final = "ROCKETMQ_ACCESS_KEY"
SECRET_KEY_VARIABLE: Final = "ROCKETMQ_SECRET_KEY"
SECURITY_TOKEN_VARIABLE: Final = "ROCKETMQ_SECURITY_TOKEN"
CREDENTIALS_FILE_VARIABLE: Final = "ROCKETMQ_CREDENTIALS_FILE"
TLS_VARIABLE: Final = "ROCKETMQ_TLS_ENABLE"
TRUST_CERT_VARIABLE: Final = "ROCKETMQ_TLS_TRUST_CERT_PATH"
CERT_VARIABLE: Final = "ROCKETMQ_TLS_CERT_PATH"
KEY_VARIABLE: Final = "ROCKETMQ_TLS_KEY_PATH"
KEY_PASSWORD_VARIABLE: Final = "ROCKETMQ_TLS_KEY_PASSWORD"
AUTH_SERVER_VARIABLE: Final = "ROCKETMQ_TLS_AUTH_SERVER"
CHECK_HOST_VARIABLE: Final = "ROCKETMQ_TLS_CHECK_HOST"
_TLS_PATHS: Final = {
    "trust_cert_path": TRUST_CERT_VARIABLE,
    "cert_path": CERT_VARIABLE,
    "key_path": KEY_VARIABLE,
    "key_password": KEY_PASSWORD_VARIABLE,
}
VARIABLES: Final = (
    ACCESS_KEY_VARIABLE,
    SECRET_KEY_VARIABLE,
    SECURITY_TOKEN_VARIABLE,
    CREDENTIALS_FILE_VARIABLE,
    TLS_VARIABLE,
    *_TLS_PATHS.values(),
    AUTH_SERVER_VARIABLE,
    CHECK_HOST_VARIABLE,
)
"""The environment variables read by :meth:`Security.from_environment`."""
_FLAGS: Final = {"true": True, "false": False}


class SecurityConfigError(CometMQError):
    """The configuration of credentials or TLS is invalid. The error message never contains a secret."""


@dataclass(frozen=True, slots=True)
class Security:
    """A client's credentials and TLS options; ``Security()`` has neither.

    :param credentials: sign every request, for servers that have an ACL.
    :param tls: the TLS options for every connection to nameservers and brokers.
    """

    credentials: Credentials | None = None
    tls: Tls | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Security:
        """Read the environment variables ``ROCKETMQ_…`` (see ``docs/security.md``).

        :raises SecurityConfigError: the variables contradict each other, or a file cannot be used.
        """
        given = os.environ if environment is None else environment
        return cls(_credentials(given), _tls(given))


PLAIN: Final = Security()
"""Security with neither credentials nor TLS options."""


def read_credentials(path: Path) -> Credentials:
    """Read credentials from a file like RocketMQ's ``tools.yml``; ``securityToken`` is an optional third key.

    :raises SecurityConfigError: the file cannot be read, or a key is missing.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise SecurityConfigError(
            f"the credentials in {path} cannot be read: {reason}", next_step="specify the path of a file like tools.yml"
        ) from error
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon and not line.lstrip().startswith("#"):
            found[name.strip()] = _plain(value)
    if not found.get("accessKey") or not found.get("secretKey"):
        raise SecurityConfigError(
            f"{path} has no accessKey or no secretKey", next_step="add both, each on a line NAME: VALUE"
        )
    return Credentials(found["accessKey"], found["secretKey"], found.get("securityToken") or None)


def _plain(value: str) -> str:
    """Parse a YAML scalar on one line, which is quoted or ends at a comment."""
    value = value.strip()
    if value[:1] in ("'", '"'):
        return value[1:].partition(value[0])[0]
    return value.partition(" #")[0].rstrip()


def _credentials(given: Mapping[str, str]) -> Credentials | None:
    path = given.get(CREDENTIALS_FILE_VARIABLE)
    access_key, secret_key = given.get(ACCESS_KEY_VARIABLE), given.get(SECRET_KEY_VARIABLE)
    if path and (access_key or secret_key):
        raise SecurityConfigError(
            f"${CREDENTIALS_FILE_VARIABLE} cannot be used together with "
            f"${ACCESS_KEY_VARIABLE} or ${SECRET_KEY_VARIABLE}",
            next_step="unset either the file or the keys",
        )
    if path:
        return read_credentials(Path(path))
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        absent = SECRET_KEY_VARIABLE if access_key else ACCESS_KEY_VARIABLE
        raise SecurityConfigError(f"${absent} is missing", next_step="set both keys, or neither")
    return Credentials(access_key, secret_key, given.get(SECURITY_TOKEN_VARIABLE) or None)


def _tls(given: Mapping[str, str]) -> Tls | None:
    if not _flag(given, TLS_VARIABLE, default=False):
        return None
    paths = {name: given.get(variable) or None for name, variable in _TLS_PATHS.items()}
    return Tls(
        **paths,
        auth_server=_flag(given, AUTH_SERVER_VARIABLE, default=True),
        check_host=_flag(given, CHECK_HOST_VARIABLE, default=True),
    )


def _flag(given: Mapping[str, str], variable: str, *, default: bool) -> bool:
    text = given.get(variable, "").strip().lower()
    if not text:
        return default
    if text not in _FLAGS:
        raise SecurityConfigError(
            f"${variable} must be true or false, not {text!r}", next_step="set it to true or false"
        )
    return _FLAGS[text]
