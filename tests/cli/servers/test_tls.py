"""``tls make-certificates``, and servers that use its files."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import CommandLine
from tests.cli.servers.test_servers import running, serve_arguments

from cometmq.remoting.tls.contexts import Tls


def make(offline: CommandLine, directory: Path, *options: str) -> str:
    done = offline("tls", "make-certificates", str(directory), *options)
    assert done.code == 0, done.err
    return done.out


def test_serve_takes_its_files_and_clients_check_them(offline: CommandLine, tmp_path: Path) -> None:
    out = make(offline, tmp_path / "certs")
    (option,) = re.findall(r"tls\.config\.file=\S+", out)
    with running(offline, *serve_arguments(tmp_path / "data", "-o", option)) as (_, line):
        (namesrv,) = re.findall(r"nameserver (127\.0\.0\.1:\d+)", line)

        def client(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-m", "cometmq", *arguments, "-n", namesrv],
                env={**os.environ, **variables},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

        known = {
            "ROCKETMQ_TLS_ENABLE": "true",
            "ROCKETMQ_TLS_TRUST_CERT_PATH": str(tmp_path / "certs" / "ca.pem"),
        }
        sent = client("produce", "Orders", "--body", "hello", **known)
        assert sent.returncode == 0, sent.stderr
        assert client("consume", "Orders", "--from-beginning", "--until-end", **known).stdout == "hello\n"
        refused = client("topic", "list")
        assert refused.returncode == 1
        assert "it may accept only TLS connections" in refused.stderr


def test_keys_are_readable_by_this_user_only_and_nothing_is_replaced_unasked(
    offline: CommandLine, tmp_path: Path
) -> None:
    make(offline, tmp_path, "--host", "mq.example", "--host", "192.0.2.7")
    kept = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert {name for name in kept if (tmp_path / name).stat().st_mode & 0o077 == 0} == {
        "ca.key",
        "server.key",
        "client.key",
    }
    refused = offline("tls", "make-certificates", str(tmp_path))
    assert refused.code == 1
    assert "--replace" in refused.err
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == kept
    make(offline, tmp_path, "--host", "mq.example", "--replace")
    changed = {file.name for file in tmp_path.iterdir() if file.read_bytes() != kept[file.name]}
    assert changed == {"server.pem", "server.key", "client.pem", "client.key"}


@pytest.mark.parametrize(("host", "accepted"), [("mq.example", True), ("192.0.2.7", True), ("other.example", False)])
def test_the_certificate_names_the_hosts(offline: CommandLine, tmp_path: Path, host: str, accepted: bool) -> None:
    make(offline, tmp_path, "--host", "mq.example", "--host", "192.0.2.7")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = Tls(str(tmp_path / "ca.pem")).context().wrap_bio(back, there, server_hostname=host)
    answers = server.wrap_bio(there, back, server_side=True)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    with pytest.raises(ssl.SSLWantReadError):
        answers.do_handshake()
    if accepted:
        client.do_handshake()
    else:
        with pytest.raises(ssl.SSLCertVerificationError):
            client.do_handshake()
