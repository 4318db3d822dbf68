"""The settings of a Kombu connection: its URL and its transport options."""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, Self
from urllib.parse import parse_qsl, unquote

from kombu import Connection

from cometmq.integrations.kombu.names import group_of, quoted
from cometmq.limits import MAX_MESSAGE_BYTES
from cometmq.message.hosts import with_port
from cometmq.message.ports import NAMESRV_PORT
from cometmq.remoting.security import Security
from cometmq.remoting.signing import Credentials
from cometmq.remoting.tls.contexts import Tls

log = logging.getLogger(__name__)

MAX_PREFIX_CHARS: Final = 20
_SECURE: Final = "cometmqs"
_OFF: Final = (ssl.CERT_NONE, "CERT_NONE", "none", "optional", "CERT_OPTIONAL", ssl.CERT_OPTIONAL)
_KOMBUS: Final = frozenset(
    {
        "max_retries",
        "interval_start",
        "interval_step",
        "interval_max",
        "connect_retries_timeout",
        "retry_errors",
        "errback",
        "deadletter_queue",
    }
)
"""The transport options that Kombu itself reads."""
_SIMILAR: Final = 0.8
_PASSWORD: Final = re.compile(r"(//[^:/@]*):.*@")


@dataclass(frozen=True)
class Settings:
    """The settings of a connection; times are in seconds.

    :raises ValueError: an option has no allowed value; the message names it.
    """

    namesrv: str
    security: Security
    topic_prefix: str = ""
    """Stands before the names of all topics and groups, with ``|`` behind it."""
    visibility_timeout: float = 60.0
    """Time after which a message of a dead worker comes again if no broker notices that the worker is gone, at most
    three days. While the worker lives, it renews the time."""
    renew_up_to: float = 7 * 86_400.0
    """Maximum time for which a message is renewed, and thus for which a task runs before it is delivered again."""
    max_deliveries: float = 16
    """Number of deliveries after which a message becomes a dead letter."""
    max_message_bytes: float = MAX_MESSAGE_BYTES
    send_timeout: float = 3.0
    wait_time: float = 20.0
    """Maximum time for which a broker holds a request for messages."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float | int) and not 0 < value < 1e10:
                raise ValueError(f"the transport option {field.name} must be greater than 0, not {value!r}")
        if len(self.topic_prefix) > MAX_PREFIX_CHARS + 1:
            raise ValueError(f"the topic prefix {self.topic_prefix!r} is longer than {MAX_PREFIX_CHARS} characters")

    @property
    def group(self) -> str:
        """The group that consumes all queues."""
        return group_of(self.topic_prefix)

    @classmethod
    def of(cls, client: Connection) -> Self:
        """Return the settings of a connection.

        :raises ValueError: the URL or an option is invalid.
        """
        urls = [url for url in client.alt or [client.hostname or "localhost"] if url]
        parsed = [_Url.of(url) for url in urls]
        first = parsed[0]
        port = f":{client.port}" if client.port and not client.alt else ""
        hosts = [host for url in parsed for host in url.hosts]
        options = {**first.options, **(client.transport_options or {})}
        known = {field.name for field in fields(cls)} - {"namesrv", "security"}
        _check_names(options, known)
        names = known - {"topic_prefix"}
        path = first.path or (client.virtual_host or "").strip("/") if "topic_prefix" not in options else ""
        prefix = quoted(str(options.get("topic_prefix") or path))
        return cls(
            namesrv=";".join(
                with_port(host + (port if ":" not in host else ""), NAMESRV_PORT) for host in dict.fromkeys(hosts)
            ),
            security=_security(client, first),
            topic_prefix=f"{prefix}|" if prefix else "",
            **{name: _number(name, options[name]) for name in names & options.keys()},
        )


@dataclass(frozen=True)
class _Url:
    scheme: str
    user: str
    password: str
    hosts: tuple[str, ...]
    path: str
    options: Mapping[str, str]

    @classmethod
    def of(cls, url: str) -> Self:
        """Parse a URL, which may have several hosts, separated by commas."""
        scheme, _, rest = url.rpartition("://")
        rest, _, query = rest.partition("?")
        place, _, path = rest.partition("/")
        account, _, hosts = place.rpartition("@")
        user, _, password = account.partition(":")
        listed = tuple(host for host in hosts.split(",") if host) or ("localhost",)
        return cls(scheme, unquote(user), unquote(password), listed, unquote(path), dict(parse_qsl(query)))


def masked(url: str, mask: str = "**") -> str:
    """Return a URL, or several, with ``mask`` in place of each password."""
    return ";".join(_PASSWORD.sub(rf"\1:{mask}@", part) for part in url.split(";"))


def _check_names(options: Iterable[str], known: Iterable[str]) -> None:
    """Check that options exist; those of other transports have no effect, and are named once.

    :raises ValueError: an option is misspelled.
    """
    for name in map(str, options):
        if name in known or name in _KOMBUS:
            continue
        if similar := get_close_matches(name, known, 1, _SIMILAR):
            raise ValueError(f"there is no transport option {name}; use {similar[0]}")
        _has_no_effect(name)


@cache
def _has_no_effect(name: str) -> None:
    log.warning("the transport option %s has no effect with CometMQ", name)


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"the transport option {name} must be a number, not {value!r}") from None


def _security(client: Connection, url: _Url) -> Security:
    default = Security.from_environment()
    user, password = url.user or client.userid, url.password or client.password
    password = password() if callable(password) else password
    credentials = Credentials(user, password or "") if user else default.credentials
    tls = default.tls
    if client.ssl or url.scheme == _SECURE:
        given = client.ssl if isinstance(client.ssl, Mapping) else {}
        of = {name.removeprefix("ssl_"): value for name, value in given.items()}
        tls = Tls(
            trust_cert_path=of.get("ca_certs"),
            cert_path=of.get("certfile"),
            key_path=of.get("keyfile"),
            key_password=of.get("password"),
            auth_server=of.get("cert_reqs", ssl.CERT_REQUIRED) not in _OFF,
            check_host=of.get("check_hostname", True),
        )
    return Security(credentials, tls)
