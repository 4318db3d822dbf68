"""Clients of every kind at a server's port with TLS: honest ones, slow ones, and those that mean harm."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from tests.helpers.waiting import real_time, until

import cometmq.remoting.tls.server
from cometmq.limits import HANDSHAKE_SECONDS
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import NoHeader
from cometmq.remoting.processors import ProcessorTable, Response
from cometmq.remoting.security import Security
from cometmq.remoting.server import RemotingServer
from cometmq.remoting.tls.contexts import Tls, TlsError
from cometmq.remoting.tls.options import DISABLED, ENFORCING, OPTIONAL, PERMISSIVE, REQUIRE, TlsOptions
from cometmq.remoting.tls.server import ServerTls
from cometmq.testing import VirtualClock

ECHO = 30
FRAME = RemotingCommand(code=ECHO, body=b"hello").encode()
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01"
"""The beginning of one."""
UNCHECKED_CONTEXT = Tls(auth_server=False).context()
UNCHECKED = Security(tls=Tls(auth_server=False))


class Room:
    """A server that answers with what it is sent, on a clock of its own."""

    def __init__(self, options: TlsOptions) -> None:
        table = ProcessorTable()
        table.register(ECHO, NoHeader, lambda connection, request, body: Response(body=body))
        self.clock = VirtualClock()
        self.tls = ServerTls(options)
        self.server = RemotingServer(table, clock=self.clock, tls=self.tls)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def ask(self, security: Security = UNCHECKED, body: bytes = b"hello") -> bytes:
        async with RemotingClient(security=security) as client:
            return (await client.invoke(self.address, ECHO, None, body, timeout_s=30)).body

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.server.port)


@asynccontextmanager
async def room_of(options: TlsOptions) -> AsyncIterator[Room]:
    room = Room(options)
    await room.server.start("127.0.0.1", 0)
    try:
        yield room
    finally:
        await room.server.stop()


class Files:
    """The certificate of a server, and its authority."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = trustme.CA()
        self.trust = str(directory / "ca.pem")
        self.cert, self.key = str(directory / "server.pem"), str(directory / "server.key")
        self.ca.cert_pem.write_to_path(self.trust)
        self.renew()

    def renew(self) -> None:
        """Replace the certificate and key by new ones."""
        issued = self.ca.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA)
        self.put(self.key, issued.private_key_pem.bytes())
        self.put(self.cert, b"".join(blob.bytes() for blob in issued.cert_chain_pems))

    def put(self, path: str, content: bytes) -> None:
        Path(path + ".new").write_bytes(content)
        os.replace(path + ".new", path)

    def options(self, mode: str = PERMISSIVE) -> TlsOptions:
        return TlsOptions(
            tls_server_mode=mode,
            tls_server_cert_path=self.cert,
            tls_server_key_path=self.key,
            tls_test_mode_enable=False,
        )

    def client_certificate(self, ca: trustme.CA | None = None) -> Tls:
        issued = (ca or self.ca).issue_cert("client.example")
        path = self.directory / f"client-{id(issued)}.pem"
        path.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
        return Tls(self.trust, str(path))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
async def room(files: Files) -> AsyncIterator[Room]:
    async with room_of(files.options()) as room:
        yield room


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Everything until the server closes."""
    async with asyncio.timeout(30):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


# --- modes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [DISABLED, PERMISSIVE, ENFORCING])
async def test_the_first_byte_decides_and_the_mode_allows(files: Files, mode: str) -> None:
    async with room_of(files.options(mode)) as room:
        for security, allowed in ((Security(), mode != ENFORCING), (Security(tls=Tls(files.trust)), mode != DISABLED)):
            if allowed:
                assert await room.ask(security) == b"hello"
            else:
                with pytest.raises(Exception, match=r"lost|closed"):
                    await room.ask(security)


async def test_a_permissive_server_without_a_certificate_makes_one_at_the_first_need() -> None:
    async with room_of(TlsOptions()) as room:
        assert await room.ask(Security()) == b"hello"
        assert await room.ask() == b"hello"
        with pytest.raises(Exception, match="was not accepted"):
            await room.ask(Security(tls=Tls()))


async def test_without_test_mode_and_certificate_tls_is_refused_and_plain_text_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with room_of(TlsOptions(tls_test_mode_enable=False)) as room:
        for _ in range(3):
            with pytest.raises(Exception, match=r"lost|closed"):
                await room.ask()
        assert await room.ask(Security()) == b"hello"
    assert [record.levelname for record in caplog.records if "requires a certificate" in record.message] == ["ERROR"]


def test_a_server_that_must_have_a_certificate_does_not_start_without(tmp_path: Path) -> None:
    with pytest.raises(TlsError, match="requires a certificate"):
        ServerTls(TlsOptions(tls_server_mode=ENFORCING, tls_test_mode_enable=False))
    with pytest.raises(TlsError, match=r"none\.pem"):
        ServerTls(TlsOptions(tls_server_cert_path=str(tmp_path / "none.pem")))


# --- certificates of clients ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("need", "without", "with_another"), [(OPTIONAL, True, False), (REQUIRE, False, False)], ids=["optional", "require"]
)
async def test_certificates_of_clients_are_checked(files: Files, need: str, without: bool, with_another: bool) -> None:
    options = replace(
        files.options(),
        tls_server_need_client_auth=need,
        tls_server_auth_client=True,
        tls_server_trust_cert_path=files.trust,
    )
    async with room_of(options) as room:
        for tls, allowed in (
            (files.client_certificate(), True),
            (Tls(files.trust), without),
            (files.client_certificate(trustme.CA()), with_another),
        ):
            if allowed:
                assert await room.ask(Security(tls=tls)) == b"hello"
            else:
                with pytest.raises(Exception, match=r"lost|closed|TLS"):
                    await room.ask(Security(tls=tls))


def test_a_certificate_that_clients_must_have_and_nobody_checks_is_an_error(files: Files) -> None:
    with pytest.raises(TlsError, match="any certificate is accepted"):
        ServerTls(replace(files.options(), tls_server_need_client_auth=REQUIRE))


# --- new files --------------------------------------------------------------------------------------


async def serial(room: Room) -> int:
    """The number of the certificate that the server shows now."""
    _, writer = await asyncio.open_connection("127.0.0.1", room.server.port, ssl=UNCHECKED_CONTEXT)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return hash(der)


async def test_new_files_are_used_under_load_and_no_request_fails(files: Files, room: Room) -> None:
    stopping = False
    asked = 0
    known = Security(tls=Tls(files.trust))

    async def ask_again_and_again(*, stays: bool) -> None:
        nonlocal asked
        async with RemotingClient(security=known) as lasting:
            while not stopping:
                if stays:
                    assert (await lasting.invoke(room.address, ECHO, None, b"x" * 5_000, timeout_s=30)).body
                else:
                    assert await room.ask(known, b"x" * 5_000)
                asked += 1

    load = [asyncio.create_task(ask_again_and_again(stays=number % 2 == 0)) for number in range(4)]
    shown = {await serial(room)}
    for _ in range(4):
        before = asked
        files.renew()
        await until(lambda before=before: asked > before + 20)  # type: ignore[misc]
        shown.add(await serial(room))
    stopping = True
    await asyncio.gather(*load)
    assert len(shown) == 5


@pytest.mark.parametrize("broken", ["no PEM", "another key", "vanished"])
async def test_files_that_cannot_be_used_leave_the_ones_before(
    files: Files, room: Room, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = await serial(room)
    content = Path(files.key).read_bytes()
    if broken == "vanished":
        Path(files.key).unlink()
    else:
        other = trustme.CA().issue_cert("x", key_type=trustme.KeyType.ECDSA).private_key_pem.bytes()
        files.put(files.key, b"no key" if broken == "no PEM" else other)
    for _ in range(3):
        assert await serial(room) == before
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
    files.put(files.key, content)
    assert await serial(room) == before
    files.renew()
    assert await serial(room) != before


# --- harm -------------------------------------------------------------------------------------------


async def half_a_hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(CLIENT_HELLO)


async def one_byte(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x16")


async def hello_and_silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = UNCHECKED_CONTEXT.wrap_bio(incoming, outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    writer.write(outgoing.read())
    assert await reader.read(5), "the server has answered"


Attack = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.mark.parametrize("attack", [one_byte, half_a_hello, hello_and_silence])
async def test_a_handshake_that_never_ends_is_ended(room: Room, attack: Attack) -> None:
    reader, writer = await room.connect()
    await attack(reader, writer)
    await until(lambda: len(room.tls._handshakes) == 1)
    assert await room.ask() == b"hello"
    room.clock.advance(HANDSHAKE_SECONDS - 1)
    assert len(room.tls._handshakes) == 1
    room.clock.advance(2)
    await ended(reader)
    assert not room.tls._handshakes
    writer.close()


async def test_a_client_that_says_nothing_inside_tls_is_ended_like_any_silent_one(room: Room) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", room.server.port, ssl=UNCHECKED_CONTEXT)
    plain, other = await room.connect()
    await until(lambda: not room.tls._handshakes)
    await until(lambda: [one.is_connected for one in room.server._openings._open] == [True, True])
    room.clock.advance(121)
    assert await ended(reader) == b""
    assert await ended(plain) == b""
    writer.close()
    other.close()


@pytest.mark.parametrize(
    "garbage",
    [
        CLIENT_HELLO + b"\xff" * 600,
        b"\x16" * 1_000,
        b"\x16\x03\x01\xff\xff" + bytes(70_000),
        b"\x16" + os.urandom(300),
    ],
    ids=["a hello of garbage", "only first bytes", "too long", "random"],
)
async def test_garbage_instead_of_a_handshake_ends_the_connection_alone(room: Room, garbage: bytes) -> None:
    reader, writer = await room.connect()
    writer.write(garbage)
    with_alert = await ended(reader)
    assert len(with_alert) <= 7
    assert await room.ask() == b"hello"
    assert not room.tls._handshakes
    writer.close()


class RawTls:
    """A client whose records can be spoilt."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext) -> None:
        self.reader, self.writer = reader, writer
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.ssl = context.wrap_bio(self.incoming, self.outgoing)

    @classmethod
    async def connect(cls, room: Room, version: ssl.TLSVersion) -> RawTls:
        context = Tls(auth_server=False).context()
        context.minimum_version = context.maximum_version = version
        client = cls(*await room.connect(), context)
        while True:
            try:
                client.ssl.do_handshake()
                break
            except ssl.SSLWantReadError:
                client.flush()
                client.incoming.write(await client.reader.read(65_536))
        client.flush()
        return client

    def flush(self) -> None:
        if self.outgoing.pending:
            self.writer.write(self.outgoing.read())

    def records(self, data: bytes) -> bytes:
        self.ssl.write(data)
        return self.outgoing.read()

    async def answer(self) -> bytes:
        async with asyncio.timeout(30):
            while True:
                try:
                    return self.ssl.read(65_536)
                except ssl.SSLWantReadError:
                    data = await self.reader.read(65_536)
                    if not data:
                        return b""
                    self.incoming.write(data)

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.mark.parametrize("version", VERSIONS)
async def test_garbage_after_the_handshake_ends_the_connection_alone(room: Room, version: ssl.TLSVersion) -> None:
    client = await RawTls.connect(room, version)
    client.writer.write(client.records(FRAME))
    assert b"hello" in await client.answer()
    client.writer.write(b"\x17\x03\x03\x00\x40" + os.urandom(64))
    assert not [part async for part in rest(client) if b"hello" in part]
    assert await room.ask() == b"hello"
    await until(lambda: not room.server.connections)
    await client.close()


async def rest(client: RawTls) -> AsyncIterator[bytes]:
    """The bytes that still come until the connection ends."""
    try:
        while part := await client.answer():
            yield part
    except (ssl.SSLError, OSError):
        return


@pytest.mark.parametrize("version", VERSIONS)
async def test_records_that_arrive_byte_by_byte_or_all_at_once_give_the_same(
    room: Room, version: ssl.TLSVersion
) -> None:
    client = await RawTls.connect(room, version)
    for byte in client.records(FRAME):
        client.writer.write(bytes([byte]))
        await asyncio.sleep(0)
    assert b"hello" in await client.answer()
    client.writer.write(client.records(FRAME * 3_000))
    got = 0
    while got < 3_000:
        got += (await client.answer()).count(b"hello")
    await client.close()


async def test_a_client_that_does_not_read_is_not_read_and_gets_every_answer_later(room: Room) -> None:
    client = await RawTls.connect(room, ssl.TLSVersion.TLSv1_3)
    frame = RemotingCommand(code=ECHO, body=b"z" * 1_000_000).encode()
    for _ in range(40):
        client.writer.write(client.records(frame))
    await until(lambda: any(connection.is_behind for connection in room.server.connections))
    assert await room.ask() == b"hello"
    got = 0
    while got < 40_000_000:
        part = await client.answer()
        assert part, "nothing is lost"
        got += part.count(b"z")
    await client.close()


async def test_tls_older_than_1_2_is_refused(room: Room) -> None:
    reader, writer = await room.connect()
    hello = bytes.fromhex("0301") + bytes(32) + bytes.fromhex("00 0002 c013 0100")  # the newest that it offers is 1.0
    message = b"\x01" + len(hello).to_bytes(3, "big") + hello
    writer.write(b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message)
    alert = await ended(reader)
    assert (alert[0], alert[6]) == (0x15, 70), "protocol_version"
    writer.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="renegotiates by the openssl command")
async def test_renegotiation_is_refused(room: Room) -> None:
    process = await asyncio.create_subprocess_exec(
        *("openssl", "s_client", "-tls1_2", "-connect", room.address),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(b"R\n"), 30)
    assert b"RENEGOTIATING" in output
    assert b"no renegotiation" in output
    assert await room.ask() == b"hello"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="updates keys by the openssl command")
async def test_updates_of_keys_are_followed(room: Room) -> None:
    process = await asyncio.create_subprocess_exec(
        *("openssl", "s_client", "-tls1_3", "-quiet", "-no_ign_eof", "-connect", room.address),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    await until(lambda: len(room.server._openings) == 1 and not room.tls._handshakes)
    for _ in range(3):
        process.stdin.write(b"K\n")  # asks the server to update its keys, too
        await process.stdin.drain()
        await real_time(0.02)  # openssl takes a command only at the beginning of what it reads at once
    process.stdin.write(FRAME + b"\n")
    async with asyncio.timeout(30):
        while b"hello" not in await process.stdout.read(4_096):
            pass
    process.kill()
    await process.wait()


async def test_when_too_many_handshakes_wait_the_oldest_ends(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cometmq.remoting.tls.server, "MAX_HANDSHAKES", 5)
    held = []
    for number in range(5):
        held.append(await room.connect())
        held[-1][1].write(CLIENT_HELLO)
        await until(lambda number=number: len(room.tls._handshakes) == number + 1)  # type: ignore[misc]
    assert await room.ask() == b"hello"
    await ended(held[0][0])
    assert len(room.tls._handshakes) == 4
    for _, writer in held:
        writer.close()


async def test_a_flood_of_handshakes_lets_others_work(room: Room) -> None:
    stopping = False
    failed = 0

    async def flood() -> None:
        nonlocal failed
        while not stopping:
            try:
                await hello_and_leave(room)
            except OSError:
                failed += 1

    floods = [asyncio.create_task(flood()) for _ in range(10)]
    async with RemotingClient(security=Security()) as client:
        for _ in range(200):
            assert (await client.invoke(room.address, ECHO, None, b"x", timeout_s=30)).body == b"x"
    stopping = True
    await asyncio.gather(*floods)
    await until(lambda: not room.tls._handshakes and not len(room.server._openings))
    assert not failed


async def hello_and_leave(room: Room) -> None:
    reader, writer = await room.connect()
    await hello_and_silence(reader, writer)
    writer.transport.abort()


async def test_the_thread_of_handshakes_does_those_that_have_begun_first() -> None:
    thread = cometmq.remoting.tls.server.HandshakeThread()
    done: list[str] = []
    go = asyncio.Event()
    loop = asyncio.get_running_loop()
    first = socket.socketpair()
    thread.submit(lambda: first[0].recv(1), is_new=True)  # type: ignore[arg-type]
    for name, is_new in (("new", True), ("newer", True), ("begun", False)):
        thread.submit(lambda name=name: done.append(name), is_new=is_new)  # type: ignore[misc]
    thread.submit(lambda: loop.call_soon_threadsafe(go.set), is_new=True)  # type: ignore[arg-type]
    first[1].send(b"x")
    async with asyncio.timeout(30):
        await go.wait()
    assert done == ["begun", "new", "newer"]
    for end in first:
        end.close()
