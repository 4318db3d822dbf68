"""The fields of Airflow's connections; Airflow itself is not needed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from cometmq.client import Credentials, Security, Tls
from cometmq.integrations.airflow.connection import AirflowConnectionError, settings_of


@dataclass
class Fields:
    """The fields that a connection has in every version of Airflow."""

    host: str | None = None
    port: int | None = None
    login: str | None = None
    password: str | None = None
    extra: str | None = None
    conn_id: str = "cluster"


@pytest.mark.parametrize(
    ("host", "port", "expected"),
    [
        ("a", None, "a:9876"),
        ("a", 1, "a:1"),
        ("a:2", 1, "a:2"),
        ("a:2; b", None, "a:2;b:9876"),
        ("[::1]", None, "[::1]:9876"),
        (None, None, None),
    ],
)
def test_nameservers(host: str | None, port: int | None, expected: str | None) -> None:
    assert settings_of(Fields(host, port)) == (expected, Security())


def test_the_extras_of_a_uri_are_texts() -> None:
    extra = json.dumps({"tls": "true", "trust_cert_path": "ca.pem", "check_host": "False", "security_token": "t"})
    _, security = settings_of(Fields(login="key", password="secret", extra=extra))
    assert security.credentials == Credentials("key", "secret", "t")
    assert security.tls == Tls("ca.pem", check_host=False)


def test_the_environment_has_what_a_connection_leaves_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "key")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "secret")
    monkeypatch.setenv("ROCKETMQ_TLS_ENABLE", "true")
    assert settings_of(Fields("a"))[1] == Security(Credentials("key", "secret"), Tls())
    assert settings_of(Fields("a", extra='{"tls": false}'))[1].tls is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"extra": "{"}, "no JSON object"),
        ({"extra": "[]"}, "no JSON object"),
        ({"extra": '{"ca": "hush"}'}, "unknown extras: ca"),
        ({"extra": '{"tls": "hush"}'}, "tls of .* must be true or false"),
        ({"extra": '{"tls": true, "cert_path": 1}'}, "cert_path of .* must be a text"),
        ({"extra": '{"trust_cert_path": "hush"}'}, "has options of TLS"),
        ({"login": "key"}, "or neither"),
        ({"password": "hush"}, "or neither"),
        ({"host": "a:b"}, "wrong nameservers"),
    ],
)
def test_wrong_fields_are_named_without_their_values(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(AirflowConnectionError, match=words) as error:
        settings_of(Fields(**fields))
    assert "hush" not in str(error.value)
