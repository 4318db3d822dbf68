"""The console's visitors, and the sessions of visitors who are logged in."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from cometmq.clock import Clock
from cometmq.console.connections import Connections
from cometmq.console.limits import MAX_SESSIONS, SESSION_IDLE_SECONDS, SESSION_SECONDS


@dataclass(frozen=True)
class Visitor:
    """A visitor, with connections that use the visitor's permissions."""

    name: str
    """Name of the visitor, or empty if they are not logged in."""
    may_change: bool
    connections: Connections
    has_own_connections: bool = False
    """True if the visitor logged in with one of the cluster's accounts."""


@dataclass
class _Session:
    visitor: Visitor
    began: float
    seen: float


class Sessions:
    """Sessions, by the secret in the cookie. Restarting the console ends them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._sessions: dict[str, _Session] = {}
        """Sessions, in the order of their last request."""

    async def begin(self, visitor: Visitor) -> str:
        """Log a visitor in, and return the secret for their cookie."""
        while len(self._sessions) >= MAX_SESSIONS:
            await self.end(next(iter(self._sessions)))
        token = secrets.token_urlsafe(32)
        now = self._clock.monotonic()
        self._sessions[token] = _Session(visitor, now, now)
        return token

    async def visitor(self, token: str) -> Visitor | None:
        """Return the visitor who is logged in with a cookie, and restart their idle time."""
        await self._end_old()
        session = self._sessions.pop(token, None)
        if session is None:
            return None
        session.seen = self._clock.monotonic()
        self._sessions[token] = session
        return session.visitor

    async def end(self, token: str) -> None:
        """Log a visitor out."""
        session = self._sessions.pop(token, None)
        if session is not None and session.visitor.has_own_connections:
            await session.visitor.connections.close()

    async def end_all(self) -> None:
        """Log everybody out."""
        for token in list(self._sessions):
            await self.end(token)

    async def _end_old(self) -> None:
        now = self._clock.monotonic()
        for token, session in list(self._sessions.items()):
            if now - session.seen > SESSION_IDLE_SECONDS or now - session.began > SESSION_SECONDS:
                await self.end(token)

    # --- forms and notices --------------------------------------------------------------------
    def form_token(self, cookie: str, session: str) -> str:
        """Return the token that a form must contain. Only this console's pages know the token."""
        return self._signature(f"form\0{cookie}\0{session}")

    def is_form_token(self, token: str, cookie: str, session: str) -> bool:
        """Return True if a form was sent from one of this visitor's pages."""
        return bool(cookie) and hmac.compare_digest(token.encode(), self.form_token(cookie, session).encode())

    def signed(self, text: str) -> str:
        """Sign a text that a browser stores for a short time."""
        return self._signature("text\0" + text) + text

    def verified(self, signed: str) -> str | None:
        """Return a text that was signed by this console, or ``None`` for any other text."""
        signature, text = signed[:64], signed[64:]
        if hmac.compare_digest(signature.encode(), self._signature("text\0" + text).encode()):
            return text
        return None

    def _signature(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()
