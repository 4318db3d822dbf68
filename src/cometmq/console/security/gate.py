"""The gate in front of all pages. It checks host names and cross-site requests, and adds security headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cometmq.console.limits import MAX_URL_CHARS
from cometmq.console.options import ConsoleOptions
from cometmq.console.origins import origin_of

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_OWN_SITES: Final = frozenset({"same-origin", "none"})
_AGAIN: Final = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0"><title>CometMQ</title>'
"""A page that reloads itself. After following a link from another site, the browser sends no cookies; after the reload,
it does.
"""


class Gate:
    """Middleware that refuses invalid requests, and adds :data:`HEADERS`."""

    def __init__(self, app: ASGIApp, options: ConsoleOptions) -> None:
        self._app = app
        own = () if options.host in ("0.0.0.0", "::") else (options.host,)
        self._urls = frozenset(options.urls)
        self._hosts = frozenset(
            {"localhost", "127.0.0.1", "::1", *own, *options.names, *(url.host for url in options.urls)}
        )
        self._any_host = not options.is_local and not options.names and not options.urls
        """If a login is required, every host name is safe, since this console's cookies are not sent to other names."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request, and pass it on or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if "cache-control" not in headers:
                    headers["Cache-Control"] = "no-store"
            await send(message)

        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        here = origin_of(f"http://{host}")
        if not self._any_host and (here is None or here.host not in self._hosts):
            return PlainTextResponse(
                f"this console is not {_shown(host)}; open it under its own name, let a proxy forward "
                "the Host header, or start it with --url and the address that people open "
                "(cometmq serve: --console-url)\n",
                421,
            )
        if len(scope["raw_path"] or b"") + len(scope["query_string"]) > MAX_URL_CHARS:
            return PlainTextResponse(f"an address has at most {MAX_URL_CHARS:,} characters\n", 414)
        site, method = headers.get("sec-fetch-site"), scope["method"]
        if method in ("GET", "HEAD"):
            if site == "cross-site" and headers.get("sec-fetch-mode") == "navigate":
                return HTMLResponse(_AGAIN)
            if site not in (None, "same-origin", "none", "same-site") and scope["path"] != "/":
                return PlainTextResponse("pages of other sites may not use this console\n", 403)
            return None
        if site in _OWN_SITES:
            return None  # the browser itself compared both addresses; no page can set this header
        if site is not None:
            return PlainTextResponse("this form came from another site; nothing was changed\n", 403)
        said = headers.get("origin")
        origin = None if said is None else origin_of(said)
        if said is None or (origin is not None and (origin in self._urls or origin.is_at(host))):
            return None
        return PlainTextResponse(
            f"this form came from {_shown(said)}, and was sent to {_shown(host)}; nothing was changed. "
            "If a proxy is in between, let it forward the Host header, or start the console with --url and the "
            "address that people open (cometmq serve: --console-url)\n",
            403,
        )


def _shown(text: str) -> str:
    """Return a header's value, shortened and without control characters."""
    return ascii(text[:200])[1:-1]
