"""Azurite, Microsoft's emulator of Azure's storage, with a proxy for the one parameter that it does not know."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.storage.servers.builds import azurite
from tests.storage.servers.faults import faulty
from tests.storage.servers.process import server

from cometmq.storage import StorageOptions
from cometmq.testing.ports import free_port

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The public account of the emulator."""
CONTAINER = "lake"
URL = f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net"
_VERSION = "2021-08-06"


@contextmanager
def azure(directory: Path) -> Iterator[StorageOptions]:
    """Run the emulator inside the block, with one container."""
    port = free_port()
    main = azurite() / "node_modules/azurite/dist/src/blob/main.js"
    command = [
        "node", str(main), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(directory),
        "--skipApiVersionCheck", "--disableTelemetry", "--silent",
    ]  # fmt: skip
    with server(command, directory, [port]), faulty(f"http://127.0.0.1:{port}") as (front, faults):
        faults.edit = _start_from
        endpoint = f"{front}/{ACCOUNT}"
        _create_container(endpoint)
        yield StorageOptions(endpoint=endpoint, account_access_key=KEY)


def _start_from(path: str, content: bytes) -> bytes:
    """Leave out the names before the parameter ``startFrom``, as Azure does; deltalake relies on it."""
    first = parse_qs(urlsplit(path).query).get("startFrom", [""])[0]
    return re.sub(
        rb"<Blob><Name>(.*?)</Name>.*?</Blob>",
        lambda match: match[0] if match[1].decode() >= first else b"",
        content,
        flags=re.DOTALL,
    )


def _create_container(endpoint: str) -> None:
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    lines = [*["PUT"], *[""] * 11, f"x-ms-date:{date}", f"x-ms-version:{_VERSION}"]
    text = "\n".join([*lines, f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}", "restype:container"])
    signature = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
    headers = {
        "x-ms-date": date,
        "x-ms-version": _VERSION,
        "Authorization": f"SharedKey {ACCOUNT}:{signature}",
        "Content-Length": "0",
    }
    url = f"{endpoint}/{CONTAINER}?restype=container"
    with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)):
        pass
