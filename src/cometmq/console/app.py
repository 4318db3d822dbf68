"""The console's ASGI application: the gate, the pages and the static files."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from cometmq import __version__
from cometmq.console.console import Console
from cometmq.console.limits import MAX_ALL_REQUESTS_BYTES, MAX_REQUEST_BYTES
from cometmq.console.page import no_such_page
from cometmq.console.pages import (
    access,
    access_changes,
    changes,
    cluster,
    configuration,
    dead_letters,
    export,
    groups,
    lite_topics,
    messages,
    people,
    pipeline,
    tail,
    topics,
    waiting,
)
from cometmq.console.rendering import STATIC
from cometmq.console.security.gate import Gate
from cometmq.remoting.http_bodies import RequestBodies

FAMILIES = (
    cluster,
    topics,
    lite_topics,
    groups,
    export,
    tail,
    messages,
    dead_letters,
    waiting,
    configuration,
    access,
    access_changes,
    pipeline,
    changes,
    people,
)
"""The modules with the pages."""


class _Files(StaticFiles):
    """Static files. Browsers can cache them, since their addresses contain the version."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers["Cache-Control"] = "public, max-age=86400"
        return answer


async def _healthy(_: Request) -> Response:
    return PlainTextResponse("ok\n")


def build(console: Console) -> Starlette:
    """Return the ASGI application of a console."""
    routes = [route for family in FAMILIES for route in family.ROUTES]
    app = Starlette(
        routes=[
            *routes,
            Route("/healthz", _healthy),
            Mount(f"/static/{__version__}", _Files(directory=STATIC)),
        ],
        middleware=[
            Middleware(Gate, options=console.options),
            Middleware(RequestBodies, lambda _: MAX_REQUEST_BYTES, MAX_ALL_REQUESTS_BYTES),
        ],
        exception_handlers={404: no_such_page, 405: no_such_page},
    )
    app.state.console = console
    return app
