"""Kubernetes' API as the engine: leases of ``coordination.k8s.io/v1`` in the pod's namespace.

The lease ``cometmq-<set>`` has the document in an annotation, and ``cometmq-<set>-<name>`` a replica's presence. The
document's version is the lease's ``resourceVersion``; an update of an older version is refused with 409. A presence is
gone once its ``renewTime`` has not *changed* for the time of a lease on this process's monotonic clock: times of two
machines are never compared (as in client-go). A process counts a presence as there when it first sees it.

Kubernetes has no transaction over two objects, so the guard of an election is checked just before the swap. Safety does
not rest on it. The service account needs the verbs get, list, watch, create and update for leases, and patch for pods:
members that have the names of their pods label these (``pod_labels.py``).
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq.broker.failover.document import Document, decode_document, encode_document
from cometmq.broker.failover.engines.http_client import Call, Endpoint, HttpConnection
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
from cometmq.broker.failover.engines.pod_labels import PodLabels
from cometmq.broker.limits import ENGINE_TRY_SECONDS, ENGINE_WATCH_SECONDS
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.errors import reason_of
from cometmq.remoting.tls.contexts import FreshContext, Tls
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

ACCOUNT_DIRECTORY: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_STATE: Final = "cometmq.dev/state"
_PRESENCE: Final = "cometmq.dev/presence"
_REPLICA: Final = "cometmq.dev/replica"
_SET: Final = "cometmq.dev/set"
_NOT_NAME: Final = re.compile(r"[^a-z0-9-]+")
_TOKEN_SECONDS: Final = 60.0
"""Age of a token after which its file is read again, because Kubernetes replaces it."""
_RBAC: Final = "give the service account the verbs get, list, watch, create and update for leases in this namespace"


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """The options of a connection to Kubernetes' API.

    :param token_file: the path of the service account's token.
    """

    endpoint: Endpoint
    namespace: str
    cluster: str
    set_name: str
    token_file: str = f"{ACCOUNT_DIRECTORY}/token"
    tls: Tls = field(default_factory=lambda: Tls(trust_cert_path=f"{ACCOUNT_DIRECTORY}/ca.crt"))
    lease_s: float = 4.0

    @property
    def label(self) -> str:
        """The set's name as a label and as a part of names: lower case, with a digest of the real names."""
        names = f"{self.cluster}/{self.set_name}"
        digest = hashlib.sha256(names.encode()).hexdigest()[:8]
        return f"{_NOT_NAME.sub('-', names.lower()).strip('-')[:40]}-{digest}"


class _Metadata(msgspec.Struct, rename="camel", frozen=True):
    name: str
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Spec(msgspec.Struct, rename="camel", frozen=True):
    renew_time: str | None = None


class _Lease(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec = _Spec()


class _LeaseList(msgspec.Struct, frozen=True):
    items: list[_Lease]


class _WatchEvent(msgspec.Struct, frozen=True):
    type: str
    object: _Lease


class _Status(msgspec.Struct, frozen=True):
    message: str = ""


@dataclass(slots=True)
class _Sight:
    """The newest sight of a presence in this process."""

    content: str
    renew_time: str | None
    at: float


class KubernetesEngine:
    """One member's connection to Kubernetes' API.

    :raises TlsError: a file of the TLS options cannot be used.
    """

    def __init__(self, options: KubernetesOptions, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._clock = clock
        self._tls: FreshContext | None = options.tls.fresh_context() if options.endpoint.is_tls else None
        self._connection = HttpConnection(options.endpoint, self._tls, clock)
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{options.namespace}/leases"
        self._name = f"cometmq-{options.label}"
        self._token = ""
        self._token_at = -_TOKEN_SECONDS
        self._sights: dict[str, _Sight] = {}
        self._own: _Lease | None = None
        self._renewals = 0
        self._renewed_at = 0.0
        """Time of the last announcement; 0 before the first one."""
        self._replicas: frozenset[str] = frozenset()
        self._labels = PodLabels(options.endpoint, self._tls, options.namespace, self._call, clock)

    # --- the interface ----------------------------------------------------------------------------
    async def read(self) -> Snapshot:
        """Return the content at a moment after the call."""
        status, body = await self._ask("GET", f"{self._path}?labelSelector={_SET}%3D{self._options.label}")
        if status != 200:
            raise self._error(status, body)
        document, version = None, ""
        presences = {}
        for lease in self._decode(body, _LeaseList).items:
            if lease.metadata.name == self._name:
                document, version = self._document(lease)
                self._replicas = frozenset(replica.name for replica in document.replicas)
            elif self._is_present(lease):
                name = lease.metadata.labels.get(_REPLICA, "")
                content = lease.metadata.annotations[_PRESENCE]
                presences[name] = decode_presence(name, content.encode(), _digest(content))
        return Snapshot(document, version, presences)

    async def swap(self, document: Document, version: str, guard: Guard | None = None) -> Outcome:
        """Replace the document if its version is ``version``, and the guard held just before."""
        if guard is not None:
            snapshot = await self.read()
            presence = snapshot.presences.get(guard.name)
            if guard.version != ("" if presence is None else presence.version):
                return Outcome(False, snapshot.document, snapshot.version)
        annotations = {_STATE: encode_document(document).decode()}
        spec = {"holderIdentity": str(document.master), "leaseTransitions": min(document.epoch, 2**31 - 1)}
        status, body = await self._write(self._name, version, {}, annotations, spec)
        if status in (200, 201):
            if guard is not None and guard.removes:
                await self._remove(guard.name)
            return Outcome(True, document, self._decode(body, _Lease).metadata.resource_version)
        if status in (404, 409):
            snapshot = await self.read()
            return Outcome(False, snapshot.document, snapshot.version)
        raise self._error(status, body)

    async def announce(self, presence: Presence) -> bool:
        """Announce or renew a presence. Return False if it had gone."""
        was_there = await self._announce(presence)
        self._labels.show(presence, self._replicas)
        return was_there

    async def _announce(self, presence: Presence) -> bool:
        name = presence.member.name
        content = encode_presence(presence).decode()
        own = self._own
        if own is not None:
            status, body = await self._put_presence(name, own.metadata.resource_version, content)
            if status == 200:
                self._own = self._decode(body, _Lease)
                renewed_at, self._renewed_at = self._renewed_at, self._clock.monotonic()
                return self._renewed_at - renewed_at < self._options.lease_s
            if status not in (404, 409):
                raise self._error(status, body)
            self._own = None
        found = await self._get(self._lease_name(name))
        known = None if found is None else found.metadata.annotations.get(_PRESENCE)
        if found is not None and known is not None and self._is_present(found):
            demand_same_member(presence, decode_presence(name, known.encode(), ""), is_first=not self._renewed_at)
        version = "" if found is None else found.metadata.resource_version
        status, body = await self._put_presence(name, version, content)
        if status not in (200, 201):
            raise self._error(status, body)
        self._own = self._decode(body, _Lease)
        self._renewed_at = self._clock.monotonic()
        return own is None

    async def withdraw(self) -> None:
        """Remove this process's presence at once."""
        own, self._own = self._own, None
        if own is not None:
            await self._put_presence(own.metadata.labels[_REPLICA], own.metadata.resource_version, None)

    async def changes(self) -> AsyncIterator[None]:
        """Yield after each change, and whenever the watch begins anew. Renewals are no changes."""
        query = f"watch=1&timeoutSeconds={ENGINE_WATCH_SECONDS:.0f}&labelSelector={_SET}%3D{self._options.label}"
        contents: dict[str, str] = {}
        while True:
            connection = HttpConnection(self._options.endpoint, self._tls, self._clock)
            try:
                call = await self._call("GET", f"{self._path}?{query}")
                async for line in connection.lines(call, ENGINE_TRY_SECONDS, self._options.lease_s):
                    if not line or self._is_change(line, contents):
                        yield
            except EngineError as error:
                _log.debug("the watch at %s has ended: %s", connection.endpoint, error)
            finally:
                connection.abort()
            yield
            await self._clock.sleep(ENGINE_TRY_SECONDS)

    def _is_change(self, line: bytes, contents: dict[str, str]) -> bool:
        """Return whether a watched event is more than a renewal, or shows that another presence has ended."""
        event = self._decode(line, _WatchEvent)
        metadata = event.object.metadata
        content = "" if event.type == "DELETED" else str(metadata.annotations)
        is_new = contents.get(metadata.name) != content
        contents[metadata.name] = content
        if metadata.name != self._name:
            self._is_present(event.object)
        limit = self._clock.monotonic() - self._options.lease_s
        ended = [name for name, sight in self._sights.items() if sight.at < limit and name in contents]
        for name in ended:
            del contents[name]
        return is_new or bool(ended)

    async def close(self) -> None:
        """Close all connections."""
        await self._labels.close()
        self._connection.abort()

    # --- presences --------------------------------------------------------------------------------
    def _lease_name(self, replica: str) -> str:
        """Return the name of a replica's lease; replicas whose names differ in case have different leases."""
        lower = _NOT_NAME.sub("-", replica.lower())
        return f"{self._name}-{lower if lower == replica else f'{lower}-{_digest(replica)}'}".rstrip("-")

    def _is_present(self, lease: _Lease) -> bool:
        """Return whether a presence was renewed in the time of a lease, as far as this process has seen."""
        content = lease.metadata.annotations.get(_PRESENCE)
        name, now = lease.metadata.name, self._clock.monotonic()
        if content is None:
            self._sights.pop(name, None)
            return False
        sight = self._sights.get(name)
        if sight is None or (sight.content, sight.renew_time) != (content, lease.spec.renew_time):
            self._sights[name] = _Sight(content, lease.spec.renew_time, now)
            return True
        return now - sight.at < self._options.lease_s

    async def _put_presence(self, replica: str, version: str, content: str | None) -> tuple[int, bytes]:
        self._renewals += 1
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        renewed = now.replace(microsecond=self._renewals % 1_000_000)  # changes even if the clock stands still
        spec = {
            "holderIdentity": replica,
            "leaseDurationSeconds": max(1, round(self._options.lease_s)),
            "renewTime": f"{renewed:%Y-%m-%dT%H:%M:%S.%f}Z",
        }
        annotations = {} if content is None else {_PRESENCE: content}
        return await self._write(self._lease_name(replica), version, {_REPLICA: replica}, annotations, spec)

    async def _remove(self, replica: str) -> None:
        """Remove the presence of a dead process; if that fails, it ends by itself."""
        try:
            found = await self._get(self._lease_name(replica))
            if found is not None:
                await self._put_presence(replica, found.metadata.resource_version, None)
        except EngineError as error:
            _log.debug("the presence of %s was not removed: %s", replica, error)

    # --- requests ---------------------------------------------------------------------------------
    async def _get(self, name: str) -> _Lease | None:
        status, body = await self._ask("GET", f"{self._path}/{name}")
        if status == 404:
            return None
        if status != 200:
            raise self._error(status, body)
        lease: _Lease = self._decode(body, _Lease)
        return lease

    async def _write(
        self, name: str, version: str, labels: dict[str, str], annotations: dict[str, str], spec: dict[str, Any]
    ) -> tuple[int, bytes]:
        """Create a lease, or update it if it still has a version; return the status and the answer."""
        metadata: dict[str, Any] = {
            "name": name,
            "namespace": self._options.namespace,
            "labels": {_SET: self._options.label, **labels},
            "annotations": annotations,
        }
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        if not version:
            return await self._ask("POST", self._path, lease)
        metadata["resourceVersion"] = version
        return await self._ask("PUT", f"{self._path}/{name}", lease)

    async def _ask(self, method: str, target: str, body: object = None) -> tuple[int, bytes]:
        call = await self._call(method, target, b"" if body is None else msgspec.json.encode(body))
        status, answer = await self._connection.request(call, ENGINE_TRY_SECONDS)
        if status == 401:
            self._token_at = -_TOKEN_SECONDS
        return status, answer

    async def _call(self, method: str, target: str, body: bytes = b"", content_type: str = "application/json") -> Call:
        now = self._clock.monotonic()
        if not self._token or now - self._token_at >= _TOKEN_SECONDS:
            path = Path(self._options.token_file)
            try:
                self._token = (await in_thread(path.read_text)).strip()
            except OSError as error:
                raise EngineError(
                    f"{path}: {reason_of(error)}",
                    next_step="run the broker in a pod with a service account, or set failover=etcd",
                ) from error
            self._token_at = now
        headers = (("Authorization", f"Bearer {self._token}"), ("Accept", "application/json"))
        return Call(method, target, headers, body, content_type)

    def _decode(self, data: bytes, kind: type[Any]) -> Any:
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise EngineError(
                f"{self._options.endpoint} has sent an invalid answer: {error}",
                next_step="check that the endpoint is Kubernetes' API",
            ) from error

    def _document(self, lease: _Lease) -> tuple[Document, str]:
        content = lease.metadata.annotations.get(_STATE, "")
        return decode_document(content.encode()), lease.metadata.resource_version

    def _error(self, status: int, body: bytes) -> EngineError:
        try:
            text = msgspec.json.decode(body, type=_Status).message[:300]
        except (msgspec.MsgspecError, UnicodeDecodeError):
            text = ""
        step = _RBAC if status in (401, 403) else "check Kubernetes' API server"
        return EngineError(f"Kubernetes at {self._options.endpoint}: {text or f'HTTP status {status}'}", next_step=step)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
