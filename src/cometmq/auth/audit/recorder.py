"""Decides which requests get an audit entry of their own, and summarizes the others.

Every administration request gets an entry before it is handled, and another one if it fails. A denial, and the first
request of an account on a connection, gets an entry immediately. Repetitions within a second are counted, and one entry
contains their number. So an attacker who is denied a thousand times a second neither hides the trail nor fills the
files.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, Protocol

from cometmq.auth.audit.entry import Entry, details_of, resources_of, short
from cometmq.auth.audit.log import AuditLog
from cometmq.auth.limits import MAX_AUDIT_KINDS
from cometmq.clock import Clock
from cometmq.periodic import Alarm
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.permissions import CALLER, Caller
from cometmq.remoting.processors import Processor, Request, Response
from cometmq.remoting.server_connection import ServerConnection

_SUM_SECONDS: Final = 1.0

BY_THEMSELVES: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.OPEN_PRODUCER,
        RequestCode.RECALL_MESSAGE,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.POP_LITE_MESSAGE,
        RequestCode.ACK_LITE_MESSAGE,
        RequestCode.LITE_SUBSCRIPTION_CTL,
        RequestCode.QUERY_ASSIGNMENT,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_KV_CONFIG,
        # brokers and slaves
        RequestCode.REGISTER_BROKER,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_STORE_FILE,
        RequestCode.GET_TABLE_CHANGES,
        RequestCode.GET_SET_USERS,
        RequestCode.GET_SET_ACCOUNTS,
        RequestCode.GET_SET_KEYS,
        RequestCode.GET_TIMER_CHECK_POINT,
        RequestCode.GET_TIMER_METRICS,
    }
)
"""Requests that clients, brokers and slaves send on their own; all other requests count as administration."""

_SAMPLED: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.POP_LITE_MESSAGE,
    }
)


class Client(Protocol):
    """The client connection that an entry describes."""

    account: Caller | None
    """The account that made the last request with a verified signature."""
    peer_ip: str

    @property
    def remote_address(self) -> str:
        """The client's address as ``host:port``."""


class Sampler:
    """Selects a sample of sends and pulls: one in every ``each`` requests."""

    __slots__ = ("_each", "left")

    def __init__(self, each: int) -> None:
        self._each = each
        self.left = each - 1
        """Number of requests until the next sample."""

    def chooses(self) -> bool:
        """Count one request and return whether it is selected."""
        if self.left > 0:
            self.left -= 1
            return False
        self.left = self._each - 1
        return True

    def skip(self, requests: int) -> None:
        """Count requests that are not selected; at most ``left`` requests can be skipped."""
        self.left -= requests


class AuditRecorder:
    """Writes audit entries about requests to a server."""

    def __init__(self, log: AuditLog, sampling: int, *, clock: Clock) -> None:
        self.log = log
        self._clock = clock
        self.sampler: Final = Sampler(sampling) if sampling else None
        self._repeated: dict[Hashable, tuple[Entry, int]] = {}
        """For each entry of the current second, by the fields that repetitions share: the entry and its repetitions."""
        self._uncounted = 0
        self._next_sum = Alarm(self._sum_up, clock=clock)

    def start(self) -> None:
        """Start writing entries.

        :raises AuthError: the file cannot be opened.
        """
        self.log.start()

    async def stop(self) -> None:
        """Write the summary and the pending entries, then stop."""
        self._next_sum.cancel()
        self._sum_up()
        await self.log.stop()

    def allowed(
        self,
        connection: ServerConnection,
        processor: Processor,
        request: Request[Any],
        body: bytes,
        account: str | None,
    ) -> None:
        """Record an allowed request if it is an administration request or is sampled."""
        if request.code not in BY_THEMSELVES:
            found = resources_of(processor.permission, request.header, body)
            entry = self._entry("request", connection, request.code, account, allowed=True)
            entry |= {"opaque": request.opaque, "resources": found, **details_of(request, body)}
            self.log.put(entry, must=True)
        elif self.sampler is not None and request.code in _SAMPLED and self.sampler.chooses():
            found = resources_of(processor.permission, request.header, body)
            entry = self._entry("sample", connection, request.code, account, allowed=True)
            self.log.put(entry | {"resources": found, "bytes": len(body)})

    def passed(self, connection: Client, code: int, account: str | None, resources: list[str]) -> None:
        """Record an allowed gRPC call if it is sampled."""
        if self.sampler is not None and code in _SAMPLED and self.sampler.chooses():
            entry = self._entry("sample", connection, code, account, allowed=True)
            self.log.put(entry | {"resources": resources})

    def denied(
        self,
        connection: Client,
        code: int,
        why: str,
        *,
        account: str | None,
        claimed: str | None = None,
        resources: list[str],
        details: Entry | None = None,
    ) -> None:
        """Record a denied request.

        :param claimed: the access key of a request with an invalid signature.
        """
        entry = self._entry("denied", connection, code, account, allowed=False)
        if claimed is not None:
            entry["claimed"] = short(claimed)
        entry |= {"resources": resources, "why": short(why), **(details or {})}
        who = claimed if account is None else account
        self._count(("denied", who, connection.peer_ip, code, tuple(resources)), entry)

    def denied_by_quota(self, connection: ServerConnection, request: Request[Any], why: str) -> None:
        """Record a request denied by a quota."""
        header = request.header
        resources = [
            f"{kind}:{short(name)}"
            for kind, name in (
                ("Topic", getattr(header, "topic", None)),
                ("Group", getattr(header, "consumer_group", None) or getattr(header, "producer_group", None)),
            )
            if name
        ]
        account = account_of(connection)
        self.denied(connection, request.code, why, account=account, resources=resources)

    def unknown(self, connection: ServerConnection, code: int, account: str | None) -> None:
        """Record a request with an unknown code."""
        entry = self._entry("request", connection, code, account, allowed=True) | {"why": "the code is not supported"}
        self._count(("unknown", account, connection.peer_ip, code), entry)

    def logged_in(self, connection: Client, account: str) -> None:
        """Record an account's first request on a connection."""
        entry: Entry = {"event": "login", "account": short(account), "address": connection.remote_address}
        self._count(("login", account, connection.peer_ip), entry, is_login=True)

    def answered(self, connection: ServerConnection, request: Request[Any], response: Response) -> None:
        """Record that an administration request failed; its ``opaque`` identifies it."""
        if response.code and request.code not in BY_THEMSELVES:
            entry = self._entry("failed", connection, request.code, None, allowed=True)
            del entry["account"]
            entry |= {"opaque": request.opaque, "answer": response.code, "why": short(response.remark or "")}
            self.log.put(entry, must=True)

    def accounts_changed(self) -> None:
        """Record a change of the account files that was not made by an administration request."""
        self.log.put(
            {"event": "accounts", "why": "accounts or policies were changed by editing their files"}, must=True
        )

    def _entry(self, event: str, connection: Client, code: int, account: str | None, *, allowed: bool) -> Entry:
        return {
            "event": event,
            "account": None if account is None else short(account),
            "address": connection.remote_address,
            "request": _name(code),
            "code": code,
            "allowed": allowed,
        }

    # --- summing up ---------------------------------------------------------------------------
    def _count(self, key: Hashable, entry: Entry, *, is_login: bool = False) -> None:
        found = self._repeated.get(key)
        if found is not None:
            self._repeated[key] = found[0], found[1] + 1
            return
        # Anybody can cause denials, so denials must leave space for logins.
        if len(self._repeated) >= MAX_AUDIT_KINDS * (1 + is_login):
            self._uncounted += 1
            return
        self._repeated[key] = entry, 0
        self.log.put(entry, must=is_login)
        if not self._next_sum.is_set:
            self._next_sum.after(_SUM_SECONDS)

    def _sum_up(self) -> None:
        repeated, self._repeated = self._repeated, {}
        for entry, times in repeated.values():
            if times:
                self.log.put({**entry, "times": times})
        if self._uncounted:
            why = (
                f"more than {MAX_AUDIT_KINDS} different denials and logins in one second; further ones are only counted"
            )
            self.log.put({"event": "denied", "allowed": False, "times": self._uncounted, "why": why}, must=True)
            self._uncounted = 0


def account_of(connection: Client) -> str | None:
    """Return the account that made the last signed request on a connection."""
    account = connection.account
    return None if account is None else account.name or None


def caller() -> str | None:
    """Return the account that made the current request, if its signature was accepted."""
    account = CALLER.get()
    return None if account is None else account.name or None


def _name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return str(code)
