"""The interface of access control: decides who may do what, on what, from where.

ACL 1.0 (:mod:`cometmq.auth.plain`) and ACL 2.0 (:mod:`cometmq.auth.policies`) are two sources of accounts; both answer
the same question. A guard (:mod:`cometmq.auth.guard`) asks it for every request, ``cometmq acl test`` for one user.
"""

from __future__ import annotations

from typing import Protocol

from cometmq.errors import CometMQError
from cometmq.remoting.permissions import Need
from cometmq.remoting.processors import Response
from cometmq.remoting.signing import Signer


class AuthError(CometMQError):
    """Accounts or policies are invalid, or cannot be read or written. Messages never contain a secret."""


class DeniedError(CometMQError):
    """A request is denied. The message is RocketMQ's; the next step says what to do."""


class Account(Protocol):
    """One account, as seen from one address."""

    @property
    def name(self) -> str:
        """The access key, or user name."""

    @property
    def signer(self) -> Signer | None:
        """Checks signatures; ``None`` if requests from this address need no signature."""

    @property
    def is_super(self) -> bool:
        """True if the account may do everything."""

    def refusal(self, need: Need, code: int) -> DeniedError | None:
        """Return why the account may not do this with a request of this code, or ``None`` if it may."""


class AccessModel(Protocol):
    """A source of accounts."""

    @property
    def version(self) -> int:
        """Grows with every change of accounts or policies."""

    @property
    def unsigned(self) -> frozenset[int]:
        """Codes of requests that need no account."""

    @property
    def unchecked(self) -> frozenset[int]:
        """Codes of requests for which any account may do everything."""

    def account(self, access_key: str | None, address: str, code: int) -> Account:
        """Return the account of a request from an address.

        :raises DeniedError: no such account exists.
        """

    def bad_signature(self, account: Account) -> DeniedError:
        """Return the denial of a request that is not signed with the account's secret."""

    def answer(self, denied: DeniedError) -> Response:
        """Return the answer to a denied request."""
