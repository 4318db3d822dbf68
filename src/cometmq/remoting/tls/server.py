"""A server's TLS: handshakes, and the certificate, which is reloaded when its files change (``TlsHelper``).

The cryptography of a handshake takes up to a millisecond, which is as long as a hundred requests. So one thread does it
for all connections: the event loop keeps running, and a flood of handshakes uses at most one core. Handshakes in
progress go before new ones, so that a flood delays handshakes but does not make all of them time out.
"""

from __future__ import annotations

import datetime
import logging
import ssl
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Final, Protocol

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.limits import MAX_HANDSHAKES
from cometmq.quantity import quantity
from cometmq.remoting.tls.contexts import FreshContext, TlsError, load_authorities, load_certificate
from cometmq.remoting.tls.expiry import SECONDS_OF_A_DAY, WARNING_DAYS, days_left, first_ends_at
from cometmq.remoting.tls.options import (
    DISABLED,
    ENFORCING,
    NO_CERTIFICATE,
    REQUIRE,
    TlsOptions,
)
from cometmq.remoting.tls.own_authority import self_signed

log = logging.getLogger(__name__)

_IDLE_SECONDS: Final = 1.0
"""Idle time after which the thread ends."""


class Abortable(Protocol):
    """A connection that can be aborted if there are too many handshakes."""

    def abort(self) -> None:
        """Abort the connection."""


class HandshakeThread:
    """A thread that runs one task at a time and exists only while there are tasks."""

    left: ClassVar[int] = 0
    """The number of unfinished tasks in all handshake threads."""
    _counting: ClassVar = threading.Lock()

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begun: deque[Callable[[], None]] = deque()
        self._new: deque[Callable[[], None]] = deque()
        self._is_running = False

    def submit(self, work: Callable[[], None], *, is_new: bool) -> None:
        """Queue ``work``, which must not raise. Handshakes in progress take precedence over new ones."""
        self._count(1)
        with self._changed:
            (self._new if is_new else self._begun).append(work)
            if self._is_running:
                self._changed.notify()
                return
            self._is_running = True
        threading.Thread(target=self._run, name="tls-handshakes", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._begun and not self._new and not self._changed.wait(_IDLE_SECONDS):
                    self._is_running = False
                    return
                waiting = self._begun or self._new
                work = waiting.popleft()
            try:
                work()
            finally:
                self._count(-1)

    @classmethod
    def _count(cls, pieces: int) -> None:
        with cls._counting:
            cls.left += pieces


class ServerTls:
    """The TLS policy for the servers in one process.

    :param protocols: the protocols offered inside TLS to clients that negotiate one (ALPN).
    :raises TlsError: a file cannot be used, or clients need a certificate that is not checked.
    """

    def __init__(self, options: TlsOptions, *, clock: Clock = SYSTEM_CLOCK, protocols: Sequence[str] = ()) -> None:
        self._options = options
        self._protocols = protocols
        self._clock = clock
        self.accepts_tls: Final = options.tls_server_mode != DISABLED
        self.accepts_plain_text: Final = options.tls_server_mode != ENFORCING
        self.thread: Final = HandshakeThread()
        self._fresh = FreshContext(
            self._build,
            (options.tls_server_cert_path, options.tls_server_key_path, options.tls_server_trust_cert_path),
        )
        self._handshakes: dict[Abortable, None] = {}
        """The handshakes in progress, in the order in which they started."""
        self._last_failure = ""
        self._ends: datetime.datetime | None = None
        self._warn_next_s = 0.0
        if self.accepts_tls and (options.tls_server_cert_path or not self.accepts_plain_text):
            self.context()

    def context(self) -> ssl.SSLContext:
        """Return the context for a new handshake, built from the current files; called in the handshake thread.

        :raises TlsError: there is no certificate.
        """
        context = self._fresh.current()
        self._warn_of_the_end()
        return context

    def _warn_of_the_end(self) -> None:
        """Log once a day if the certificate expires soon or has expired."""
        now_s = self._clock.now_ms() / 1000
        if self._ends is None or now_s < self._warn_next_s:
            return
        self._warn_next_s = now_s + SECONDS_OF_A_DAY
        left = days_left(self._ends, now_s)
        if left >= WARNING_DAYS:
            return
        when = (
            f"expires in {quantity(left, 'day')}"
            if left >= 0
            else "has expired, and clients that verify it cannot connect"
        )
        log.warning("the certificate %s %s: replace the files", self._options.tls_server_cert_path, when)

    # --- called by transports, on the event loop --------------------------------------------------
    def began(self, handshake: Abortable) -> None:
        """Count a handshake. If there are too many handshakes, abort the oldest one to free memory."""
        self._handshakes[handshake] = None
        if len(self._handshakes) > MAX_HANDSHAKES:
            next(iter(self._handshakes)).abort()

    def ended(self, handshake: Abortable) -> None:
        """Stop counting a handshake that has ended."""
        self._handshakes.pop(handshake, None)

    def failed(self, peer: str, error: Exception) -> None:
        """Log why a handshake failed. A fault on this side is logged as an error, but not repeatedly."""
        if not isinstance(error, TlsError):
            log.info("the TLS handshake with %s failed: %s", peer, error)
        elif str(error) != self._last_failure:
            self._last_failure = str(error)
            log.error("the TLS handshakes with %s and other clients failed: %s", peer, error)

    # --- contexts ---------------------------------------------------------------------------------
    def _build(self) -> ssl.SSLContext:
        options = self._options
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        if options.tls_server_cert_path:
            load_certificate(
                context,
                options.tls_server_cert_path,
                options.tls_server_key_path or None,
                options.tls_server_key_password,
            )
            self._ends = first_ends_at(Path(options.tls_server_cert_path).read_text("ascii", "replace"))
            self._warn_next_s = 0.0
        elif options.tls_test_mode_enable:
            _load_self_signed(context)
        else:
            raise TlsError("TLS requires a certificate", next_step="set tls.server.certPath and tls.server.keyPath")
        if self._protocols:
            context.set_alpn_protocols(self._protocols)
        self._ask_clients(context)
        return context

    def _ask_clients(self, context: ssl.SSLContext) -> None:
        options = self._options
        if options.tls_server_need_client_auth == NO_CERTIFICATE:
            if options.tls_server_auth_client:
                log.warning("no certificates are requested from clients: tls.server.need.client.auth=none")
            return
        if not options.tls_server_auth_client:
            if options.tls_server_need_client_auth == REQUIRE:
                raise TlsError(
                    "tls.server.need.client.auth=require has no effect while any certificate is accepted",
                    next_step="set tls.server.authClient=true and tls.server.trustCertPath",
                )
            return  # no client certificate is requested that nobody checks
        is_required = options.tls_server_need_client_auth == REQUIRE
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
        if options.tls_server_trust_cert_path:
            load_authorities(context, options.tls_server_trust_cert_path)
        else:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)


def _load_self_signed(context: ssl.SSLContext) -> None:
    """Load a new self-signed certificate for trying out TLS (``tls.test.mode.enable``)."""
    log.warning("TLS uses a new self-signed certificate, which clients cannot verify: set tls.server.certPath")
    pair = self_signed()
    with tempfile.TemporaryDirectory() as directory:  # readable by this user only; ssl loads from files
        file = Path(directory, "pair.pem")
        file.write_bytes(pair)
        load_certificate(context, str(file), None, None)
