"""The question, its checks and the answer, as data."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Final, TypeVar

from cometmq.client.errors import AccessDeniedError, BrokerError
from cometmq.errors import CometMQError
from cometmq.message.queue_names import own_spelling
from cometmq.remoting.codes import ResponseCode
from cometmq.visible import may_be_sentence, visible

T = TypeVar("T")

OPEN_QUOTE: Final = "«"
"""Begins a text in a sentence that a stranger wrote."""
_CLOSE_QUOTE: Final = "»"
_NAME: Final = re.compile(r"[\w%.:@|#+/=*-]{1,80}", re.ASCII)
_QUOTED: Final = 100


class Verdict(Enum):
    """The result of a check."""

    CAUSE = "cause"
    """The message is not consumed because of this."""
    POSSIBLE = "possible"
    """The servers do not report enough to exclude this."""
    RULED_OUT = "ruled out"
    UNKNOWN = "unknown"
    """The servers did not answer the question; the evidence says why."""
    CONSUMED = "consumed"
    """The group has consumed the message."""


@dataclass(frozen=True)
class Check:
    """One possible cause: what was found, and what to do."""

    name: str
    verdict: Verdict
    evidence: str
    next_step: str = ""


@dataclass(frozen=True)
class Question:
    """A message and a group. The message is named by its id, or by its queue and offset.

    :param account: the access key of the group's members, if its permissions are to be checked.
    """

    topic: str
    group: str
    msg_id: str = ""
    broker: str = ""
    queue_id: int | None = None
    offset: int | None = None
    account: str = ""

    @property
    def topic_in_words(self) -> str:
        """The topic in a sentence: that of another tool's queue in the queue's own spelling."""
        name = own_spelling(self.topic)
        return name if name == self.topic else quote(name)


@dataclass(frozen=True)
class Explanation:
    """The answer: all checks, in the order of a message's way, and the place of the message."""

    question: Question
    checks: tuple[Check, ...]
    msg_id: str = ""
    broker: str = ""
    queue_id: int | None = None
    queue_offset: int | None = None

    @property
    def decisive(self) -> Check | None:
        """Return the check that answers the question: a traced consumption, or else the first cause."""
        for verdict in (Verdict.CONSUMED, Verdict.CAUSE, Verdict.POSSIBLE):
            for check in self.checks:
                if check.verdict is verdict:
                    return check
        return None

    @property
    def answer(self) -> str:
        """Return the answer in a sentence."""
        found = self.decisive
        if found is None:
            return "No cause was found: every check is ruled out or unknown."
        if found.verdict is Verdict.POSSIBLE:
            return f"Possibly: {found.evidence}"
        return found.evidence


@dataclass(frozen=True)
class Unavailable:
    """The reason why a server does not tell a fact."""

    reason: str


async def tried(asking: Awaitable[T]) -> T | Unavailable:
    """Await a fact that servers may refuse or not support."""
    try:
        return await asking
    except AccessDeniedError as error:
        return Unavailable(f"this account may not ask: {error.message}")
    except BrokerError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return Unavailable(f"broker {error.address} does not support this question (only CometMQ's brokers do)")
        return Unavailable(error.message)
    except CometMQError as error:
        return Unavailable(error.message)


def quote(text: str) -> str:
    """Return a tag, expression or client id for a sentence; one that can be more than a name is cut and quoted."""
    if _NAME.fullmatch(text) and not may_be_sentence(text):
        return text
    clean = visible(text).replace(OPEN_QUOTE, "'").replace(_CLOSE_QUOTE, "'")
    return f"{OPEN_QUOTE}{clean[:_QUOTED]}{'…' if len(clean) > _QUOTED else ''}{_CLOSE_QUOTE}"


def moment(time_ms: int) -> str:
    """Format a time in UTC."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
