"""The options of consumers of lite topics, and where they start to read."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Final

from cometmq.client.send.config import ClientConfig, check_above_zero, check_zero_or_more
from cometmq.remoting.lite.bodies import OffsetOption, OffsetOptionType

_FIRST: Final = 1
_END: Final = 2
MAX_MESSAGES: Final = 32
"""Maximum number of messages that brokers return for one request."""


@dataclass(frozen=True, kw_only=True)
class LiteTopicConfig(ClientConfig):
    """The options of a consumer of lite topics.

    :raises ValueError: a value is out of its range.
    """

    invisible_s: float = 60.0
    """Number of seconds for which no other member receives a received message. While a listener runs, the time is
    extended.
    """
    poll_s: float = 15.0
    """Number of seconds for which a broker waits for messages before it answers."""
    retry_s: float = 10.0
    """Number of seconds after which a message that a listener failed to consume is received again."""
    error_delay_s: float = 1.0
    """Number of seconds before a failed request for messages is repeated."""
    sync_s: float = 30.0
    """Number of seconds between two messages to the brokers that repeat all subscriptions."""
    consume_concurrency: int = 20
    """Maximum number of lite topics whose messages a listener consumes at a time."""

    def __post_init__(self) -> None:
        check_above_zero(self, "invisible_s", "poll_s", "error_delay_s", "sync_s", "consume_concurrency")
        check_zero_or_more(self, "retry_s")


@dataclass(frozen=True)
class StartAt:
    """The place at which a group starts to read a lite topic; use the class methods.

    Without it, the group continues, and a group that has not read the lite topic starts as brokers choose: with all
    messages that are recent.
    """

    option: OffsetOption

    @classmethod
    def first(cls) -> StartAt:
        """Start at the first message."""
        return cls(OffsetOption(OffsetOptionType.POLICY, _FIRST))

    @classmethod
    def end(cls) -> StartAt:
        """Start after the last message."""
        return cls(OffsetOption(OffsetOptionType.POLICY, _END))

    @classmethod
    def offset(cls, offset: int) -> StartAt:
        """Start at an offset in the lite topic."""
        return cls(OffsetOption(OffsetOptionType.OFFSET, offset))

    @classmethod
    def again(cls, count: int) -> StartAt:
        """Read the last ``count`` consumed messages again."""
        return cls(OffsetOption(OffsetOptionType.TAIL_N, count))

    @classmethod
    def time(cls, moment: datetime.datetime) -> StartAt:
        """Start at the first message that was stored at a time or later; Apache's brokers continue instead."""
        return cls(OffsetOption(OffsetOptionType.TIMESTAMP, round(moment.timestamp() * 1000)))
