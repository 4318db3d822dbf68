"""The state that all pages of one console share."""

from __future__ import annotations

from cometmq.auth.audit.log import AuditLog
from cometmq.client.route import namesrv_addresses
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.console.connections import Connections
from cometmq.console.lag_history import LagHistory
from cometmq.console.live import Streams
from cometmq.console.options import ConsoleOptions
from cometmq.console.rendering import environment
from cometmq.console.sampler import Sampler
from cometmq.console.security.accounts import ClusterAccounts
from cometmq.console.security.login_rate import LoginRate
from cometmq.console.security.passwords import ConsoleUsers
from cometmq.console.security.visitors import Sessions, Visitor
from cometmq.errors import CometMQError

_AUDIT_BYTES = 16 * 1024 * 1024
_AUDIT_FILES = 5


class ConsoleRefusedError(CometMQError):
    """The console would be accessible to strangers."""


class Console:
    """The state of a running console."""

    def __init__(self, options: ConsoleOptions, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.options = options
        self.clock = clock
        self.nameservers = namesrv_addresses(options.namesrv)
        self.connections = Connections(options.namesrv, options.security, clock=clock)
        self.sessions = Sessions(clock)
        self.users = ConsoleUsers(options.users_file)
        self.accounts = ClusterAccounts(options.namesrv, options.security, clock)
        self.login_rate = LoginRate(clock)
        self.streams = Streams()
        self.tails = 0
        """Number of open live tails."""
        self.resending: set[str] = set()
        """Groups whose dead letters are being resent. A group's ledger can have only one writer."""
        self.sampler = Sampler(self.connections, self.nameservers, clock)
        self.lag_history = LagHistory(clock)
        self.templates = environment()
        self.audit = AuditLog(options.audit_file, size=_AUDIT_BYTES, count=_AUDIT_FILES, server="console", clock=clock)
        self.anonymous = Visitor("", options.allow_changes, self.connections)
        self.login_required = not options.is_local
        self.port = options.port
        """The port in use."""
        self._knows_accounts = False

    async def start(self) -> None:
        """Start watching the cluster.

        :raises ConsoleRefusedError: other machines could reach the console, and no account exists for logging in.
        :raises AuthError: the audit log cannot be opened.
        """
        self.login_required = not self.options.is_local or bool(self.users.all())
        if not self.options.is_local and not self.users.all():
            await self._demand_accounts()
        self.audit.start()
        self.sampler.start()

    async def _demand_accounts(self) -> None:
        try:
            why = "" if await self.accounts.are_on() else "the cluster checks no accounts, and the console has no user"
        except CometMQError as error:
            why = f"the console has no user, and whether the cluster checks accounts is not known: {error.message}"
        if why:
            raise ConsoleRefusedError(
                f"the console would be open to every machine that reaches {self.options.host}: {why}",
                next_step="cometmq console user add NAME creates a user; --host 127.0.0.1 serves only this machine",
            )

    async def requires_login(self) -> bool:
        """Return True if visitors must log in.

        A login is required if the console has users, if other machines can reach the console, or if the cluster has
        accounts. If no broker answers, it is unknown whether the cluster has accounts; pages are empty in this case.
        """
        if self.login_required or self.users.all():
            self.login_required = True
        elif not self._knows_accounts:
            try:
                self.login_required = await self.accounts.are_on()
                self._knows_accounts = True
            except CometMQError:
                return False
        return self.login_required

    async def stop(self) -> None:
        """Stop watching, and close all connections and files."""
        self.streams.stopping.set()
        await self.sampler.stop()
        await self.sessions.end_all()
        await self.connections.close()
        await self.audit.stop()
