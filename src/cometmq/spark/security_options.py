"""Credential and TLS options for the source, the sink and the jobs.

The options are sent with their reader or writer to the executors. An executor reads files and environment variables
when it opens a connection, so a secret in a file or variable never leaves the machines that store it. A secret given
directly in an option is not shown in any ``repr`` or error, and Spark hides it in plans because of the option's name
(``spark.redaction.regex``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from cometmq.errors import reason_of
from cometmq.options.forms import FLAG, TEXT, Form
from cometmq.remoting.security import Security, read_credentials
from cometmq.remoting.signing import Credentials
from cometmq.remoting.tls.contexts import Tls
from cometmq.spark.errors import OptionError
from cometmq.spark.options import PATH, canonical_options, parse_option

_FORMS: Final[Mapping[str, Form[Any]]] = {
    "accessKey": TEXT,
    "secretKey": TEXT,
    "secretKeyEnv": TEXT,
    "secretKeyFile": PATH,
    "securityToken": TEXT,
    "credentialsFile": PATH,
    "useTLS": FLAG,
    "tlsTrustCertPath": PATH,
    "tlsCertPath": PATH,
    "tlsKeyPath": PATH,
    "tlsKeyPassword": TEXT,
    "tlsKeyPasswordFile": PATH,
    "tlsAuthServer": FLAG,
    "tlsCheckHost": FLAG,
}
ACCESS_OPTION_NAMES: Final = tuple(_FORMS)
_SECRETS: Final = ("secretKey", "secretKeyEnv", "secretKeyFile")
_TLS: Final = ACCESS_OPTION_NAMES[ACCESS_OPTION_NAMES.index("useTLS") + 1 :]


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials and TLS from the options. ``Access()`` reads both from each process's environment."""

    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    secret_key_env: str | None = None
    secret_key_file: str | None = None
    security_token: str | None = field(default=None, repr=False)
    credentials_file: str | None = None
    use_tls: bool | None = None
    tls: Tls | None = None
    tls_key_password_file: str | None = None

    def security(self) -> Security:
        """Return the credentials and TLS for this process's connections.

        :raises OptionError: a file or variable that an option names does not exist here.
        :raises SecurityConfigError: the environment or a credentials file is invalid.
        """
        credentials, tls = self._credentials(), self._tls()
        if credentials is not None and self.use_tls is not None:
            return Security(credentials, tls)
        outside = Security.from_environment()
        return Security(credentials or outside.credentials, outside.tls if self.use_tls is None else tls)

    def _credentials(self) -> Credentials | None:
        if self.credentials_file is not None:
            return read_credentials(Path(self.credentials_file))
        if self.access_key is None:
            return None
        if self.secret_key is not None:
            secret = self.secret_key
        elif self.secret_key_env is not None:
            secret = os.environ.get(self.secret_key_env, "")
            if not secret:
                raise OptionError(
                    f"names a missing environment variable: {self.secret_key_env}",
                    option="secretKeyEnv",
                    next_step=f"set it for executors with spark.executorEnv.{self.secret_key_env}, "
                    "and in the driver's own environment",
                )
        else:
            secret = _content("secretKeyFile", self.secret_key_file or "")
        return Credentials(self.access_key, secret, self.security_token)

    def _tls(self) -> Tls | None:
        if self.tls is None or self.tls_key_password_file is None:
            return self.tls
        return replace(self.tls, key_password=_content("tlsKeyPasswordFile", self.tls_key_password_file))


def _content(option: str, path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise OptionError(
            f"names a file that cannot be read: {path}: {reason}",
            option=option,
            next_step="make the file available at this path on the driver and all executors "
            "(with spark.files or a mounted secret)",
        ) from error
    if not text:
        raise OptionError(f"names an empty file: {path}", option=option)
    return text


def parse_access(values: Mapping[str, str]) -> Access:
    """Parse the options for credentials and TLS. Other options are ignored.

    :raises OptionError: options contradict each other, or an option requires another option that is missing; no message
        shows a secret.
    """
    given: dict[str, Any] = {}
    for name, form in _FORMS.items():
        if name in values:
            if not (text := values[name].strip()):
                raise OptionError("is empty", option=name)
            given[name] = parse_option(name, form, text)
    secrets = [name for name in _SECRETS if name in given]
    if "credentialsFile" in given and ({"accessKey", "securityToken", *secrets} & given.keys()):
        raise OptionError("credentialsFile contains all credentials; leave out accessKey and the secret")
    if len(secrets) > 1:
        raise OptionError(f"options {' and '.join(secrets)} cannot be combined")
    if ("accessKey" in given) != bool(secrets):
        raise OptionError(
            "has no effect alone",
            option=secrets[0] if secrets else "accessKey",
            next_step="set accessKey, and one of secretKeyFile, secretKeyEnv and secretKey",
        )
    if "securityToken" in given and not secrets:
        raise OptionError("has no effect alone", option="securityToken", next_step="set accessKey and its secret too")
    use_tls = given.get("useTLS")
    if not use_tls and (lonely := [name for name in _TLS if name in given]):
        raise OptionError("has no effect without TLS", option=lonely[0], next_step="set useTLS=true too")
    if "tlsKeyPassword" in given and "tlsKeyPasswordFile" in given:
        raise OptionError("options tlsKeyPassword and tlsKeyPasswordFile cannot be combined")
    tls = Tls(
        trust_cert_path=given.get("tlsTrustCertPath"),
        cert_path=given.get("tlsCertPath"),
        key_path=given.get("tlsKeyPath"),
        key_password=given.get("tlsKeyPassword"),
        auth_server=given.get("tlsAuthServer") is not False,
        check_host=given.get("tlsCheckHost") is not False,
    )
    return Access(
        access_key=given.get("accessKey"),
        secret_key=given.get("secretKey"),
        secret_key_env=given.get("secretKeyEnv"),
        secret_key_file=given.get("secretKeyFile"),
        security_token=given.get("securityToken"),
        credentials_file=given.get("credentialsFile"),
        use_tls=use_tls,
        tls=tls if use_tls else None,
        tls_key_password_file=given.get("tlsKeyPasswordFile"),
    )


_FOLDED: Final = {name.lower(): name for name in ACCESS_OPTION_NAMES}


def access_options(given: Mapping[str, str] | None) -> dict[str, str]:
    """Check options for credentials and TLS, and map them to their canonical names. If there are no options, the
    environment is used.

    :raises OptionError: an option is unknown, or options contradict each other; no message shows a secret.
    """
    values = canonical_options("what reaches servers", given or {}, _FOLDED)
    parse_access(values)
    return values


def server_options(namesrv: str, access: Mapping[str, str] | None) -> dict[str, str]:
    """Return the options that the source and the sink need for a cluster: nameservers, credentials and TLS.

    :raises OptionError: see :func:`access_options`.
    """
    return {"namesrvAddr": namesrv, **access_options(access)}


def security_of(access: Mapping[str, str]) -> Security:
    """Return the credentials and TLS that canonical options describe in this process.

    :raises CometMQError: a file or variable that an option names does not exist here.
    """
    return parse_access(access).security()
