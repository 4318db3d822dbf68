"""Kubernetes' API as kube-apiserver 1.35.4 answers: leases (create, stale, unconditional, watch) and labels of pods."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import h11

from cometmq.broker.failover.engines.http_client import Endpoint
from cometmq.loop import close_server

TOKEN = "service-account"


def status(code: int, reason: str, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code}


class KubernetesServer:
    """The API server of one namespace."""

    def __init__(self) -> None:
        self.leases: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, dict[str, str]] = {}
        """Their labels."""
        self.version = 100
        self.endpoint = Endpoint("127.0.0.1", 0, False)
        self.is_forbidden = False
        self.requests: list[str] = []
        self._watchers: set[asyncio.Queue[dict[str, Any]]] = set()

    def _store(self, kind: str, lease: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        stored: dict[str, Any] = json.loads(json.dumps(lease))
        stored["metadata"]["resourceVersion"] = str(self.version)
        self.leases[stored["metadata"]["name"]] = stored
        for watcher in self._watchers:
            watcher.put_nowait({"type": kind, "object": stored})
        return stored

    def answer(self, method: str, name: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of an answer."""
        if method == "GET":
            if not name:
                return 200, {"kind": "LeaseList", "items": list(self.leases.values())}
            found = self.leases.get(name)
            return (200, found) if found else status(404, "NotFound", f'leases "{name}" not found')
        lease = json.loads(body)
        key = lease["metadata"]["name"]
        if method == "POST":
            if key in self.leases:
                return status(409, "AlreadyExists", f'leases "{key}" already exists')
            return 201, self._store("ADDED", lease)
        known = self.leases.get(name)
        if known is None:
            return status(404, "NotFound", f'leases "{name}" not found')
        version = lease["metadata"].get("resourceVersion")
        if version is None:
            return status(422, "Invalid", "metadata.resourceVersion: must be specified for an update")
        if version != known["metadata"]["resourceVersion"]:
            return status(
                409, "Conflict", "the object has been modified; please apply your changes to the latest version"
            )
        return 200, self._store("MODIFIED", lease)

    def patch(self, name: str, body: bytes, content_type: bytes) -> tuple[int, dict[str, Any]]:
        """Merge the labels of a pod."""
        if content_type != b"application/merge-patch+json":
            return status(415, "UnsupportedMediaType", "the body of the request was in an unknown format")
        if name not in self.pods:
            return status(404, "NotFound", f'pods "{name}" not found')
        self.pods[name] |= json.loads(body)["metadata"]["labels"]
        return 200, {"kind": "Pod", "metadata": {"name": name, "labels": self.pods[name]}}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        connection = h11.Connection(h11.SERVER)
        try:
            while True:
                request, body = None, b""
                while True:
                    event = connection.next_event()
                    if event is h11.NEED_DATA:
                        connection.receive_data(await reader.read(65_536))
                    elif isinstance(event, h11.Request):
                        request = event
                    elif isinstance(event, h11.Data):
                        body += event.data
                    elif isinstance(event, h11.EndOfMessage):
                        break
                    else:
                        return
                assert request is not None
                await self._respond(connection, writer, request, body)
                connection.start_next_cycle()
        except (OSError, h11.ProtocolError):
            pass

    async def _respond(
        self, connection: h11.Connection, writer: asyncio.StreamWriter, request: h11.Request, body: bytes
    ) -> None:
        target = urlsplit(request.target.decode())
        name = target.path.rpartition("/")[2].removesuffix("leases")
        headers = dict(request.headers)
        self.requests.append(f"{request.method.decode()} {name}")
        if headers.get(b"authorization") != f"Bearer {TOKEN}".encode():
            code, content = status(401, "Unauthorized", "Unauthorized")
        elif self.is_forbidden:
            code, content = status(403, "Forbidden", "leases is forbidden: User cannot list resource")
        elif "watch" in parse_qs(target.query):
            await self._watch(connection, writer)
            return
        elif target.path.startswith("/api/v1/namespaces/mq/pods/"):
            code, content = self.patch(name, body, headers[b"content-type"])
        else:
            code, content = self.answer(request.method.decode(), name, body)
        data = json.dumps(content).encode()
        answer = [("Content-Type", "application/json"), ("Content-Length", str(len(data)))]
        for part in (h11.Response(status_code=code, headers=answer), h11.Data(data=data), h11.EndOfMessage()):
            writer.write(connection.send(part) or b"")
        await writer.drain()

    async def _watch(self, connection: h11.Connection, writer: asyncio.StreamWriter) -> None:
        events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for lease in self.leases.values():
            events.put_nowait({"type": "ADDED", "object": lease})
        self._watchers.add(events)
        try:
            head = h11.Response(status_code=200, headers=[("Transfer-Encoding", "chunked")])
            writer.write(connection.send(head) or b"")
            while True:
                line = json.dumps(await events.get()).encode() + b"\n"
                writer.write(connection.send(h11.Data(data=line)) or b"")
                await writer.drain()
        finally:
            self._watchers.discard(events)


@asynccontextmanager
async def kubernetes() -> AsyncIterator[KubernetesServer]:
    """Run an API server inside the block."""
    fake = KubernetesServer()
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(fake.serve(reader, writer))
        task.add_done_callback(lambda _: writer.close())  # also if it is cancelled before it begins
        tasks.add(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    fake.endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1], False)
    try:
        yield fake
    finally:
        await close_server(server)
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the transports close their sockets
