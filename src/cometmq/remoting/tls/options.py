"""The ``tls.*`` keys for nameservers and brokers (``TlsSystemConfig``), and the file ``tls.properties``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from cometmq.errors import reason_of
from cometmq.options import ConfigError, Option, load_file, load_options, option, options_of
from cometmq.options.forms import PATH, one_of
from cometmq.properties_file import read_properties
from cometmq.remoting.tls.contexts import Tls

log = logging.getLogger(__name__)

DISABLED: Final = "disabled"
PERMISSIVE: Final = "permissive"
ENFORCING: Final = "enforcing"
NO_CERTIFICATE: Final = "none"
OPTIONAL: Final = "optional"
REQUIRE: Final = "require"

TLS_FILE: Final = "/etc/rocketmq/tls.properties"
"""The file that servers read if it exists, as Apache's servers do."""


@dataclass(frozen=True)
class TlsOptions:
    """A server's TLS options, for its clients and for outgoing connections. Files are in PEM format.

    This is a base class of the configurations. It has no slots, since their other base class has slots.
    """

    tls_server_mode: str = option(
        PERMISSIVE,
        "disabled: only plain text; permissive: TLS and plain text on the same port; enforcing: only TLS.",
        key="tls.server.mode",
        form=one_of(DISABLED, PERMISSIVE, ENFORCING),
    )
    tls_server_cert_path: str = option(
        "", "File with the server's certificate and its issuers' certificates.", key="tls.server.certPath", form=PATH
    )
    tls_server_key_path: str = option(
        "",
        "File with the certificate's private key. Empty: the certificate's file.",
        key="tls.server.keyPath",
        form=PATH,
    )
    tls_server_key_password: str = option("", "Password of the private key.", key="tls.server.keyPassword", secret=True)
    tls_server_need_client_auth: str = option(
        NO_CERTIFICATE,
        "Client certificates: not requested (none), optional or required (require).",
        key="tls.server.need.client.auth",
        form=one_of(NO_CERTIFICATE, OPTIONAL, REQUIRE),
    )
    tls_server_auth_client: bool = option(
        False,
        "Verify client certificates. Requires tls.server.need.client.auth to be set.",
        key="tls.server.authClient",
    )
    tls_server_trust_cert_path: str = option(
        "",
        "File with the certificate authorities that clients' certificates must come from.",
        key="tls.server.trustCertPath",
        form=PATH,
    )
    tls_test_mode_enable: bool = option(
        True, "Create a certificate at startup if there is none. Clients cannot verify it.", key="tls.test.mode.enable"
    )
    tls_enable: bool = option(
        False, "Use TLS for connections to nameservers and, on a slave, to the master.", key="tls.enable"
    )
    tls_client_cert_path: str = option(
        "",
        "File with the client certificate, which is sent to servers that request one.",
        key="tls.client.certPath",
        form=PATH,
    )
    tls_client_key_path: str = option(
        "",
        "File with the client certificate's private key. Empty: the certificate's file.",
        key="tls.client.keyPath",
        form=PATH,
    )
    tls_client_key_password: str = option("", "Password of the private key.", key="tls.client.keyPassword", secret=True)
    tls_client_auth_server: bool = option(
        True, "Refuse servers whose certificate is not from a trusted authority.", key="tls.client.authServer"
    )
    tls_client_trust_cert_path: str = option(
        "",
        "File with the trusted authorities. Empty: the system's authorities.",
        key="tls.client.trustCertPath",
        form=PATH,
    )
    tls_client_check_host: bool = option(
        True, "Refuse servers whose certificate was not issued for their host name.", key="tls.client.checkHost"
    )
    tls_config_file: str = option(
        TLS_FILE,
        "File with further tls keys, which is read if it exists. Keys that are set here take precedence.",
        key="tls.config.file",
        form=PATH,
    )

    @property
    def outgoing_tls(self) -> Tls | None:
        """Return the TLS options for connections that the server opens."""
        if not self.tls_enable:
            return None
        return Tls(
            trust_cert_path=self.tls_client_trust_cert_path or None,
            cert_path=self.tls_client_cert_path or None,
            key_path=self.tls_client_key_path or None,
            key_password=self.tls_client_key_password or None,
            auth_server=self.tls_client_auth_server,
            check_host=self.tls_client_check_host,
        )


def read_tls_file(path: str) -> tuple[dict[str, Any], list[str]]:
    """Return the values in a ``tls.properties`` file by attribute, and warnings about unknown keys.

    The default file may be missing; any other file must exist.

    :raises ConfigError: the file cannot be read, or a value is not allowed.
    """
    try:
        text = read_properties(Path(path))
    except FileNotFoundError as error:
        if path in ("", TLS_FILE):
            return {}, []
        raise ConfigError(f"tls.config.file={path}: {reason_of(error)}", next_step="check the path") from None
    except OSError as error:
        raise ConfigError(
            f"tls.config.file={path}: {reason_of(error)}", next_step="check the path and its permissions"
        ) from None
    loaded, warnings = load_options(TlsOptions, text, source=path)
    known = options_of(TlsOptions).values()
    return {key.name: value for key in known if (value := getattr(loaded, key.name)) != key.default}, warnings


def with_tls_file(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration's values by attribute; unset TLS options are read from its TLS file.

    :raises ConfigError: the file cannot be read, or a value in it is not allowed.
    """
    found, warnings = read_tls_file(values.get("tls_config_file", TLS_FILE))
    for line in warnings:
        log.warning("%s", line)
    return found | dict(values)


Config = TypeVar("Config", bound=TlsOptions)


def load_with_tls(
    config_type: type[Config],
    path: str | Path | None,
    *,
    overrides: Mapping[str, Any],
    apache: Mapping[str, Option],
) -> tuple[Config, list[str]]:
    """Load a configuration like :func:`~cometmq.options.load_file`; unset TLS options are read from its TLS file.

    :raises ConfigError: a file cannot be read, or a value is not allowed.
    """
    loaded, warnings = load_file(config_type, path, overrides=overrides, apache=apache)
    values, more = read_tls_file(loaded.tls_config_file)
    if values:
        loaded, _ = load_file(config_type, path, overrides=overrides, apache=apache, defaults=values)
    return loaded, [*warnings, *more]
