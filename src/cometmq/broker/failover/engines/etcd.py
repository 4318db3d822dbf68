"""etcd as the engine, over the JSON gateway on its client port (etcd 3.4 and newer).

Keys, below ``<prefix>/<cluster>/<set>``::

    /state           the document
    /alive/<name>    a replica's presence, with its lease

The document's version is the key's ``mod_revision``. Presences are renewed by their lease, which writes nothing. Reads
are linearizable. The answer to a swap is unknown once its bytes were sent to an endpoint that does not answer.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq.broker.failover.document import Document, check_name, decode_document, encode_document
from cometmq.broker.failover.engines import etcd_wire as wire
from cometmq.broker.failover.engines.http_client import Call, Endpoint, HttpConnection, NotSentError
from cometmq.broker.failover.engines.interface import (
    EngineError,
    Guard,
    Outcome,
    Presence,
    Snapshot,
    decode_presence,
    demand_same_member,
    encode_presence,
)
from cometmq.broker.limits import ENGINE_TRY_SECONDS, ENGINE_WATCH_SECONDS, MAX_ENGINE_ENDPOINTS
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.errors import reason_of
from cometmq.remoting.tls.contexts import FreshContext, Tls
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

_LEAST_TTL_S: Final = 2
"""The smallest time of a lease that etcd grants."""
_UNAUTHENTICATED: Final = 16
_NEXT_STEPS: Final = (
    ("database space exceeded", "compact and defragment etcd, then run: etcdctl alarm disarm"),
    ("permission denied", "give the user of etcdUser the role to read and write the keys below failoverPrefix"),
    ("authentication failed", "check etcdUser and etcdPasswordFile"),
    ("user name is empty", "set etcdUser and etcdPasswordFile: this etcd checks users"),
    ("authentication is not enabled", "remove etcdUser, or run: etcdctl auth enable"),
    ("no leader", "start enough members of etcd for a majority"),
    ("too many requests", "etcd is overloaded: look at its disk"),
)


@dataclass(frozen=True, slots=True)
class EtcdOptions:
    """The options of a connection to etcd.

    :param prefix: the beginning of all keys.
    :param user: the user of etcd; empty if it does not check users.
    :param password_file: the path of a file with the user's password.
    """

    endpoints: tuple[Endpoint, ...]
    cluster: str
    set_name: str
    prefix: str = "/cometmq"
    user: str = ""
    password_file: str = ""
    tls: Tls = field(default_factory=Tls)
    lease_s: float = 4.0

    def __post_init__(self) -> None:
        if not 0 < len(self.endpoints) <= MAX_ENGINE_ENDPOINTS:
            raise ValueError(
                f"etcdEndpoints must have 1 to {MAX_ENGINE_ENDPOINTS} endpoints, not {len(self.endpoints)}"
            )

    @property
    def root(self) -> str:
        """The beginning of the set's keys."""
        return f"{self.prefix.rstrip('/')}/{self.cluster}/{self.set_name}"


class EtcdEngine:
    """One member's connection to etcd.

    :raises TlsError: a file of the TLS options cannot be used.
    """

    def __init__(self, options: EtcdOptions, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._clock = clock
        needs_tls = any(endpoint.is_tls for endpoint in options.endpoints)
        self._tls: FreshContext | None = options.tls.fresh_context() if needs_tls else None
        self._connections = [HttpConnection(endpoint, self._tls, clock) for endpoint in options.endpoints]
        self._current = 0
        self._token = ""
        self._cluster_id = ""
        self._lease = ""
        self._written: Presence | None = None
        self._was_announced = False
        self._root = f"{options.root}/"
        self._state_key = f"{self._root}state"
        self._alive = f"{self._root}alive/"

    # --- the interface ----------------------------------------------------------------------------
    async def read(self) -> Snapshot:
        """Return the content at a moment after the call."""
        document, version = None, ""
        presences = {}
        for pair in await self._range(self._root, _after(self._root)):
            key = wire.unb64(pair.key).decode("utf-8", "replace")
            if key == self._state_key:
                document, version = decode_document(wire.value_of(pair)), pair.mod_revision
            elif key.startswith(self._alive):
                name = key.removeprefix(self._alive)
                presences[name] = decode_presence(name, wire.value_of(pair), pair.mod_revision)
        return Snapshot(document, version, presences)

    async def swap(self, document: Document, version: str, guard: Guard | None = None) -> Outcome:
        """Replace the document if its version is ``version``, and the guard holds."""
        compare = [wire.is_at(self._state_key, version)]
        success = [wire.put(self._state_key, encode_document(document))]
        if guard is not None:
            key = self._alive + check_name(guard.name)
            compare.append(wire.is_at(key, guard.version))
            if guard.removes:
                success.append(wire.delete(key))
        answer = await self._txn(compare, success, [wire.get(self._state_key)], repeats=False)
        if answer.succeeded:
            return Outcome(True, document, answer.header.revision)
        return Outcome(False, *_document(answer, 0))

    async def announce(self, presence: Presence) -> bool:
        """Announce or renew a presence. Return False if it had gone."""
        was_there = True
        if self._lease and not await self._renew(presence):
            was_there = False
            self._lease, self._written = "", None
        if not self._lease:
            ttl = max(_LEAST_TTL_S, round(self._options.lease_s))
            self._lease = (await self._post("/v3/lease/grant", {"TTL": str(ttl)}, wire.LeaseResponse)).ID
        if self._written != presence:
            await self._write(presence)
            self._written = presence
        return was_there

    async def _renew(self, presence: Presence) -> bool:
        """Renew the lease; return whether it and the key are still there."""
        answer = await self._post("/v3/lease/keepalive", {"ID": self._lease}, wire.KeepAliveResponse)
        if answer.result.TTL in ("", "0"):
            return False
        if self._written is None:
            return True
        pairs = await self._range(self._alive + presence.member.name)
        return bool(pairs) and pairs[0].lease == self._lease

    async def _write(self, presence: Presence) -> None:
        """Write the key; one that another process of the same store has left is replaced."""
        key = self._alive + check_name(presence.member.name)
        version = ""
        for _ in range(3):
            success = [wire.put(key, encode_presence(presence), self._lease)]
            answer = await self._txn([wire.is_at(key, version)], success, [wire.get(key)])
            if answer.succeeded:
                self._was_announced = True
                return
            pairs = _pairs(answer, 0)
            version = pairs[0].mod_revision if pairs else ""
            if pairs:
                known = decode_presence(presence.member.name, wire.value_of(pairs[0]), version)
                demand_same_member(presence, known, is_first=not self._was_announced)
        raise EngineError(f"the presence {key} changes all the time", next_step="check that its name is used only once")

    async def withdraw(self) -> None:
        """Remove this process's presence at once."""
        lease, self._lease, self._written = self._lease, "", None
        if lease:
            await self._post("/v3/lease/revoke", {"ID": lease}, dict)

    async def changes(self) -> AsyncIterator[None]:
        """Yield after each change, and whenever the watch begins anew."""
        body = {"create_request": {"key": wire.b64(self._root), "range_end": wire.b64(_after(self._root))}}
        at = self._current
        while True:
            connection = HttpConnection(self._connections[at].endpoint, self._tls, self._clock)
            try:
                call = await self._call("/v3/watch", body)
                async for line in connection.lines(call, ENGINE_TRY_SECONDS, ENGINE_WATCH_SECONDS):
                    if b'"error"' in line or b'"canceled":true' in line:
                        self._token = ""
                        break
                    yield
            except EngineError as error:
                _log.debug("the watch at %s has ended: %s", connection.endpoint, error)
            finally:
                connection.abort()
            at = (at + 1) % len(self._connections)
            await self._clock.sleep(ENGINE_TRY_SECONDS)
            yield

    async def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.abort()

    # --- requests ---------------------------------------------------------------------------------
    async def _range(self, key: str, end: str = "") -> list[wire.KeyValue]:
        """Return keys, at one moment. A transaction would do so too, but not while the database is full."""
        body = {"key": wire.b64(key), "range_end": wire.b64(end)}
        answer = await self._post("/v3/kv/range", body, wire.RangeResponse)
        self._check_cluster(answer.header.cluster_id)
        return answer.kvs

    async def _txn(
        self, compare: list[Any], success: list[Any], failure: list[Any], *, repeats: bool = True
    ) -> wire.TxnResponse:
        body = {"compare": compare, "success": success, "failure": failure}
        answer = await self._post("/v3/kv/txn", body, wire.TxnResponse, repeats=repeats)
        self._check_cluster(answer.header.cluster_id)
        return answer

    def _check_cluster(self, cluster_id: str) -> None:
        if self._cluster_id and cluster_id != self._cluster_id:
            raise EngineError(
                f"the endpoints belong to two clusters of etcd, {self._cluster_id} and {cluster_id}",
                next_step="list only members of one cluster in etcdEndpoints, and start the broker again",
            )
        self._cluster_id = cluster_id

    async def _post(self, path: str, body: object, kind: type[wire.T], *, repeats: bool = True) -> wire.T:
        """Return the answer of the first endpoint that gives one.

        :param repeats: False if the request must not be executed twice: only endpoints that cannot have got it are
            passed over.
        """
        failure: EngineError | None = None
        for _ in range(len(self._connections)):
            connection = self._connections[self._current]
            try:
                return wire.decode(await self._ask(connection, path, body), kind, connection.endpoint)
            except NotSentError as error:
                failure = error
            except EngineError as error:
                failure = error
                if not repeats:
                    self._next_endpoint()
                    raise
            self._next_endpoint()
        assert failure is not None
        raise failure

    def _next_endpoint(self) -> None:
        self._current = (self._current + 1) % len(self._connections)

    async def _ask(self, connection: HttpConnection, path: str, body: object) -> bytes:
        """Return the answer of one endpoint; sign in again if the token has expired."""
        for _ in range(2):
            call = await self._call(path, body, connection)
            status, answer = await connection.request(call, ENGINE_TRY_SECONDS)
            if status == 200:
                return answer
            error = _error(connection.endpoint, status, answer)
            if not isinstance(error, _ExpiredTokenError) or not self._options.user:
                raise error
            self._token = ""
        raise error

    async def _call(self, path: str, body: object, connection: HttpConnection | None = None) -> Call:
        if self._options.user and not self._token:
            await self._sign_in(connection or self._connections[self._current])
        headers: tuple[tuple[str, str], ...] = (("Grpc-Metadata-hasleader", "true"),)
        if self._token:
            headers += (("Authorization", self._token),)
        return Call("POST", path, headers, msgspec.json.encode(body))

    async def _sign_in(self, connection: HttpConnection) -> None:
        options = self._options
        try:
            password = (await in_thread(Path(options.password_file).read_text)).strip()
        except OSError as error:
            raise NotSentError(
                f"{options.password_file}: {reason_of(error)}", next_step="set etcdPasswordFile to a readable file"
            ) from error
        body = msgspec.json.encode({"name": options.user, "password": password})
        call = Call("POST", "/v3/auth/authenticate", (), body)
        try:
            status, answer = await connection.request(call, ENGINE_TRY_SECONDS)
        except EngineError as error:
            raise NotSentError(error.message, next_step=error.next_step) from error
        if status != 200:
            error_ = _error(connection.endpoint, status, answer)
            raise NotSentError(error_.message, next_step=error_.next_step)
        self._token = wire.decode(answer, wire.TokenResponse, connection.endpoint).token


class _ExpiredTokenError(NotSentError):
    """The token is no longer valid, so nothing was executed."""


def _error(endpoint: Endpoint, status: int, body: bytes) -> EngineError:
    """Return the error of an answer."""
    try:
        answer = msgspec.json.decode(body, type=wire.ErrorResponse)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        answer = wire.ErrorResponse()
    text = answer.text[:300]
    if status == 404 and not text:
        return EngineError(
            f"{endpoint} has no JSON gateway",
            next_step="start etcd with --enable-grpc-gateway=true (in its file: enable-grpc-gateway: true), and use "
            "the client port for HTTP",
        )
    if answer.code == _UNAUTHENTICATED or "auth token" in text or "auth store is old" in text:
        return _ExpiredTokenError(f"etcd at {endpoint}: {text}", next_step="check etcdUser and etcdPasswordFile")
    step = next((step for word, step in _NEXT_STEPS if word in text), "check etcd's log")
    return EngineError(f"etcd at {endpoint}: {text or f'HTTP status {status}'}", next_step=step)


def _after(prefix: str) -> str:
    """Return the end of the range of all keys with a prefix that ends with a slash."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _pairs(answer: wire.TxnResponse, at: int) -> list[wire.KeyValue]:
    try:
        found = answer.responses[at].response_range
    except IndexError:
        found = None
    if found is None:
        raise EngineError("etcd has sent an answer without the keys", next_step="check etcd's version: 3.4 or newer")
    return found.kvs


def _document(answer: wire.TxnResponse, at: int) -> tuple[Document | None, str]:
    pairs = _pairs(answer, at)
    if not pairs:
        return None, ""
    return decode_document(wire.value_of(pairs[0])), pairs[0].mod_revision
