"""URLs and transport options."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
from kombu import Connection

import cometmq.integrations.kombu  # noqa: F401
from cometmq.integrations.kombu.settings import Settings, masked
from cometmq.remoting.signing import Credentials


def settings(url: Any, **options: Any) -> Settings:
    return Settings.of(Connection(url, **options))


@pytest.mark.parametrize(
    ("url", "namesrv"),
    [
        ("cometmq://", "localhost:9876"),
        ("cometmq://a", "a:9876"),
        ("cometmq://a:1", "a:1"),
        ("cometmq://a:1;cometmq://b:2", "a:1;b:2"),
        (["cometmq://a:1", "cometmq://b"], "a:1;b:9876"),
        ("cometmq://a:1,b,c:3", "a:1;b:9876;c:3"),
        ("cometmq://u:p@a:1,b/v?visibility_timeout=9", "a:1;b:9876"),
        ("cometmq://[::1]:1,[::2]", "[::1]:1;[::2]:9876"),
    ],
)
def test_nameservers(url: Any, namesrv: str) -> None:
    assert settings(url).namesrv == namesrv


def test_a_host_without_a_url() -> None:
    assert settings("a", port=1, transport="cometmq").namesrv == "a:1"


def test_accounts_and_prefixes() -> None:
    found = settings("cometmq://us%40er:p%3Aw@a/team%2Fone?visibility_timeout=9.5&wait_time=3")
    assert found.security.credentials == Credentials("us@er", "p:w")
    assert (found.topic_prefix, found.group) == ("team%2Fone|", "team%2Fone|celery")
    assert (found.visibility_timeout, found.wait_time) == (9.5, 3)
    by_options = settings("cometmq://a", userid="u", password="p", transport_options={"topic_prefix": "x"})
    assert (by_options.security.credentials, by_options.topic_prefix) == (Credentials("u", "p"), "x|")


def test_tls() -> None:
    assert settings("cometmq://a").security.tls is None
    plain = settings("cometmqs://a").security.tls
    assert plain is not None
    assert (plain.auth_server, plain.check_host, plain.trust_cert_path) == (True, True, None)
    given = {"ca_certs": "ca", "ssl_certfile": "cert", "keyfile": "key", "cert_reqs": ssl.CERT_NONE}
    tls = settings("cometmq://a", ssl=given).security.tls
    assert tls is not None
    assert (tls.trust_cert_path, tls.cert_path, tls.key_path, tls.auth_server) == ("ca", "cert", "key", False)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"visibility_timeout": "soon"}, "the transport option visibility_timeout must be a number, not 'soon'"),
        ({"wait_time": 0}, "the transport option wait_time must be greater than 0, not 0.0"),
        ({"max_deliveries": float("nan")}, "the transport option max_deliveries must be greater than 0, not nan"),
        ({"topic_prefix": "x" * 21}, f"the topic prefix '{'x' * 21}|' is longer than 20 characters"),
        ({"visiblity_timeout": 30}, "there is no transport option visiblity_timeout; use visibility_timeout"),
        ({"topic-prefix": "a"}, "there is no transport option topic-prefix; use topic_prefix"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError) as raised:
        settings("cometmq://a", transport_options=options)
    assert str(raised.value) == error


def test_options_of_other_transports_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        settings("cometmq://a?sep=x", transport_options={"fanout_prefix": True, "max_retries": 3, "wait_time": 5})
    named = [record.getMessage() for record in caplog.records]
    assert named == [
        "the transport option sep has no effect with CometMQ",
        "the transport option fanout_prefix has no effect with CometMQ",
    ]


def test_passwords_are_not_shown() -> None:
    url = "cometmq://user:se:c@ret@a:1;cometmq://b:2"
    assert masked(url) == "cometmq://user:**@a:1;cometmq://b:2"
    assert "secret" not in Connection("cometmq://user:secret@a:1").as_uri()
    assert masked("cometmq://a:1,b:2") == "cometmq://a:1,b:2"
