"""The XML interface of Google Cloud Storage, as far as obstore uses it: Google publishes no emulator of it."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

from cometmq.storage import StorageOptions

BUCKET = "lake"
_PAGE = 1000


@dataclass(frozen=True)
class _Object:
    content: bytes
    generation: int
    modified: float

    @property
    def headers(self) -> dict[str, str]:
        return {
            "ETag": f'"{hashlib.md5(self.content).hexdigest()}"',
            "x-goog-generation": str(self.generation),
            "Last-Modified": formatdate(self.modified, usegmt=True),
        }


@dataclass
class _State:
    objects: dict[str, _Object] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    heeds_conditions: bool = True
    generations: Iterator[int] = field(default_factory=lambda: itertools.count(1))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.state = _State()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_PUT(self) -> object:
        key, query = self._target()
        content = self._content()
        if "uploadId" in query:
            self.server.state.uploads[query["uploadId"]][int(query["partNumber"])] = content
            return self._answer(200, headers={"ETag": f'"{hashlib.md5(content).hexdigest()}"'})
        return self._store(key, content)

    def do_POST(self) -> object:
        key, query = self._target()
        self._content()
        state = self.server.state
        if "uploads" in query:
            upload = str(next(state.generations))
            state.uploads[upload] = {}
            body = f"<Bucket>{BUCKET}</Bucket><Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
            return self._answer(200, _xml("InitiateMultipartUploadResult", body))
        parts = state.uploads.pop(query["uploadId"])
        return self._store(key, b"".join(parts[number] for number in sorted(parts)), "CompleteMultipartUploadResult")

    def do_GET(self) -> object:
        key, query = self._target()
        if not key:
            return self._answer(200, self._list(query))
        found = self.server.state.objects.get(key)
        if found is None:
            return self._answer(404, _xml("Error", "<Code>NoSuchKey</Code>"))
        wanted = self.headers.get("Range")
        if wanted is None:
            return self._answer(200, found.content, found.headers)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        size = len(found.content)
        start, end = (int(first), min(int(last or size), size - 1)) if first else (size - int(last), size - 1)
        headers = {**found.headers, "Content-Range": f"bytes {start}-{end}/{size}"}
        return self._answer(206, found.content[start : end + 1], headers)

    def do_HEAD(self) -> object:
        found = self.server.state.objects.get(self._target()[0])
        if found is None:
            return self._answer(404)
        return self._answer(200, found.content, found.headers)

    def do_DELETE(self) -> object:
        key, query = self._target()
        if "uploadId" in query:
            del self.server.state.uploads[query["uploadId"]]
            return self._answer(204)
        found = self.server.state.objects.pop(key, None)
        return self._answer(404 if found is None else 204)

    def _target(self) -> tuple[str, dict[str, str]]:
        url = urlsplit(self.path)
        return unquote(url.path).lstrip("/").partition("/")[2], dict(parse_qsl(url.query, keep_blank_values=True))

    def _content(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _store(self, key: str, content: bytes, answer: str = "") -> object:
        state = self.server.state
        condition = self.headers.get("x-goog-if-generation-match") if state.heeds_conditions else None
        with state.lock:
            existing = state.objects.get(key)
            if condition is not None and int(condition) != (existing.generation if existing else 0):
                return self._answer(412, _xml("Error", "<Code>PreconditionFailed</Code>"))
            found = state.objects[key] = _Object(content, next(state.generations), time.time())
        body = _xml(answer, f"<ETag>{escape(found.headers['ETag'])}</ETag>") if answer else b""
        return self._answer(200, body, found.headers)

    def _list(self, query: dict[str, str]) -> bytes:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        keys = sorted(key for key in self.server.state.objects if key.startswith(prefix) and key > after)
        folders = sorted(
            {
                prefix + key[len(prefix) :].split(delimiter)[0] + delimiter
                for key in keys
                if delimiter and delimiter in key[len(prefix) :]
            }
        )
        plain = [key for key in keys if not delimiter or delimiter not in key[len(prefix) :]]
        page = plain[:_PAGE]
        body = "".join(self._entry(key) for key in page)
        body += "".join(f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders)
        if len(plain) > _PAGE:
            body += f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
        return _xml("ListBucketResult", body)

    def _entry(self, key: str) -> str:
        found = self.server.state.objects[key]
        moment = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found.modified))
        return (
            f"<Contents><Key>{escape(key)}</Key><Size>{len(found.content)}</Size>"
            f"<LastModified>{moment}</LastModified><ETag>{escape(found.headers['ETag'])}</ETag></Contents>"
        )

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> object:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        return None


def _xml(name: str, body: str) -> bytes:
    return f"<{name}>{body}</{name}>".encode()


@contextmanager
def gcs(directory: Path, *, heeds_conditions: bool = True) -> Iterator[StorageOptions]:
    """Run the server inside the block, with one bucket; some real servers ignore conditions."""
    server = _Server()
    server.state.heeds_conditions = heeds_conditions
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    key = directory / "account.json"
    account = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True, "gcs_base_url": url}
    key.write_text(json.dumps(account))
    try:
        yield StorageOptions(endpoint=url, service_account_file=str(key))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
