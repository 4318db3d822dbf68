"""The interface for access control, which decides who may do what to which resource.

ACL 1.0 (:mod:`cometmq.auth.plain`) and ACL 2.0 (:mod:`cometmq.auth.policies`) are two sources of accounts with this
interface. A guard (:mod:`cometmq.auth.guard`) uses it for every request, and ``cometmq acl test`` uses it for one user.
"""

from __future__ import annotations

from typing import Protocol

from cometmq.errors import CometMQError
from cometmq.remoting.permissions import Need
from cometmq.remoting.processors import Response
from cometmq.remoting.signing import Signer


class AuthError(CometMQError):
    """Accounts or policies are invalid, or cannot be read or written. Error messages never contain a secret."""


class DeniedError(CometMQError):
    """A request is denied. The message is RocketMQ's; the next step tells the user what to do."""


class Account(Protocol):
    """One account, used from one address."""

    @property
    def name(self) -> str:
        """The access key or user name."""

    @property
    def signer(self) -> Signer | None:
        """Verifies signatures; ``None`` if requests from this address need no signature."""

    @property
    def is_super(self) -> bool:
        """True if the account has all permissions."""

    def refusal(self, need: Need, code: int) -> DeniedError | None:
        """Return why the account lacks a permission required for a request code, or ``None`` if it has all of them."""


class AccessModel(Protocol):
    """A source of accounts for the guard."""

    @property
    def version(self) -> int:
        """A number that grows with every change to accounts or policies."""

    @property
    def unsigned(self) -> frozenset[int]:
        """The codes of requests that need no account."""

    @property
    def unchecked(self) -> frozenset[int]:
        """The codes of requests that every account may make."""

    def account(self, access_key: str | None, address: str, code: int) -> Account:
        """Return the account that makes a request from an address.

        :raises DeniedError: no such account exists.
        """

    def bad_signature(self, account: Account) -> DeniedError:
        """Return the error for a request that is not signed with the account's secret."""

    def answer(self, denied: DeniedError) -> Response:
        """Return the response to a denied request."""
