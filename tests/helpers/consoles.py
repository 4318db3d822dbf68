"""A console in the thread of a test cluster, and a browser without a window: plain HTTP with cookies."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from tests.helpers.waiting import wait_for

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.console.options import ConsoleOptions
from cometmq.console.server import ConsoleServer
from cometmq.testing.sync import SyncCluster


@dataclass(frozen=True)
class Page:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def words(self) -> str:
        """The text without markup, blanks as one."""
        return " ".join(unescape(re.sub(r"<[^>]+>", " ", self.text)).split())


@dataclass
class Surfer:
    """Asks for pages, keeps cookies, and sends forms with their tokens."""

    url: str
    cookies: dict[str, str] = field(default_factory=dict)
    data: Path = Path()
    """The console's directory."""

    def audit(self, change: str, subject: str, count: int = 1) -> list[dict[str, Any]]:
        """Return the lines of the console's audit log about a change of something, once there are so many."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            lines = map(json.loads, (self.data / "audit.log").read_text().splitlines())
            found[:] = [one for one in lines if (one.get("change"), one.get("subject")) == (change, subject)]
            return len(found) >= count

        wait_for(look, f"{count} lines of audit about {change} {subject}")
        return found

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Page:
        """Send one request, without what a browser does by itself."""
        place = urlsplit(self.url)
        assert place.hostname is not None
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=20)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            sent.setdefault("Cookie", "; ".join(f"{name}={value}" for name, value in self.cookies.items()))
        try:
            connection.request(method, path, body or None, sent)
            answer = connection.getresponse()
            for line in answer.headers.get_all("set-cookie") or []:
                name, _, value = line.partition(";")[0].partition("=")
                if "max-age=0" in line.lower():
                    self.cookies.pop(name, None)
                else:
                    self.cookies[name] = value.strip('"')
            lowered = {name.lower(): value for name, value in answer.headers.items()}
            return Page(answer.status, lowered, answer.read().decode())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Page:
        """Ask for a page."""
        return self.ask("GET", path, b"", **headers)

    def post(self, path: str, page: Page | None = None, /, **fields: Any) -> Page:
        """Send a form with the token of a page: that of the keys if none is given."""
        page = page or self.get("/keys")
        found = re.search(r'name="token" value="([^"]+)"', page.text)
        pairs: list[tuple[str, str]] = [("token", found[1])] if found else [("token", self.token)]
        for name, value in fields.items():
            pairs += [(name, str(one)) for one in (value if isinstance(value, list) else [value])]
        return self.ask(
            "POST", path, urlencode(pairs).encode(), Content_Type="application/x-www-form-urlencoded", Origin=self.url
        )

    @property
    def token(self) -> str:
        """The token of a form, from the login's page."""
        found = re.search(r'name="token" value="([^"]+)"', self.get("/login").text)
        assert found
        return found[1]

    def confirm(self, path: str, /, *, typed: str = "", **fields: Any) -> Page:
        """Ask for a change, confirm its plan, and return the answer."""
        plan = self.post(path, **fields)
        assert plan.status == 200, plan.words
        return self.post(path, plan, confirmed="yes", typed=typed, **fields)

    def change(self, path: str, /, *, typed: str = "", **fields: Any) -> Page:
        """Make a change, and return the page after it."""
        done = self.confirm(path, typed=typed, **fields)
        assert done.status == 303, done.words
        return self.get(done.headers["location"])


@contextmanager
def console_of(
    cluster: SyncCluster, data: Path, *, clock: Clock = SYSTEM_CLOCK, **options: Any
) -> Iterator[ConsoleServer]:
    """Run a console of a cluster."""
    chosen = ConsoleOptions(namesrv=options.pop("namesrv", cluster.namesrv_address), data=data, port=0, **options)

    async def start() -> ConsoleServer:
        server = ConsoleServer(chosen, clock=clock)
        await server.start()
        return server

    server = cluster.call(start())
    try:
        yield server
    finally:
        cluster.call(server.stop())
