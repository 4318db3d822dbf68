"""Pages and changes: the requests that their handlers receive, and the results that they return.

A page is an ``async`` function that accepts an :class:`Ask` and returns an answer. A change is an ``async`` function
that accepts an :class:`Ask` and returns a :class:`Plan`. The first request shows the plan and asks for confirmation.
The second request carries out the plan and writes a line to the audit log. So every change has a preview, a
confirmation and an audit entry.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from functools import cached_property, partial
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode
from zoneinfo import ZoneInfo

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from cometmq.auth.policies import MAX_PASSWORD_CHARS
from cometmq.client.admin import Admin
from cometmq.client.errors import AccessDeniedError, BrokerError, RouteNotFoundError
from cometmq.console.console import Console
from cometmq.console.languages import LANGUAGES, preferred, translated
from cometmq.console.languages.answers import answer_in
from cometmq.console.limits import MAX_FIELDS, MAX_REQUEST_BYTES
from cometmq.console.rendering import time_element
from cometmq.console.security.visitors import Visitor
from cometmq.errors import CometMQError
from cometmq.message.names import check_topic
from cometmq.message.queue_names import topic_meant, topic_spelled
from cometmq.remoting.errors import RemotingError, is_unknown_caller

log = logging.getLogger(__name__)

_NOTICE_SECONDS: Final = 30
_NOT_KEPT: Final = frozenset({"confirmed", "typed", "token", "password", "again"})
"""Form fields that the confirmation page does not repeat."""


class FormError(CometMQError):
    """A form field has an invalid value."""


class NotFoundError(CometMQError):
    """The requested object does not exist."""


class ChangesNotAllowedError(CometMQError):
    """The visitor is not allowed to change anything."""


@dataclass(frozen=True)
class Table:
    """A table in a plan, with column titles and rows of values."""

    titles: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Plan:
    """A change that has not been carried out yet."""

    title: str
    """Title, for example ``Delete topic orders``."""
    sentence: str
    """Effect of the change, in a sentence."""
    action: str
    """Label of the button that confirms the change."""
    what: str
    """Kind of change in the audit log, for example ``topic.delete``."""
    subject: str
    """Name of the changed object."""
    run: Callable[[], Awaitable[str]]
    """Function that carries out the change, and returns a sentence that confirms it."""
    then: str
    """Address of the page that is shown after the change."""
    back: str
    table: Table | None = None
    warnings: Sequence[str] = ()
    typed: str = ""
    """Text that the visitor must type to confirm, or empty if none is needed."""
    asks_password: bool = False
    """True if the confirmation form has a field ``password`` for a new password. Plans and logs never contain the
    password.
    """
    details: Mapping[str, Any] = field(default_factory=dict)
    """Details for the audit log."""


class Ask:
    """One request for a page."""

    def __init__(self, console: Console, request: Request, visitor: Visitor) -> None:
        self.console = console
        self.request = request
        self.visitor = visitor
        self.form: FormData = FormData()
        self.new_form_cookie: str | None = None
        self.silent: Mapping[str, RemotingError] = {}
        self._admin: Admin | None = None

    # --- the reader ---------------------------------------------------------------------------
    @cached_property
    def language(self) -> str:
        """Return the code of the visitor's language."""
        chosen = self.request.cookies.get("language", "")
        return chosen if chosen in LANGUAGES else preferred(self.request.headers.get("accept-language", ""))

    @cached_property
    def zone(self) -> tzinfo:
        """Return the visitor's time zone from a cookie, or UTC if there is no cookie."""
        name = self.request.cookies.get("zone", "")
        if not name or len(name) > 64:
            return UTC
        try:
            return ZoneInfo(name)
        except (ValueError, OSError, KeyError):
            return UTC

    def t(self, text: str, /, **values: object) -> str:
        """Translate a text into the visitor's language."""
        return translated(self.language, text, **values)

    # --- the cluster --------------------------------------------------------------------------
    @property
    def admin(self) -> Admin:
        """Return the administration client that has the visitor's permissions."""
        assert self._admin is not None
        return self._admin

    def use(self, admin: Admin) -> None:
        """Set the administration client for this request."""
        self._admin = admin
        self.silent = admin.unanswered or {}

    # --- parameters ---------------------------------------------------------------------------
    def path(self, name: str) -> str:
        """Return a parameter from the path."""
        return str(self.request.path_params[name])

    def topic(self) -> str:
        """Return the topic of the form or the address, which may have a queue's own spelling there.

        :raises FormError: the field is too long.
        """
        return topic_spelled(self.text("topic"))

    def topic_to_write(self) -> str:
        """Return the topic of a form that writes to it or creates it, which must be the topic's name.

        :raises FormError: the field is too long, or not a valid name.
        """
        topic = self.text("topic")
        wrong = check_topic(topic)
        if wrong is None:
            return topic
        of_queue = topic_meant(topic)
        raise FormError(
            self.t("{name} is not a valid topic name: {wrong}", name=topic, wrong=wrong),
            next_step=of_queue and self.t("the topic of a queue with this name is {topic}", topic=of_queue),
        )

    def text(self, name: str, default: str = "", *, longest: int = 512) -> str:
        """Return a field from the form or the address, without surrounding blanks.

        :raises FormError: the field is too long.
        """
        value = self.form.get(name)
        if value is None:
            value = self.request.query_params.get(name)
        if not isinstance(value, str):
            return default
        value = value.strip()
        if len(value) > longest:
            raise FormError(self.t("{name} has more than {longest} characters", name=name, longest=longest))
        return value or default

    def whole(self, name: str, default: int | None = None, *, least: int = 0, most: int = 2**63 - 1) -> int | None:
        """Return a field as an integer.

        :raises FormError: the field is not an integer, or is out of range.
        """
        text = self.text(name)
        if not text:
            return default
        if not text.lstrip("-").isdecimal() or len(text) > 20 or not least <= int(text) <= most:
            raise FormError(
                self.t("{name} must be a whole number from {least} to {most}", name=name, least=least, most=most)
            )
        return int(text)

    def moment(self, name: str) -> int | None:
        """Return a field with a time in the visitor's zone as milliseconds since 1970, or ``None`` if the field is
        empty.

        :raises FormError: the field is not a valid time.
        """
        text = self.text(name)
        if not text:
            return None
        if text.isdecimal() and len(text) <= 15:
            return int(text)
        try:
            moment = datetime.fromisoformat(text)
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=self.zone)
            return int(moment.timestamp() * 1000)
        except (ValueError, OverflowError) as error:
            raise FormError(self.t("{name} must be a time such as 2026-01-31T12:00", name=name)) from error

    def period(self) -> tuple[int | None, int | None]:
        """Return the form's times ``begin`` and ``end``, in the same form as :meth:`moment`.

        :raises FormError: a time is invalid, or the end is before the beginning.
        """
        begin, end = self.moment("begin"), self.moment("end")
        if begin is not None and end is not None and begin > end:
            raise FormError(self.t("the end is before the beginning"))
        return begin, end

    # --- answers ------------------------------------------------------------------------------
    @property
    def may_change(self) -> bool:
        """Return True if pages should offer changes. The cluster checks the permission for each change."""
        return self.visitor.may_change

    def page(self, template: str, /, *, status: int = 200, **values: Any) -> HTMLResponse:
        """Render a template, and return it as a page."""
        console, request = self.console, self.request
        cookies = request.cookies
        form_cookie = cookies.get(form_cookie_name(console)) or self.new_form_cookie
        if form_cookie is None:
            form_cookie = self.new_form_cookie = secrets.token_urlsafe(24)
        session = cookies.get(session_cookie_name(console), "") if self.visitor.name else ""
        notice = console.sessions.verified(unquote(cookies["notice"])) if "notice" in cookies else None
        html = console.templates.get_template(template).render(
            _=partial(translated, self.language),
            translated=partial(answer_in, self.language),
            time=partial(time_element, zone=self.zone),
            ask=self,
            visitor=self.visitor,
            may_change=self.may_change,
            login_possible=console.login_required,
            language=self.language,
            theme=cookies.get("theme") if cookies.get("theme") in ("dark", "light") else "",
            zone_name=getattr(self.zone, "key", "UTC"),
            form_token=console.sessions.form_token(form_cookie, session),
            notice=notice,
            silent=self.silent,
            path=request.url.path,
            given=request.query_params,
            cluster_failure=console.sampler.latest.failure if console.sampler.latest else "",
            **values,
        )
        answer = HTMLResponse(html, status)
        if self.new_form_cookie is not None:
            answer.set_cookie(
                form_cookie_name(console), self.new_form_cookie, httponly=True, samesite="strict", secure=self.is_secure
            )
        if notice is not None:
            answer.delete_cookie("notice", httponly=True, samesite="strict")
        return answer

    @property
    def is_secure(self) -> bool:
        """Return True if the page was requested with HTTPS, either directly or through a proxy."""
        urls = self.console.options.urls
        return self.request.url.scheme == "https" or (bool(urls) and all(url.scheme == "https" for url in urls))

    def go(self, address: str, notice: str = "") -> RedirectResponse:
        """Redirect the browser to a page that shows a notice."""
        answer = RedirectResponse(address, 303)
        if notice:
            signed = self.console.sessions.signed(notice[:500])
            answer.set_cookie("notice", quote(signed), max_age=_NOTICE_SECONDS, httponly=True, samesite="strict")
        return answer

    def failure(self, error: Exception, status: int) -> Response:
        """Return the error page with the cause and the next step."""
        message = error.message if isinstance(error, CometMQError) else str(error)
        step = error.next_step if isinstance(error, CometMQError) else None
        template = "part_error.html" if self.is_part else "error.html"
        return self.page(template, status=status, message=message, step=step)

    @property
    def is_part(self) -> bool:
        """Return True if htmx requested only part of a page."""
        return self.request.headers.get("hx-request") == "true"


def session_cookie_name(console: Console) -> str:
    """Return the name of the session cookie. It contains the port, since all ports on a host share cookies."""
    return f"cometmq-session-{console.port}"


def form_cookie_name(console: Console) -> str:
    """Return the name of the cookie to which form tokens belong."""
    return f"cometmq-form-{console.port}"


Handler = Callable[[Ask], Awaitable[Response]]
Planner = Callable[[Ask], Awaitable[Plan]]


def page(path: str, handler: Handler, *, open_to_all: bool = False) -> Route:
    """Return the route of a page.

    :param open_to_all: also serve the page to visitors who are not logged in.
    """

    async def endpoint(request: Request) -> Response:
        return await _answered(request, handler, open_to_all=open_to_all)

    return Route(path, endpoint, methods=["GET"], name=path)


async def no_such_page(request: Request, _: Exception) -> Response:
    """Return an error for an unknown address, or for an address that accepts only forms."""

    async def handler(ask: Ask) -> Response:
        raise NotFoundError(
            ask.t("there is no page at this address"),
            next_step=ask.t("choose a page from the menu; to change something, open its page"),
        )

    return await _answered(request, handler)


def posted(path: str, handler: Handler, *, open_to_all: bool = False) -> Route:
    """Return the route of a form that does not change the cluster."""

    async def endpoint(request: Request) -> Response:
        return await _answered(request, handler, open_to_all=open_to_all, is_form=True)

    return Route(path, endpoint, methods=["POST"], name=f"POST {path}")


def change(path: str, planner: Planner) -> Route:
    """Return the route of a change: its preview, its confirmation and its execution."""

    async def carry_out(ask: Ask) -> Response:
        if not ask.may_change:
            raise ChangesNotAllowedError(
                ask.t("this console is read-only for you; nothing was changed"),
                next_step=ask.t(
                    "log in with an account that may change things, or start the console with --allow-changes"
                ),
            )
        plan = await planner(ask)
        typed_wrong = bool(plan.typed) and ask.form.get("typed") != plan.typed
        password_wrong = plan.asks_password and not _has_password(ask)
        if ask.form.get("confirmed") != "yes" or typed_wrong or password_wrong:
            fields = [
                (name, value)
                for name, value in ask.form.multi_items()
                if isinstance(value, str) and name not in _NOT_KEPT
            ]
            asked_before = ask.form.get("confirmed") == "yes"
            return ask.page(
                "plan.html",
                plan=plan,
                fields=fields,
                typed_wrong=asked_before and typed_wrong,
                password_wrong=asked_before and password_wrong,
            )
        return ask.go(plan.then, await _done(ask, plan))

    async def endpoint(request: Request) -> Response:
        return await _answered(request, carry_out, is_form=True)

    return Route(path, endpoint, methods=["POST"], name=f"POST {path}")


def _has_password(ask: Ask) -> bool:
    """Return True if a form contains the same new password twice."""
    password = str(ask.form.get("password") or "")
    return 0 < len(password) <= MAX_PASSWORD_CHARS and password == ask.form.get("again")


async def _done(ask: Ask, plan: Plan) -> str:
    """Carry out a change, and write it to the audit log even if it fails."""
    entry: dict[str, Any] = {
        "event": "change",
        "change": plan.what,
        "subject": plan.subject,
        "by": ask.visitor.name or "(no login)",
        "from": address_of(ask.request),
        "details": {name: str(value)[:500] for name, value in plan.details.items()},
    }
    try:
        sentence = await plan.run()
    except BaseException as error:
        ask.console.audit.put({**entry, "outcome": f"failed: {str(error)[:500]}"}, must=True)
        raise
    ask.console.audit.put({**entry, "outcome": "done"}, must=True)
    return sentence


def address_of(request: Request) -> str:
    """Return the address from which a request was sent."""
    return request.client.host if request.client is not None else ""


async def visitor_of(console: Console, request: Request) -> Visitor | None:
    """Return the visitor, or ``None`` if they must log in first."""
    token = request.cookies.get(session_cookie_name(console), "")
    visitor = await console.sessions.visitor(token) if token else None
    if visitor is None and not await console.requires_login():
        return console.anonymous
    return visitor


def to_login(request: Request) -> Response:
    """Redirect a browser to the login page. After the login, the browser is redirected back."""
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    address = "/login?" + urlencode({"next": wanted if request.method == "GET" else "/"})
    if request.headers.get("hx-request") == "true":
        return Response(status_code=204, headers={"HX-Redirect": address})
    return RedirectResponse(address, 303)


async def _answered(
    request: Request, handler: Handler, *, open_to_all: bool = False, is_form: bool = False
) -> Response:
    console: Console = request.app.state.console
    visitor = await visitor_of(console, request)
    if visitor is None and not open_to_all:
        return to_login(request)
    ask = Ask(console, request, visitor or Visitor("", False, console.connections))
    try:
        if is_form:
            ask.form = await request.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_REQUEST_BYTES)
            cookies = request.cookies
            session = cookies.get(session_cookie_name(console), "") if ask.visitor.name else ""
            token = str(ask.form.get("token") or "")
            if not console.sessions.is_form_token(token, cookies.get(form_cookie_name(console), ""), session):
                raise ChangesNotAllowedError(
                    ask.t("this form is outdated or not from this console; nothing was changed"),
                    next_step=ask.t("reload its page and submit it again"),
                )
        async with ask.visitor.connections.admin() as admin:
            ask.use(admin)
            return await handler(ask)
    except (FormError, ValueError) as error:
        return ask.failure(error, 400)
    except ChangesNotAllowedError as error:
        return ask.failure(error, 403)
    except AccessDeniedError as error:
        if not ask.visitor.name and is_unknown_caller(error.remark):
            return to_login(request)
        return ask.failure(error, 403)
    except (NotFoundError, RouteNotFoundError) as error:
        return ask.failure(error, 404)
    except RemotingError as error:
        return ask.failure(error, 503)
    except (BrokerError, CometMQError) as error:
        return ask.failure(error, 502)
