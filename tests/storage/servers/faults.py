"""A proxy before an S3 server that fails as real ones do."""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

_HOP_BY_HOP = ("connection", "content-length", "date", "server", "transfer-encoding")
_SLOW_DOWN = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
_INTERNAL = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>An internal error.</Message></Error>"


@dataclass
class Faults:
    """What the next matching requests meet; ``left`` of them."""

    kind: str = ""
    """A status such as ``503``; ``lost``: the server acts, the answer is lost; ``cut``: the connection ends within the
    request; ``error-in-200``: status 200 with an error as its body."""
    left: int = 0
    matches: Callable[[str, str], bool] = lambda method, path: True
    """Of method and path with query."""
    code: bytes = b""
    """Body of the answer with a status, if not SlowDown."""
    seen: list[str] = field(default_factory=list)
    client_port: int = 0
    """Of the last request."""
    headers: dict[str, str] = field(default_factory=dict)
    """Of the last request, by their names in lower case."""
    sent_bytes: int = 0
    """Bytes in the bodies of all answers."""
    delay_s: float = 0.0
    """Pause before each answer."""
    edit: Callable[[str, bytes], bytes] = lambda path, content: content
    """Of path with query and content of the server's answer: returns the content to send."""

    def fail(self, kind: str, times: int, matches: Callable[[str, str], bool] | None = None, code: bytes = b"") -> None:
        """Let the next requests fail."""
        self.kind, self.left, self.code = kind, times, code
        self.matches = matches or (lambda method, path: True)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = urlsplit(upstream)
        self.faults = Faults()
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *arguments: Any) -> None:
        pass

    def _take_fault(self) -> str:
        faults = self.server.faults
        with self.server.lock:
            faults.seen.append(f"{self.command} {self.path}")
            faults.client_port = self.client_address[1]
            faults.headers = {name.lower(): value for name, value in self.headers.items()}
            if faults.left <= 0 or not faults.matches(self.command, self.path):
                return ""
            faults.left -= 1
            return faults.kind

    def _forward(self) -> None:
        self._serve(self._take_fault())

    def _serve(self, fault: str) -> object:
        length = int(self.headers.get("Content-Length") or 0)
        if fault == "cut":
            self.rfile.read(length // 2)
            return self._hang_up()
        body = self.rfile.read(length)
        if fault.isdigit():
            return self._answer(int(fault), self.server.faults.code or _SLOW_DOWN)
        if fault == "error-in-200":
            return self._answer(200, _INTERNAL)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        if self.server.faults.delay_s:
            time.sleep(self.server.faults.delay_s)
        upstream = http.client.HTTPConnection(self.server.upstream.hostname or "", self.server.upstream.port)
        try:
            upstream.request(self.command, self.path, body, headers)
            answer = upstream.getresponse()
            content = answer.read()
        finally:
            upstream.close()
        if fault == "lost":
            return self._hang_up()
        found = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP]
        size = answer.getheader("Content-Length") if self.command == "HEAD" else None
        return self._answer(answer.status, self.server.faults.edit(self.path, content), found, size)

    do_DELETE = do_GET = do_HEAD = do_POST = do_PUT = _forward  # noqa: N815  # the names of http.server

    def _hang_up(self) -> object:
        self.close_connection = True
        self.connection.close()
        return None

    def _answer(
        self, status: int, body: bytes, headers: list[tuple[str, str]] | None = None, size: str | None = None
    ) -> object:
        self.send_response(status)
        for name, value in headers or []:
            self.send_header(name, value)
        self.send_header("Content-Length", size or str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            with self.server.lock:
                self.server.faults.sent_bytes += len(body)
            self.wfile.write(body)
        return None


@contextmanager
def faulty(upstream: str, tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, Faults]]:
    """Run a proxy inside the block; provide its endpoint and its faults."""
    server = _Server(upstream)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        begin = "https://localhost" if tls else "http://127.0.0.1"
        yield f"{begin}:{server.server_address[1]}", server.faults
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
