"""TLS for connections to nameservers and brokers, with RocketMQ's option names (``TlsHelper``).

:class:`FreshContext` uses renewed certificates without a restart (``FileWatchService``).

Unlike in RocketMQ, the server's certificate and name are checked by default.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cometmq.errors import CometMQError, reason_of
from cometmq.message.hosts import parse_address

log = logging.getLogger(__name__)


class TlsError(CometMQError):
    """This process's certificate or key cannot be used."""


@dataclass(frozen=True, slots=True)
class Tls:
    """A client's TLS options. All paths refer to PEM files.

    :param trust_cert_path: certificates of the authorities that clients trust (``tls.client.trustCertPath``); by
        default the system's authorities.
    :param cert_path: this client's own certificate, for servers that ask for one (``tls.client.certPath``).
    :param key_path: the key of that certificate (``tls.client.keyPath``); it may be in the certificate's file.
    :param key_password: the password of the key (``tls.client.keyPassword``); ``repr`` does not show it.
    :param auth_server: whether a server needs a trusted certificate (``tls.client.authServer``, off in RocketMQ). If it
        does not, anybody on the network path can read and change everything.
    :param check_host: whether the server's certificate must name the host or IP address of the connection. For a broker
        this is the address that it registered (``brokerIP1``).
    """

    trust_cert_path: str | None = None
    cert_path: str | None = None
    key_path: str | None = None
    key_password: str | None = field(default=None, repr=False)
    auth_server: bool = True
    check_host: bool = True

    def context(self) -> ssl.SSLContext:
        """Return the context for the standard library's TLS.

        :raises TlsError: a file cannot be read, or has the wrong content.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if not self.auth_server:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        else:
            context.check_hostname = self.check_host
        if self.trust_cert_path is not None:
            load_authorities(context, self.trust_cert_path)
        elif self.auth_server:
            context.load_default_certs()
        if self.cert_path is not None:
            load_certificate(context, self.cert_path, self.key_path, self.key_password)
        return context

    def fresh_context(self) -> FreshContext:
        """Return the context for long-lived clients, which reloads changed files.

        :raises TlsError: see :meth:`context`.
        """
        fresh = FreshContext(self.context, (self.trust_cert_path, self.cert_path, self.key_path))
        fresh.current()
        return fresh


def load_authorities(context: ssl.SSLContext, path: str) -> None:
    """Trust the authorities in a file.

    :raises TlsError: the file cannot be used.
    """
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise _unusable(path, error) from error


def load_certificate(context: ssl.SSLContext, cert_path: str, key_path: str | None, password: str | None) -> None:
    """Load this process's certificate and key. Never prompt for a password at the terminal.

    :raises TlsError: a file cannot be used, or the key does not belong to the certificate.
    """
    try:
        context.load_cert_chain(cert_path, key_path, password or "")
    except OSError as error:
        raise _unusable(cert_path if key_path is None else f"{cert_path} with key {key_path}", error) from error


def _unusable(path: str, error: OSError) -> TlsError:
    reason = "it contains no certificate or key in PEM format, or the password is wrong"
    if not isinstance(error, ssl.SSLError):
        reason = reason_of(error)
    elif error.reason == "KEY_VALUES_MISMATCH":
        reason = "the key does not belong to the certificate"
    return TlsError(f"{path}: {reason}", next_step="specify the path of a readable PEM file")


class FreshContext:
    """A TLS context that is rebuilt when one of its files has changed. Open connections keep the old context.

    :param build: builds the context; raises :class:`TlsError` if a file cannot be used.
    :param paths: the files of the context; ``None`` entries are ignored.
    """

    def __init__(self, build: Callable[[], ssl.SSLContext], paths: Iterable[str | None]) -> None:
        self._build = build
        self._paths = tuple(path for path in paths if path)
        self._context: ssl.SSLContext | None = None
        self._stamps: tuple[tuple[int, ...] | None, ...] = ()

    def current(self) -> ssl.SSLContext:
        """Return the context for the current files, or the previous context while the files cannot be used.

        :raises TlsError: the files cannot be used, and there is no previous context.
        """
        stamps = tuple(map(_stamp, self._paths))
        if self._context is not None and stamps == self._stamps:
            return self._context
        try:
            context = self._build()
        except TlsError as error:
            if self._context is None:
                raise
            log.error("the changed TLS files cannot be used, so the previous ones remain in use: %s", error)
            context = self._context
        else:
            if self._context is not None:
                log.warning("now using the changed TLS files: %s", ", ".join(self._paths))
        self._context, self._stamps = context, stamps
        return context


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


_NO_TLS_STEP: Final = (
    "check that the server accepts TLS (tls.server.mode), and set cert_path if it requires a certificate"
)


def connection_error(address: str, error: OSError, *, tls: bool) -> tuple[str, str]:
    """Return the message and the next step for a failed connection, with or without TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {address} was not accepted: {error.verify_message}",
            "set trust_cert_path to the certificate of its authority; check_host=False accepts another host name",
        )
    if isinstance(error, ssl.SSLError):
        return (
            f"the TLS handshake with {address} failed: {(error.reason or str(error)).replace('_', ' ').lower()}",
            _NO_TLS_STEP,
        )
    if tls and isinstance(error, ConnectionResetError | BrokenPipeError):
        return f"{address} closed the connection instead of using TLS: {reason_of(error)}", _NO_TLS_STEP
    if isinstance(error, socket.gaierror):
        host, _ = parse_address(address)
        return f"cannot connect to {address}: {reason_of(error)}", f"check the host name {host} and its DNS"
    return f"cannot connect to {address}: {reason_of(error)}", "check the address and that the server is running"
