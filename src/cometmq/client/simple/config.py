"""The options of simple consumers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cometmq.client.consumer.config import ConsumeFromWhere
from cometmq.client.send.config import check_above_zero, check_zero_or_more

MAX_MESSAGES: Final = 32
"""Maximum number of messages that brokers return for one request."""
MAX_TOPICS: Final = 16_000
"""Maximum number of topics of a consumer: brokers hold at most 16,384 waiting requests of a connection."""
MAX_HEARTBEAT_TOPICS: Final = 1_000
"""Maximum number of topics of a group in a heartbeat, which brokers enforce."""
MAX_INVISIBLE_S: Final = 3 * 24 * 3600.0
"""Maximum invisible time in seconds, which brokers enforce."""


@dataclass(frozen=True, kw_only=True)
class SimpleConsumerConfig:
    """The options of a simple consumer.

    :raises ValueError: a value is out of its range.
    """

    invisible_s: float = 60.0
    """Number of seconds for which no other member receives a received message, up to three days."""
    wait_s: float = 20.0
    """Number of seconds for which ``receive`` waits for messages."""
    renew_up_to_s: float = 0.0
    """Number of seconds for which a message stays invisible while it is neither acknowledged nor given back: its
    invisible time is renewed in the background. 0 means that it is not renewed.
    """
    gives_back_when_gone: bool = False
    """If true, CometMQ's brokers give the messages of a consumer whose connections have closed to others within a
    second, also before their invisible time is over; Apache's brokers ignore this.
    """
    retries_first: bool = False
    """If true, CometMQ's brokers let every second request hand out messages that are delivered again before others, so
    that they do not wait behind all of them; Apache's brokers ignore this.
    """
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    """The place at which a new group starts to read: the first or the last offset of each queue."""
    error_delay_s: float = 1.0
    """Number of seconds before a failed request for messages is repeated."""
    retry_s: float = 10.0
    """Number of seconds for which an acknowledgement, a rejection, or a change of an invisible time is repeated while
    its broker does not answer.
    """

    def __post_init__(self) -> None:
        check_above_zero(self, "invisible_s", "error_delay_s")
        check_zero_or_more(self, "wait_s", "renew_up_to_s", "retry_s")
        check_invisible_time(self.invisible_s)
        if self.consume_from_where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            raise ValueError("consume_from_where must be the first or the last offset, because pops know no other")


def check_invisible_time(seconds: float) -> None:
    """Check an invisible time.

    :raises ValueError: it is below 0 or above three days.
    """
    if not 0 <= seconds <= MAX_INVISIBLE_S:
        raise ValueError(f"an invisible time must be from 0 to {MAX_INVISIBLE_S:g} s, not {seconds:g} s")
