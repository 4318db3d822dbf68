"""etcd on bad days: members that die, a full database, users, TLS, a gateway that is off, other servers."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from tests.failover.etcd_servers import EtcdCluster, etcd
from tests.failover.test_engines import A, B, founded, presence
from tests.helpers.waiting import until
from tests.interop.builds import ToolMissingError
from tests.interop.conftest import unavailable

from cometmq.broker.failover.document import Document, DocumentError
from cometmq.broker.failover.engines.etcd import EtcdEngine, EtcdOptions
from cometmq.broker.failover.engines.http_client import parse_endpoint
from cometmq.broker.failover.engines.interface import EngineError
from cometmq.remoting.tls.contexts import Tls
from cometmq.testing.ports import free_port

Start = Callable[..., EtcdCluster]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts clusters of etcd that end with the test."""
    with contextlib.ExitStack() as stack:

        def get(count: int = 1, flags: tuple[str, ...] = (), scheme: str = "http") -> EtcdCluster:
            directory = tmp_path / f"etcd{free_port()}"
            directory.mkdir()
            try:
                return stack.enter_context(etcd(directory, count, flags, scheme=scheme))
            except ToolMissingError as problem:
                unavailable(problem)

        yield get


@asynccontextmanager
async def connected(*endpoints: object, **options: object) -> AsyncIterator[EtcdEngine]:
    """Open a connection inside the block."""
    parsed = tuple(parse_endpoint(str(endpoint)) for endpoint in endpoints)
    engine = EtcdEngine(EtcdOptions(parsed, "tests", "set", **options))  # type: ignore[arg-type]
    try:
        yield engine
    finally:
        await engine.close()


async def read_again(engine: EtcdEngine) -> Document | None:
    """Read until an answer comes."""
    for _ in range(100):
        with contextlib.suppress(EngineError):
            return (await engine.read()).document
        await asyncio.sleep(0.1)
    raise AssertionError("no answer")


async def test_requests_and_the_watch_go_on_when_members_die(start: Start) -> None:
    cluster = start(3)
    told = 0

    async def watch(engine: EtcdEngine) -> None:
        nonlocal told
        async for _ in engine.changes():
            told += 1

    async with connected(*cluster.endpoints) as engine, connected(*cluster.endpoints) as watching:
        task = asyncio.create_task(watch(watching))
        try:
            await engine.swap(founded(), "")
            await until(lambda: told)
            leader = await asyncio.to_thread(cluster.leader)
            cluster.members[leader].kill()
            assert await read_again(engine) == founded()
            version = (await engine.read()).version
            before = told
            expanded = founded().changed(frozenset({A, B}), "b#1 caught up", 1)
            assert (await engine.swap(expanded, version)).is_done
            await until(lambda: told > before)
            assert await engine.announce(presence(A))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_without_a_majority_nothing_is_answered_from_old_data(start: Start) -> None:
    cluster = start(3)
    async with connected(*cluster.endpoints) as engine:
        await engine.swap(founded(), "")
        for member in cluster.members[1:]:
            member.kill()
        with pytest.raises(EngineError):
            await engine.read()
        with pytest.raises(EngineError):
            await engine.swap(founded().changed(frozenset({A, B}), "b#1 caught up", 1), "2")
        for member in cluster.members[1:]:
            member.start()
        assert await read_again(engine) == founded()


async def test_a_frozen_member_costs_one_second(start: Start) -> None:
    cluster = start(3)
    async with connected(*cluster.endpoints) as engine:
        await engine.swap(founded(), "")
        cluster.members[0].signal(signal.SIGSTOP)
        try:
            assert await read_again(engine) == founded()
        finally:
            cluster.members[0].signal(signal.SIGCONT)


async def test_compaction_disturbs_nobody(start: Start) -> None:
    cluster = start()
    async with connected(*cluster.endpoints) as engine:
        outcome = await engine.swap(founded(), "")
        for n in range(5):
            document = founded().changed(frozenset({A}), f"change {n}", n)
            outcome = await engine.swap(document, outcome.version)
        await asyncio.to_thread(cluster.post, "/v3/kv/compaction", {"revision": outcome.version, "physical": True})
        assert (await engine.read()).version == outcome.version
        async for _ in engine.changes():
            break


async def test_a_full_database_is_named_and_leaves_the_document_readable(start: Start) -> None:
    cluster = start(1, ("--quota-backend-bytes", "200000"))
    async with connected(*cluster.endpoints) as engine:
        outcome = await engine.swap(founded(), "")
        with contextlib.suppress(OSError):
            for n in range(100):
                value = "A" * 40_000
                await asyncio.to_thread(cluster.post, "/v3/kv/put", {"key": f"a{n:03}", "value": value})
        with pytest.raises(EngineError, match=r"database space exceeded.*etcdctl alarm disarm"):
            await engine.swap(founded().changed(frozenset({A}), "no space", 1), outcome.version)
        assert (await engine.read()).document == founded()


async def test_users_need_a_password_and_tokens_are_renewed(start: Start, tmp_path: Path) -> None:
    cluster = start(1, ("--auth-token-ttl", "1", "--bcrypt-cost", "4"))
    await asyncio.to_thread(cluster.enable_users, "broker", "secret")
    (tmp_path / "right").write_text("secret\n")
    (tmp_path / "wrong").write_text("guess")
    (endpoint,) = cluster.endpoints
    async with connected(endpoint, user="broker", password_file=str(tmp_path / "right")) as engine:
        assert (await engine.swap(founded(), "")).is_done
        await engine.announce(presence(A))
        engine._token = "stale.1"  # as after a restart of etcd, or after its time
        assert (await engine.read()).document == founded()
        assert await engine.announce(presence(A))
    async with connected(endpoint) as engine:
        with pytest.raises(EngineError, match="set etcdUser and etcdPasswordFile"):
            await engine.read()
    async with connected(endpoint, user="broker", password_file=str(tmp_path / "wrong")) as engine:
        with pytest.raises(EngineError, match="check etcdUser and etcdPasswordFile"):
            await engine.read()
    async with connected(endpoint, user="broker", password_file=str(tmp_path / "none")) as engine:
        with pytest.raises(EngineError, match=r"none: no such file or directory.*etcdPasswordFile"):
            await engine.read()
    async with connected(endpoint, user="broker", password_file=str(tmp_path / "right"), prefix="/other") as engine:
        with pytest.raises(EngineError, match=r"permission denied.*failoverPrefix"):
            await engine.read()


async def test_tls_checks_both_sides(start: Start, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name in ("server", "client"):
        certificate = authority.issue_cert("127.0.0.1")
        certificate.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
        for blob in certificate.cert_chain_pems:
            blob.write_to_path(str(tmp_path / f"{name}.pem"), append=True)
    flags = ("--cert-file", str(tmp_path / "server.pem"), "--key-file", str(tmp_path / "server.key"))
    asks = ("--client-cert-auth", "--trusted-ca-file", str(tmp_path / "ca.pem"))
    (endpoint,) = start(1, (*flags, *asks), "https").endpoints
    trusted = Tls(str(tmp_path / "ca.pem"), str(tmp_path / "client.pem"), str(tmp_path / "client.key"))
    async with connected(endpoint, tls=trusted) as engine:
        assert await read_again(engine) is None
        assert (await engine.swap(founded(), "")).is_done
    async with connected(endpoint, tls=Tls()) as engine:
        with pytest.raises(EngineError, match=r"the certificate of https://127\.0\.0\.1:.* was not accepted"):
            await engine.read()
    async with connected(endpoint, tls=Tls(trust_cert_path=str(tmp_path / "ca.pem"))) as engine:
        with pytest.raises((EngineError, ssl.SSLError)):
            await engine.read()
    async with connected(f"http://127.0.0.1:{endpoint.port}") as engine:
        with pytest.raises(EngineError):
            await engine.read()


async def test_a_gateway_that_is_off_is_named(start: Start) -> None:
    (endpoint,) = start(1, ("--enable-grpc-gateway=false",)).endpoints
    async with connected(endpoint) as engine:
        with pytest.raises(EngineError, match=r"has no JSON gateway.*--enable-grpc-gateway=true"):
            await engine.read()


async def test_endpoints_of_two_clusters_are_refused(start: Start) -> None:
    (first,), (second,) = start(1).endpoints, start(1, ("--initial-cluster-token", "other")).endpoints
    async with connected(first, second) as engine:
        await engine.read()
        engine._current = 1
        with pytest.raises(EngineError, match=r"two clusters of etcd.*members of one cluster"):
            await engine.read()


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "invalid answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n" + b'{"kvs":[{}]}'[:11], "invalid answer"),
        (b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", "HTTP status 302"),
        (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00", "does not speak HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 5_000_000, "sent more than 4194304 bytes"),
        (b"", "closed the connection before it answered"),
    ],
)
async def test_another_server_at_the_endpoint_is_named(answer: bytes, match: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(answer)
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, connected(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as engine:
        with pytest.raises(EngineError, match=match):
            await engine.read()


async def test_a_dead_endpoint_is_passed_over_even_for_a_swap(start: Start) -> None:
    (endpoint,) = start(1).endpoints
    async with connected(f"http://127.0.0.1:{free_port()}", endpoint) as engine:
        assert (await engine.swap(founded(), "")).is_done


async def test_a_swap_that_was_sent_is_not_sent_to_the_next_endpoint(start: Start) -> None:
    (endpoint,) = start(1).endpoints

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with connected(f"http://127.0.0.1:{port}", endpoint) as engine:
            with pytest.raises(EngineError):
                await engine.swap(founded(), "")
            assert (await engine.read()).document is None


async def test_a_document_that_was_edited_by_hand_is_refused(start: Start) -> None:
    cluster = start()
    async with connected(*cluster.endpoints) as engine:
        await engine.swap(founded(), "")
        key = "L2NvbWV0bXEvdGVzdHMvc2V0L3N0YXRl"  # /cometmq/tests/set/state
        await asyncio.to_thread(cluster.post, "/v3/kv/put", {"key": key, "value": "eyJmb3JtYXQiOiAxfQ=="})
        with pytest.raises(DocumentError, match="do not edit it by hand"):
            await engine.read()


@pytest.mark.parametrize(
    "text", ["", "a:2379", "ftp://a:2379", "http://a", "http://a:x", "https://u@a:1", "http://a:1/p"]
)
def test_an_endpoint_is_a_url_with_a_port(text: str) -> None:
    with pytest.raises(ValueError, match="is not an endpoint: use the form https://host:port"):
        parse_endpoint(text)


def test_the_number_of_endpoints_is_limited() -> None:
    with pytest.raises(ValueError, match="must have 1 to 16 endpoints, not 0"):
        EtcdOptions((), "c", "s")
