from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.remoting.security import PLAIN, Security, SecurityConfigError, read_credentials
from cometmq.remoting.signing import Credentials
from cometmq.remoting.tls.contexts import Tls


def test_an_environment_without_our_variables_means_nobody_in_plain_text() -> None:
    assert Security.from_environment({"HOME": "/"}) == PLAIN == Security()


def test_keys_of_the_environment() -> None:
    keys = {"ROCKETMQ_ACCESS_KEY": "account", "ROCKETMQ_SECRET_KEY": "very-secret"}
    assert Security.from_environment(keys).credentials == Credentials("account", "very-secret")
    keys["ROCKETMQ_SECURITY_TOKEN"] = "token"
    assert Security.from_environment(keys).credentials == Credentials("account", "very-secret", "token")


def test_tls_of_the_environment() -> None:
    variables = {
        "ROCKETMQ_TLS_ENABLE": "true",
        "ROCKETMQ_TLS_TRUST_CERT_PATH": "ca.pem",
        "ROCKETMQ_TLS_CERT_PATH": "client.pem",
        "ROCKETMQ_TLS_KEY_PATH": "client.key",
        "ROCKETMQ_TLS_KEY_PASSWORD": "very-secret",
        "ROCKETMQ_TLS_CHECK_HOST": "false",
    }
    security = Security.from_environment(variables)
    assert security.tls == Tls("ca.pem", "client.pem", "client.key", "very-secret", check_host=False)
    assert "very-secret" not in repr(security)
    assert Security.from_environment(variables | {"ROCKETMQ_TLS_ENABLE": "FALSE"}).tls is None
    unchecked = Security.from_environment({"ROCKETMQ_TLS_ENABLE": "true", "ROCKETMQ_TLS_AUTH_SERVER": "false"})
    assert unchecked.tls == Tls(auth_server=False)


def test_credentials_from_a_file_of_mqadmin(tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    file.write_text("# account of operators\naccessKey: operators  # see the wiki\nsecretKey: '12 # 34'\n\n")
    assert read_credentials(file) == Credentials("operators", "12 # 34")
    assert Security.from_environment({"ROCKETMQ_CREDENTIALS_FILE": str(file)}).credentials == read_credentials(file)
    file.write_text('accessKey: operators\nsecretKey: "5678"\nsecurityToken: a:b\n')
    assert read_credentials(file) == Credentials("operators", "5678", "a:b")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"ROCKETMQ_ACCESS_KEY": "a"}, r"\$ROCKETMQ_SECRET_KEY is missing"),
        ({"ROCKETMQ_SECRET_KEY": "very-secret"}, r"\$ROCKETMQ_ACCESS_KEY is missing"),
        ({"ROCKETMQ_CREDENTIALS_FILE": "f", "ROCKETMQ_SECRET_KEY": "very-secret"}, "cannot be used together"),
        ({"ROCKETMQ_CREDENTIALS_FILE": "/nowhere/tools.yml"}, "cannot be read: no such file"),
        ({"ROCKETMQ_TLS_ENABLE": "yes"}, r"\$ROCKETMQ_TLS_ENABLE must be true or false, not 'yes'"),
    ],
)
def test_what_contradicts_itself_is_refused_without_a_secret(variables: dict[str, str], words: str) -> None:
    with pytest.raises(SecurityConfigError, match=words) as refused:
        Security.from_environment(variables)
    assert "very-secret" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "accessKey: a\n", "secretKey: very-secret\n", "accessKey:\nsecretKey:\n"])
def test_a_file_without_both_keys_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tools.yml"
    file.write_text(text)
    with pytest.raises(SecurityConfigError, match="no accessKey or no secretKey") as refused:
        read_credentials(file)
    assert "very-secret" not in str(refused.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(SecurityConfigError, match="not UTF-8"):
        read_credentials(file)
