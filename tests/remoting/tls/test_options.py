"""The keys of TLS in configurations and in tls.properties."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.broker.config import BrokerConfig, load_broker_config
from cometmq.namesrv.config import load_namesrv_config
from cometmq.options import ConfigError, format_properties, options_of
from cometmq.remoting.tls.contexts import Tls
from cometmq.remoting.tls.options import TlsOptions


@pytest.fixture
def tls_file(tmp_path: Path) -> Path:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.mode=enforcing\ntls.server.certPath=/file.pem\ntls.server.keyPassword=of-file\nodd=1\n")
    return file


def test_the_configuration_wins_over_the_file_of_tls(tmp_path: Path, tls_file: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"tls.config.file={tls_file}\ntls.server.certPath=/conf.pem\ntls.server.mode=permissive\n")
    config, warnings = load_broker_config(conf)
    assert (config.tls_server_cert_path, config.tls_server_key_password) == ("/conf.pem", "of-file")
    assert config.tls_server_mode == "permissive", "also where it is the default"
    assert [line for line in warnings if "odd" in line]
    config, _ = load_broker_config(None, tls_config_file=str(tls_file), tls_server_cert_path="/option.pem")
    assert (config.tls_server_cert_path, config.tls_server_mode) == ("/option.pem", "enforcing")
    nameserver, _ = load_namesrv_config(None, tls_config_file=str(tls_file))
    assert nameserver.tls_server_mode == "enforcing"


def test_a_file_that_is_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.properties: no such file"):
        load_broker_config(None, tls_config_file=str(tmp_path / "none.properties"))


def test_a_wrong_value_is_named_with_its_place(tls_file: Path) -> None:
    tls_file.write_text("tls.server.mode=always\n")
    with pytest.raises(ConfigError, match=r"tls\.properties:1: tls\.server\.mode=always"):
        load_namesrv_config(None, tls_config_file=str(tls_file))


def test_passwords_are_shown_nowhere() -> None:
    config = BrokerConfig(tls_server_key_password="very-secret", tls_client_key_password="very-secret")
    assert "very-secret" not in repr(config)
    assert "very-secret" not in format_properties(config)
    assert {key for key, found in options_of(TlsOptions).items() if found.secret} == {
        "tls.server.keyPassword",
        "tls.client.keyPassword",
    }


def test_outgoing_connections_check_the_server_unless_that_is_switched_off() -> None:
    assert TlsOptions().outgoing_tls is None
    assert TlsOptions(tls_enable=True).outgoing_tls == Tls(auth_server=True, check_host=True)
    given = TlsOptions(tls_enable=True, tls_client_auth_server=False, tls_client_trust_cert_path="/ca.pem")
    assert given.outgoing_tls == Tls("/ca.pem", auth_server=False)
