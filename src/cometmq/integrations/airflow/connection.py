"""Airflow's connections of type ``rocketmq``: a cluster's nameservers, with credentials and TLS."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from cometmq.client import Credentials, Security, Tls
from cometmq.client.route import namesrv_addresses
from cometmq.errors import CometMQError
from cometmq.message.hosts import with_port
from cometmq.message.ports import NAMESRV_PORT
from cometmq.threads import in_thread

TYPE: Final = "rocketmq"
_TEXTS: Final = {
    "trust_cert_path": "File with the certificates of trusted authorities; by default the system's",
    "cert_path": "File with the client's own certificate",
    "key_path": "File with the key of this certificate",
    "key_password": "Password of the key",
    "security_token": "Token of a temporary key",
}
_FLAGS: Final = {
    "tls": "Use TLS",
    "auth_server": "Demand a trusted certificate of servers; by default true",
    "check_host": "Demand a certificate with the server's name; by default true",
}


class AirflowConnectionError(CometMQError, ValueError):
    """A connection of Airflow contains something that is no setting of a cluster."""


def description() -> dict[str, Any]:
    """Return the connection type, for Airflow's list of providers and its form."""
    texts = {name: {"label": label, "schema": {"type": ["string", "null"]}} for name, label in _TEXTS.items()}
    flags = {name: {"label": label, "schema": {"type": ["boolean", "null"]}} for name, label in _FLAGS.items()}
    texts["key_password"]["schema"] = texts["security_token"]["schema"] = {
        "type": ["string", "null"],
        "format": "password",
    }
    return {
        "connection-type": TYPE,
        "hook-name": "CometMQ and Apache RocketMQ",
        "hook-class-name": "cometmq.integrations.airflow.hook.RocketMQHook",
        "conn-fields": {"tls": flags.pop("tls"), **texts, **flags},
        "ui-field-behaviour": {
            "hidden-fields": ["schema"],
            "relabeling": {"host": "Nameservers", "login": "Access key", "password": "Secret key"},
            "placeholders": {"host": "host or host:port;host:port", "port": str(NAMESRV_PORT)},
        },
    }


async def settings_by_id(conn_id: str) -> tuple[str | None, Security]:
    """Return the nameservers of a connection, and its security.

    :raises AirflowConnectionError: a field is not allowed.
    """
    from cometmq.integrations.airflow.hook import RocketMQHook  # imports Airflow

    if hasattr(RocketMQHook, "aget_connection"):
        return settings_of(await RocketMQHook.aget_connection(conn_id))
    return settings_of(await in_thread(RocketMQHook.get_connection, conn_id))


def settings_of(connection: Any) -> tuple[str | None, Security]:
    """Return the nameservers of a connection, and its security; the environment has what it leaves open.

    :raises AirflowConnectionError: a field is not allowed; the message contains no value, which may be a secret.
    """
    name = f"the connection {str(connection.conn_id)[:100]!r}"
    try:
        extra = json.loads(connection.extra or "{}")
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise AirflowConnectionError(f"the extra field of {name} is no JSON object")
    unknown = sorted(str(key)[:50] for key in extra.keys() - _TEXTS.keys() - _FLAGS.keys())
    if unknown:
        allowed = ", ".join([*_FLAGS, *_TEXTS])
        raise AirflowConnectionError(f"{name} has unknown extras: {', '.join(unknown)}", next_step=f"use {allowed}")
    texts = {key: _text(name, extra, key) for key in _TEXTS}
    flags = {key: _flag(name, extra, key) for key in _FLAGS}
    if bool(connection.login) != bool(connection.password):
        raise AirflowConnectionError(f"{name} needs an access key (login) and a secret key (password), or neither")
    default = Security.from_environment()
    credentials, tls = default.credentials, default.tls
    token = texts.pop("security_token")
    if connection.login:
        credentials = Credentials(connection.login, connection.password, token)
    is_secure = flags.pop("tls")
    if is_secure is False:
        tls = None
    elif is_secure:
        tls = Tls(
            trust_cert_path=texts["trust_cert_path"],
            cert_path=texts["cert_path"],
            key_path=texts["key_path"],
            key_password=texts["key_password"],
            auth_server=flags["auth_server"] is not False,
            check_host=flags["check_host"] is not False,
        )
    elif any(value is not None for value in (*texts.values(), *flags.values())):
        raise AirflowConnectionError(f"{name} has options of TLS", next_step='add "tls": true to its extra field')
    return _nameservers(name, connection.host, connection.port), Security(credentials, tls)


def _nameservers(name: str, host: str | None, port: int | None) -> str | None:
    if not host:
        return None
    hosts = [part.strip() for part in host.split(";") if part.strip()]
    text = ";".join(with_port(part, port or NAMESRV_PORT) for part in hosts)
    try:
        namesrv_addresses(text)
    except ValueError as error:
        raise AirflowConnectionError(f"{name} has wrong nameservers: {error}") from None
    return text


def _text(name: str, extra: Mapping[str, Any], key: str) -> str | None:
    value = extra.get(key)
    if not isinstance(value, str | None):
        raise AirflowConnectionError(f"the extra {key} of {name} must be a text")
    return value or None


def _flag(name: str, extra: Mapping[str, Any], key: str) -> bool | None:
    """Return an extra that is true or false; in a connection's URI it is a text."""
    value = extra.get(key)
    value = {"true": True, "false": False, "": None}.get(value.lower(), value) if isinstance(value, str) else value
    if not isinstance(value, bool | None):
        raise AirflowConnectionError(f"the extra {key} of {name} must be true or false")
    return value
