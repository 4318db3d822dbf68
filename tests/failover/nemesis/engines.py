"""The engines of a set under the nemesis: a cluster of etcd, or Kubernetes' API in a thread of this process."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from tests.failover.etcd_servers import EtcdCluster, etcd
from tests.failover.kubernetes_server import TOKEN, KubernetesServer
from tests.failover.nemesis.documents import all_documents, document_at

from cometmq.broker.failover.document import Document, decode_document
from cometmq.broker.failover.engines.http_client import Endpoint
from cometmq.broker.failover.engines.kubernetes import KubernetesOptions
from cometmq.loop import close_server
from cometmq.testing.cluster_keys import HOST
from cometmq.testing.ports import free_port
from cometmq.testing.processes import _SERVER, ServerProcess

T = TypeVar("T")
ETCD: Final = "etcd"
KUBERNETES: Final = "kubernetes"
_STATE: Final = "cometmq.dev/state"
_OPENING: Final = """
from cometmq.broker.failover.engines import opening
from cometmq.broker.failover.engines.http_client import Endpoint
from cometmq.broker.failover.engines.kubernetes import KubernetesEngine, KubernetesOptions

def open_without_tls(config, clock):
    place = (Endpoint({host!r}, {port}, False), "mq", config.broker_cluster_name, config.broker_name, {token!r})
    return KubernetesEngine(KubernetesOptions(*place, lease_s=config.failover_lease_ms / 1000), clock=clock)

opening._kubernetes = open_without_tls
"""
"""A pod finds the API server in its environment, with TLS; here it is another one for each member, without TLS."""


class EngineMember(Protocol):
    """A process of the engine, which can be killed and paused."""

    def start(self) -> None: ...
    def kill(self) -> None: ...
    def signal(self, number: signal.Signals) -> None: ...


class NemesisEngine(Protocol):
    """An engine, its document, and how members reach it."""

    @property
    def name(self) -> str: ...
    @property
    def members(self) -> Sequence[EngineMember]: ...
    @property
    def endpoints(self) -> Sequence[Endpoint]: ...
    def keys(self, addresses: Sequence[str]) -> Mapping[str, str]:
        """Return the keys of a member that reaches the endpoints at these addresses."""

    def process(self, name: str, words: Sequence[str], log: Path, addresses: Sequence[str]) -> ServerProcess: ...
    def document(self) -> Document | None:
        """Return the document; ``None`` if there is none, or the engine does not answer."""

    def documents(self) -> list[Document]:
        """Return all documents that there ever were."""


class Etcd:
    """A cluster of etcd, which keeps all documents as revisions."""

    name: Final = ETCD

    def __init__(self, cluster: EtcdCluster, key: str) -> None:
        self._cluster = cluster
        self._key = key
        self.members: Final = cluster.members
        self.endpoints: Final = cluster.endpoints

    def keys(self, addresses: Sequence[str]) -> Mapping[str, str]:
        return {"failover": ETCD, "etcdEndpoints": ";".join(f"http://{one}" for one in addresses)}

    def process(self, name: str, words: Sequence[str], log: Path, _addresses: Sequence[str]) -> ServerProcess:
        return ServerProcess(name, words, log)

    def document(self) -> Document | None:
        found = document_at(self._cluster, self._key)
        return None if found is None else found[0]

    def documents(self) -> list[Document]:
        return [document for _, document in all_documents(self._cluster, self._key)]


class _MemberProcess(ServerProcess):
    """A broker with another opening of its engine."""

    def __init__(self, name: str, words: Sequence[str], log: Path, opening: str) -> None:
        super().__init__(name, words, log)
        python, option, text, *arguments = self._command
        self._command = (python, option, opening + text, *arguments)
        assert text == _SERVER


class Kubernetes:
    """Kubernetes' API on a loop in a thread. What it has stored outlives its end, as in a cluster of three.

    :param directory: of the file with the service account's token.
    """

    name: Final = KUBERNETES

    def __init__(self, directory: Path, cluster: str, set_name: str) -> None:
        self._token = directory / "token"
        self._token.write_text(TOKEN)
        self._server = _Recorded()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kubernetes", daemon=True)
        self._port = free_port(HOST)
        self.endpoints: Final = (Endpoint(HOST, self._port, False),)
        self.members: Final = (self,)
        label = KubernetesOptions(self.endpoints[0], "mq", cluster, set_name).label
        self._lease = f"cometmq-{label}"
        self._listening: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def keys(self, _addresses: Sequence[str]) -> Mapping[str, str]:
        return {"failover": KUBERNETES, "kubernetesNamespace": "mq"}

    def process(self, name: str, words: Sequence[str], log: Path, addresses: Sequence[str]) -> ServerProcess:
        host, _, port = addresses[0].rpartition(":")
        return _MemberProcess(name, words, log, _OPENING.format(host=host, port=port, token=str(self._token)))

    def document(self) -> Document | None:
        documents = self.documents()
        return documents[-1] if documents and self._listening is not None else None

    def documents(self) -> list[Document]:
        return [decode_document(state.encode()) for state in list(self._server.states.get(self._lease, []))]

    # --- the process ------------------------------------------------------------------------------
    @contextmanager
    def running(self) -> Iterator[Kubernetes]:
        """Run the thread inside the block, and begin to answer."""
        self._thread.start()
        try:
            self.start()
            yield self
        finally:
            self.kill()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def start(self) -> None:
        """Answer requests, unless this is so."""
        self._call(self._start())

    def kill(self) -> None:
        """Reset all connections, and answer nothing more."""
        self._call(self._kill())

    def signal(self, number: signal.Signals) -> None:
        """Hold all requests and answers, or go on."""
        event = self._server.runs
        self._loop.call_soon_threadsafe(event.clear if number == signal.SIGSTOP else event.set)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _start(self) -> None:
        self._server.runs.set()
        if self._listening is None:
            self._listening = await asyncio.start_server(self._accept, HOST, self._port)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._server.serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _kill(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            await close_server(listening)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Recorded(KubernetesServer):
    """The API server, which can be paused, and remembers each state of a set."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = asyncio.Event()
        self.states: dict[str, list[str]] = {}

    def _store(self, kind: str, lease: dict[str, Any]) -> dict[str, Any]:
        stored = super()._store(kind, lease)
        state = stored["metadata"]["annotations"].get(_STATE)
        if state is not None:
            self.states.setdefault(stored["metadata"]["name"], []).append(state)
        return stored

    async def _respond(self, *given: Any) -> None:
        await self.runs.wait()
        await super()._respond(*given)


@contextmanager
def running_engine(name: str, directory: Path, members: int, cluster: str, set_name: str) -> Iterator[NemesisEngine]:
    """Run an engine inside the block.

    :param members: of etcd.
    :raises ToolMissingError: there is no etcd on this machine.
    """
    if name == KUBERNETES:
        with Kubernetes(directory, cluster, set_name).running() as kubernetes:
            yield kubernetes
    else:
        with etcd(directory, members) as servers:
            yield Etcd(servers, f"/cometmq/{cluster}/{set_name}/state")
