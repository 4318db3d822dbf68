"""TLS of connections to nameservers and brokers (``TlsHelper``, ``TlsSystemConfig``), by RocketMQ's names.

Other than in RocketMQ, the server's certificate and name are checked unless that is switched off.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Final

from cometmq.errors import CometMQError, reason_of


class TlsError(CometMQError):
    """A certificate or key of this side cannot be used."""


@dataclass(frozen=True, slots=True)
class Tls:
    """How servers are talked to in TLS. Paths name PEM files.

    :param trust_cert_path: certificates of the authorities that servers are trusted by
        (``tls.client.trustCertPath``); without it those of the system.
    :param cert_path: this client's own certificate, for servers that ask for one (``tls.client.certPath``).
    :param key_path: its key (``tls.client.keyPath``); may stand in the file of the certificate.
    :param key_password: opens the key (``tls.client.keyPassword``); ``repr`` does not show it.
    :param auth_server: whether a server must have a certificate that is trusted (``tls.client.authServer``, which
        RocketMQ has off). Without it anybody who can stand between may read and change everything.
    :param check_host: whether that certificate must be made out to the host or IP address that is connected to;
        brokers are connected to as they registered themselves (``brokerIP1``).
    """

    trust_cert_path: str | None = None
    cert_path: str | None = None
    key_path: str | None = None
    key_password: str | None = field(default=None, repr=False)
    auth_server: bool = True
    check_host: bool = True

    def context(self) -> ssl.SSLContext:
        """What the standard library makes connections with.

        :raises TlsError: a file cannot be read, or is not what it should be.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if not self.auth_server:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        else:
            context.check_hostname = self.check_host
        path = self.trust_cert_path
        try:
            if path is not None:
                context.load_verify_locations(path)
            elif self.auth_server:
                context.load_default_certs()
            if self.cert_path is not None:
                path = self.cert_path if self.key_path is None else f"{self.cert_path} with key {self.key_path}"
                context.load_cert_chain(self.cert_path, self.key_path, self.key_password or "")
        except OSError as error:
            reason = "no certificate or key in PEM form, or a wrong password"
            if not isinstance(error, ssl.SSLError):
                reason = reason_of(error)
            raise TlsError(f"{path}: {reason}", next_step="give the path of a readable PEM file") from error
        return context


_NO_TLS_STEP: Final = "does that server take TLS (tls.server.mode), and does it ask for a certificate (cert_path)?"


def trouble_of(address: str, error: OSError, *, tls: bool) -> tuple[str, str]:
    """What to tell of a connection that could not be opened, with TLS or without, and the next step."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {address} is not accepted: {error.verify_message}",
            "name the authority that it was made by as trust_cert_path; check_host=False accepts another host's name",
        )
    if isinstance(error, ssl.SSLError):
        return (
            f"no TLS with {address}: {(error.reason or str(error)).replace('_', ' ').lower()}",
            _NO_TLS_STEP,
        )
    if tls and isinstance(error, ConnectionResetError | BrokenPipeError):
        return f"{address} ended the connection instead of talking TLS: {reason_of(error)}", _NO_TLS_STEP
    return f"cannot connect to {address}: {reason_of(error)}", "check that the server runs and its address"
