"""Quota subjects, for example ``account:billing`` or ``address:10.0.0.0/8``, and their limits."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

import msgspec

from cometmq.auth.model import AuthError
from cometmq.message.hosts import parse_network

EVERY: Final = "*"
MAX_SUBJECT_CHARS: Final = 512
MAX_LIMIT: Final = 10**15
"""Maximum value of a limit; a larger number is assumed to be a typing error."""


class SubjectKind(enum.StrEnum):
    """The kinds of quota subjects."""

    ACCOUNT = "account"
    ADDRESS = "address"
    GROUP = "group"


class Subject(NamedTuple):
    """A quota's subject: one account, address or group; every address in a network; or all subjects of a kind
    (``*``).
    """

    kind: SubjectKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @property
    def is_one(self) -> bool:
        """Return whether this subject is a single account, address or group."""
        return self.name != EVERY and not (self.kind is SubjectKind.ADDRESS and "/" in self.name)

    @classmethod
    def parse(cls, text: str) -> Subject:
        """Parse ``account:NAME``, ``address:IP``, ``address:NETWORK/BITS``, ``group:NAME`` or ``KIND:*``.

        :raises AuthError: the text has none of these forms.
        """
        kind_text, colon, name = text.partition(":")
        kind = next((kind for kind in SubjectKind if kind == kind_text.strip().lower()), None)
        name = name.strip()
        if kind is None or not colon or not name or len(text) > MAX_SUBJECT_CHARS:
            raise AuthError(
                f"{text[:100]!r} is not a valid quota subject",
                next_step="write account:NAME, address:IP, address:NETWORK/BITS, group:NAME, or * as "
                "the name for all subjects of a kind",
            )
        return cls(kind, _address(name) if kind is SubjectKind.ADDRESS and name != EVERY else name)


def _address(name: str) -> str:
    try:
        network = parse_network(name, strict=False)
    except ValueError:
        raise AuthError(
            f"{name[:100]!r} is neither an address nor a network",
            next_step="write 10.0.0.7, 10.0.0.0/8 or 2001:db8::/32",
        ) from None
    one = network.prefixlen == network.max_prefixlen
    return str(network.network_address) if one else str(network)


class Limits(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The limits of a quota. ``None`` means no limit, and 0 allows nothing.

    Incoming bytes are those of frames with sent messages; outgoing bytes are those of stored messages in answers.
    """

    messages_in: int | None = None
    """Maximum number of messages that the subject sends per second."""
    bytes_in: int | None = None
    """Maximum number of bytes that the subject sends per second."""
    messages_out: int | None = None
    """Maximum number of messages that the subject receives per second."""
    bytes_out: int | None = None
    """Maximum number of bytes that the subject receives per second."""
    connections: int | None = None
    """Maximum number of connections that send messages, pulls or heartbeats."""
    topics: int | None = None
    """Maximum number of existing topics that the subject has created."""

    def check(self) -> None:
        """Check that the limits are in the valid range.

        :raises AuthError: a limit is out of range.
        """
        for name, value in self.given().items():
            if not 0 <= value <= MAX_LIMIT:
                raise AuthError(f"{name}={value}: a limit must be a number from 0 to {MAX_LIMIT:,}")

    def given(self) -> dict[str, int]:
        """Return the limits that are set, by their names in requests."""
        found: dict[str, int] = msgspec.to_builtins(self)
        return found


class QuotaInfo(msgspec.Struct, rename="camel"):
    """A row in a list of quotas: a subject's limits, current use and denials."""

    subject: str
    limits: Limits
    quota: str
    """The quota that applies: the subject's own, a network's, or that of ``*``."""
    use: dict[str, float] = {}
    """The current use of each limit; rates are averaged over ten seconds."""
    denials: int = 0
    """Number of denied requests since the broker started; for a network or ``*``, the sum over its subjects."""
    delayed: int = 0
    """Number of delayed requests since the broker started."""
    subjects: int | None = None
    """For a network or ``*``, the number of its subjects with a meter."""
