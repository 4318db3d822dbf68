"""TLS between both kinds of clients' connections and a server that speaks it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trustme

from cometmq.errors import CometMQError
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.errors import RemotingConnectError, RemotingSendError
from cometmq.remoting.headers import NoHeader
from cometmq.remoting.processors import ProcessorTable, Response
from cometmq.remoting.security import Security
from cometmq.remoting.server import RemotingServer
from cometmq.remoting.tls.contexts import Tls, TlsError
from cometmq.remoting.tls.options import DISABLED, ENFORCING, REQUIRE, TlsOptions
from cometmq.remoting.tls.server import ServerTls

ECHO = 30
Ask = Callable[[str, Tls | None], Awaitable[bytes]]


@dataclass(frozen=True)
class Authority:
    """A certificate authority with its files."""

    ca: trustme.CA
    directory: Path

    @property
    def path(self) -> str:
        return str(self.directory / "ca.pem")

    def issue(self, name: str) -> tuple[str, str]:
        """Paths of a certificate made out to ``name``, and of its key."""
        issued = self.ca.issue_cert(name)
        cert, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        key.write_bytes(issued.private_key_pem.bytes())
        return str(cert), str(key)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(trustme.CA(), tmp_path_factory.mktemp("authority"))
    authority.ca.cert_pem.write_to_path(authority.path)
    return authority


@pytest.fixture
def options(authority: Authority) -> TlsOptions:
    return enforced(*authority.issue("127.0.0.1"))


def enforced(cert: str, key: str) -> TlsOptions:
    return TlsOptions(tls_server_mode=ENFORCING, tls_server_cert_path=cert, tls_server_key_path=key)


@asynccontextmanager
async def echo_server(options: TlsOptions) -> AsyncIterator[str]:
    """A server that answers with what it is sent; gives its address."""
    table = ProcessorTable()
    table.register(ECHO, NoHeader, lambda connection, request, body: Response(body=body))
    server = RemotingServer(table, tls=ServerTls(options))
    await server.start("127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.stop()


@pytest.fixture
async def server(options: TlsOptions) -> AsyncIterator[str]:
    async with echo_server(options) as address:
        yield address


async def ask_async(address: str, tls: Tls | None) -> bytes:
    async with RemotingClient(security=Security(tls=tls)) as client:
        return (await client.invoke(address, ECHO, None, b"x" * 300_000, timeout_s=60)).body


async def ask_blocking(address: str, tls: Tls | None) -> bytes:
    def ask() -> bytes:
        with BlockingConnection(address, 60, Security(tls=tls)) as connection:
            return connection.invoke(ECHO, None, b"x" * 300_000).body

    return await asyncio.to_thread(ask)


@pytest.fixture(params=[ask_async, ask_blocking], ids=["async", "blocking"])
def ask(request: pytest.FixtureRequest) -> Ask:
    found: Ask = request.param
    return found


async def test_requests_and_answers_go_through_tls(server: str, authority: Authority, ask: Ask) -> None:
    assert await ask(server, Tls(authority.path)) == b"x" * 300_000


async def test_the_certificate_of_an_ipv4_address_is_taken_at_the_same_one_mapped_into_ipv6(
    server: str, authority: Authority, ask: Ask
) -> None:
    port = server.rpartition(":")[2]
    assert await ask(f"[::ffff:127.0.0.1]:{port}", Tls(authority.path)) == b"x" * 300_000


async def test_a_server_nobody_vouches_for_is_refused_unless_that_is_switched_off(server: str, ask: Ask) -> None:
    with pytest.raises((RemotingConnectError, BlockingConnectionError), match="was not accepted") as refused:
        await ask(server, Tls())
    assert "trust_cert_path" in str(refused.value)
    assert await ask(server, Tls(auth_server=False))


async def test_a_certificate_of_another_host_is_refused_unless_that_is_switched_off(
    authority: Authority, ask: Ask
) -> None:
    async with echo_server(enforced(*authority.issue("mq.example"))) as address:
        with pytest.raises((RemotingConnectError, BlockingConnectionError), match="was not accepted"):
            await ask(address, Tls(authority.path))
        assert await ask(address, Tls(authority.path, check_host=False))


async def test_a_server_may_ask_for_the_clients_certificate(
    authority: Authority, options: TlsOptions, ask: Ask
) -> None:
    asking = replace(
        options,
        tls_server_need_client_auth=REQUIRE,
        tls_server_auth_client=True,
        tls_server_trust_cert_path=authority.path,
    )
    async with echo_server(asking) as address:
        with pytest.raises((RemotingConnectError, RemotingSendError, BlockingConnectionError)):
            await ask(address, Tls(authority.path))
        assert await ask(address, Tls(authority.path, *authority.issue("client.example")))


async def test_a_server_without_tls_is_told_apart(authority: Authority, ask: Ask) -> None:
    async with echo_server(TlsOptions(tls_server_mode=DISABLED)) as address:
        with pytest.raises((RemotingConnectError, BlockingConnectionError), match="TLS") as refused:
            await ask(address, Tls(authority.path))
    assert "check that the server accepts TLS" in str(refused.value)


async def test_plain_text_at_a_server_with_tls_ends_the_connection(server: str, ask: Ask) -> None:
    with pytest.raises((RemotingSendError, BlockingConnectionError), match=r"closed|lost|broke") as refused:
        await ask(server, None)
    assert "TLS" in str(refused.value)


@pytest.mark.parametrize("wrong", ["trust_cert_path", "cert_path"])
def test_files_that_are_no_certificates_are_named(tmp_path: Path, wrong: str) -> None:
    for content in (None, "no certificate\n"):
        file = tmp_path / "some.pem"
        if content is not None:
            file.write_text(content)
        with pytest.raises(TlsError, match=r"some\.pem") as refused:
            Tls(**{wrong: str(file)}).context()  # type: ignore[arg-type]
        assert "PEM" in str(refused.value)


def test_a_key_that_needs_a_password_is_no_reason_to_ask_at_the_terminal(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    issued = trustme.CA().issue_cert("client.example")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"very-secret"),
    )
    cert_file, key_file = tmp_path / "client.pem", tmp_path / "client.key"
    issued.cert_chain_pems[0].write_to_path(cert_file)
    key_file.write_bytes(locked)
    assert Tls(cert_path=str(cert_file), key_path=str(key_file), key_password="very-secret").context()
    for password in (None, "wrong"):
        with pytest.raises(CometMQError, match="the password is wrong") as refused:
            Tls(cert_path=str(cert_file), key_path=str(key_file), key_password=password).context()
        assert "very-secret" not in str(refused.value)
