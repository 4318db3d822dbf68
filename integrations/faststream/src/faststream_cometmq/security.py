"""FastStream's security classes as CometMQ's."""

from __future__ import annotations

from faststream.exceptions import SetupError
from faststream.security import BaseSecurity, SASLPlaintext

from cometmq.client import Credentials, Security, Tls


def security_of(security: BaseSecurity | None, tls: Tls | None) -> Security | None:
    """Return the client's security, or ``None`` for that of the environment.

    A user name is an access key, and a password a secret key.

    :raises SetupError: the class has no counterpart in RocketMQ, or has an SSL context.
    """
    if security is None:
        return None if tls is None else Security(tls=tls)
    if type(security) not in (BaseSecurity, SASLPlaintext):
        raise SetupError(f"RocketMQ has no {type(security).__name__}: use SASLPlaintext, or BaseSecurity for TLS alone")
    if security.ssl_context is not None:
        raise SetupError("RocketMQBroker reads certificates anew when they change: pass tls=Tls(…), not an ssl_context")
    if tls is None and security.use_ssl:
        tls = Tls()
    credentials = Credentials(security.username, security.password) if isinstance(security, SASLPlaintext) else None
    return Security(credentials, tls)
