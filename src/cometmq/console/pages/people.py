"""Login and logout, the language setting, and the page with keyboard shortcuts."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlsplit

from starlette.responses import RedirectResponse, Response

from cometmq.console.connections import Connections
from cometmq.console.languages import LANGUAGES
from cometmq.console.limits import MAX_PASSWORD_CHARS
from cometmq.console.page import (
    Ask,
    address_of,
    form_cookie_name,
    page,
    posted,
    session_cookie_name,
)
from cometmq.console.security.passwords import Role
from cometmq.console.security.visitors import Visitor
from cometmq.errors import CometMQError
from cometmq.remoting.signing import Credentials

_YEAR = 365 * 86_400


async def login_form(ask: Ask) -> Response:
    """Show the login page."""
    return ask.page("login.html", next=_own_path(ask.text("next", "/", longest=4_000)), failure="", name="")


async def login(ask: Ask) -> Response:
    """Log in a user of the console or, if there is none with this name and password, an account of the cluster."""
    console = ask.console
    name = ask.text("name", longest=200)
    password = str(ask.form.get("password") or "")[: MAX_PASSWORD_CHARS + 1]
    wanted = _own_path(ask.text("next", "/", longest=4_000))
    address = address_of(ask.request)
    wait = console.login_rate.wait_seconds(address, name)
    if wait:
        failure = ask.t("too many attempts; try again in {wait} s", wait=wait)
        answer: Response = ask.page("login.html", status=429, next=wanted, failure=failure, name=name)
        answer.headers["Retry-After"] = str(wait)
        return answer
    visitor = await _accepted(ask, name, password) if name and password else None
    console.audit.put(
        {"event": "login", "by": name, "from": address, "outcome": "done" if visitor else "denied"}, must=bool(visitor)
    )
    if visitor is None:
        failure = ask.t("wrong name or password")
        return ask.page("login.html", status=401, next=wanted, failure=failure, name=name)
    await console.sessions.end(ask.request.cookies.get(session_cookie_name(console), ""))
    token = await console.sessions.begin(visitor)
    answer = RedirectResponse(wanted, 303)
    answer.set_cookie(session_cookie_name(console), token, httponly=True, samesite="strict", secure=ask.is_secure)
    answer.delete_cookie(form_cookie_name(console), httponly=True, samesite="strict")
    return answer


async def _accepted(ask: Ask, name: str, password: str) -> Visitor | None:
    console = ask.console
    user = await console.users.accept(name, password)
    if user is not None:
        return Visitor(name, user.role == Role.OPERATOR, console.connections)
    if name in console.users.all():
        return None
    try:
        if not await console.accounts.accept(name, password):
            return None
    except (CometMQError, ValueError):
        return None
    security = replace(console.options.security, credentials=Credentials(name, password))
    connections = Connections(console.options.namesrv, security, clock=console.clock)
    return Visitor(name, may_change=True, connections=connections, has_own_connections=True)


async def logout(ask: Ask) -> Response:
    """Log a visitor out."""
    console = ask.console
    await console.sessions.end(ask.request.cookies.get(session_cookie_name(console), ""))
    answer = RedirectResponse("/login" if console.login_required else "/", 303)
    for name in (session_cookie_name(console), form_cookie_name(console)):
        answer.delete_cookie(name, httponly=True, samesite="strict")
    return answer


async def language(ask: Ask) -> Response:
    """Set the language, and redirect back to the page."""
    chosen = ask.path("code")
    answer = RedirectResponse(_own_path(ask.text("next", "/", longest=4_000)), 303)
    if chosen in LANGUAGES:
        answer.set_cookie("language", chosen, max_age=_YEAR, samesite="strict")
    return answer


async def keys(ask: Ask) -> Response:
    """Show the keyboard shortcuts."""
    return ask.page("keys.html")


def _own_path(wanted: str) -> str:
    """Return the address if it is a path in this console, otherwise the path of the first page."""
    parts = urlsplit(wanted)
    is_own = wanted.startswith("/") and not wanted.startswith(("//", "/\\")) and not parts.netloc and not parts.scheme
    return wanted if is_own and wanted.isprintable() else "/"


ROUTES = (
    page("/login", login_form, open_to_all=True),
    posted("/login", login, open_to_all=True),
    posted("/logout", logout, open_to_all=True),
    page("/language/{code}", language, open_to_all=True),
    page("/keys", keys),
)
