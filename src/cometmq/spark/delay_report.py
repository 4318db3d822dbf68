"""What the delay job found, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from cometmq.spark.report_table import table


class Reason(StrEnum):
    """Why a message is stuck, as far as that can be told."""

    NOT_REACHED = "not reached"
    NO_TIMER = "no timer"
    NO_TOPIC = "no topic"
    NOWHERE = "nowhere"
    PASSED = "passed"
    UNKNOWN = "unknown"


WORDS: Final = {
    Reason.NOT_REACHED: "the broker's delivery has not come to it: look into the broker's log, is its disk full?",
    Reason.NO_TIMER: "its broker is RocketMQ 4, which delivers no message with a delay of its own",
    Reason.NO_TOPIC: "its topic is not there any more",
    Reason.NOWHERE: "its record is damaged, or does not name the topic and queue where it belongs",
    Reason.PASSED: "delivery went past it, and it is not in its topic: lost, unless the topic was made anew since",
    Reason.UNKNOWN: "nothing here tells how far delivery was",
}
"""What each means to who reads it."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """How much later than due delayed messages were stored in their topic; all times in ms."""

    name: str
    """A topic, a level, or when the messages were due (UTC)."""
    messages: int
    early: int
    """Of them delivered before they were due."""
    p50: int
    p90: int
    p99: int
    max: int


@dataclass(frozen=True, slots=True)
class LateMessage:
    """A message that was delivered."""

    topic: str
    level: int
    """0 for any delay."""
    unique_key: str
    msg_id: str
    due_ms: int
    late_ms: int


@dataclass(frozen=True, slots=True)
class WaitingTopic:
    """What waits for one topic."""

    topic: str
    messages: int
    first_due_ms: int
    last_due_ms: int


@dataclass(frozen=True, slots=True)
class DueStretch:
    """What is due in a stretch of time: an hour of the next day, or a day after that."""

    topic: str
    """Empty for all topics that are not named."""
    begin_ms: int | None
    """``None`` for what is due already and for nobody too late yet."""
    end_ms: int | None
    """``None`` for everything later."""
    messages: int


@dataclass(frozen=True, slots=True)
class TimerCount:
    """A broker's own count of messages that wait with any delay, also of those that have left its log."""

    broker: str
    topic: str
    messages: int
    first_due_ms: int | None
    """Apache's brokers do not say when they are due."""
    last_due_ms: int | None


@dataclass(frozen=True, slots=True)
class TimerBehind:
    """A broker whose timer is behind, so that messages with any delay are stuck there."""

    broker: str
    seconds: int


@dataclass(frozen=True, slots=True)
class StuckReason:
    """How many messages are stuck for one reason."""

    reason: Reason
    broker: str
    topic: str
    messages: int


@dataclass(frozen=True, slots=True)
class StuckMessage:
    """A message that was due long ago and is not in its topic."""

    broker: str
    topic: str
    level: int
    """0 for any delay."""
    unique_key: str
    msg_id: str
    """Of the record that waits; ``cometmq message id`` shows it."""
    due_ms: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class DelayReport:
    """How exact delayed messages were, what waits until when, and what is stuck."""

    source: str
    at_ms: int
    """The moment that it speaks of."""
    grace_ms: int
    """What is due so long ago and not delivered is stuck."""
    delivered: int
    by_born: int
    """Of them with a due time reckoned from their born time."""
    topics: tuple[Lateness, ...]
    levels: tuple[Lateness, ...]
    hours: tuple[Lateness, ...]
    """By when they were due, oldest first."""
    slowest: tuple[LateMessage, ...]
    waiting: int
    waiting_topics: tuple[WaitingTopic, ...]
    """By messages, most first."""
    due: tuple[DueStretch, ...]
    """By time; within it topics in the order of ``waiting_topics``."""
    timer_counts: tuple[TimerCount, ...]
    timers_behind: tuple[TimerBehind, ...]
    stuck: int
    stuck_reasons: tuple[StuckReason, ...]
    stuck_messages: tuple[StuckMessage, ...]
    """Those that were due first."""
    notes: tuple[str, ...]
    seconds: float

    @property
    def is_stuck(self) -> bool:
        """Whether a message is stuck, or a whole timer."""
        return bool(self.stuck or self.timers_behind)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return asdict(self) | {"is_stuck": self.is_stuck}

    def due_by_time(self) -> list[tuple[str, int]]:
        """The stretches with their messages of all topics."""
        sums: dict[tuple[int | None, int | None], int] = {}
        for of in self.due:
            key = (of.begin_ms, of.end_ms)
            sums[key] = sums.get(key, 0) + of.messages
        return [(stretch_name(begin, end), count) for (begin, end), count in sums.items()]

    def render(self) -> str:
        """A summary to read in a terminal."""
        lines = [
            f"{self.delivered:,} delayed messages delivered, {self.waiting:,} wait, {self.stuck:,} are stuck: "
            f"{self.source} at {moment(self.at_ms)} UTC; {self.seconds:.1f} s"
        ]
        lines += [f"  {note}" for note in self.notes]
        lines += [f"  the timer of {of.broker} is {of.seconds:,} s behind" for of in self.timers_behind]
        for title, found in (("topic", self.topics), ("level", self.levels), ("due (UTC)", self.hours)):
            if found:
                late = ((of.name, of.messages, of.early, of.p50, of.p90, of.p99, of.max) for of in found)
                heads = (f"<late by ms, {title}", ">messages", ">early", ">p50", ">p90", ">p99", ">max")
                lines += ["", *table(heads, late)]
        if self.slowest:
            slow = (
                (of.unique_key or of.msg_id, of.topic, level_name(of.level), moment(of.due_ms), of.late_ms)
                for of in self.slowest
            )
            lines += ["", *table(("<slowest", "<topic", ">level", "<due (UTC)", ">late by ms"), slow)]
        lines += self._waiting_lines() + self._stuck_lines()
        return "\n".join(lines)

    def _waiting_lines(self) -> list[str]:
        lines = []
        if self.waiting_topics:
            waiting = (
                (of.topic, of.messages, moment(of.first_due_ms), moment(of.last_due_ms)) for of in self.waiting_topics
            )
            lines += ["", *table(("<waits for", ">messages", "<first due (UTC)", "<last due (UTC)"), waiting)]
            times = self.due_by_time()
            most = max(count for _, count in times)
            bars = ((name, count, "█" * max(1, count * 24 // most)) for name, count in times)
            lines += ["", *table(("<due (UTC)", ">messages", "<"), bars)]
        if self.timer_counts:
            counted = ((of.topic, of.messages, of.broker) for of in self.timer_counts)
            lines += ["", *table(("<any delay, as brokers count", ">messages", "<broker"), counted)]
        return lines

    def _stuck_lines(self) -> list[str]:
        if not self.stuck:
            return []
        lines = ["", f"  stuck: due more than {self.grace_ms // 1000:,} s ago and not delivered"]
        for of in self.stuck_reasons:
            lines.append(f"  {of.messages:>11,}  {of.topic or '(no topic)'} at {of.broker or '(broker not named)'}: ")
            lines[-1] += WORDS[of.reason]
        stuck = (
            (one.unique_key or None, one.topic or None, level_name(one.level), moment(one.due_ms), one.msg_id)
            for one in self.stuck_messages
        )
        return [*lines, "", *table(("<stuck", "<topic", ">level", "<due (UTC)", "<waits as"), stuck)]


def level_name(level: int) -> str:
    """A delay level in a table."""
    return str(level) if level else "any"


def stretch_name(begin_ms: int | None, end_ms: int | None) -> str:
    """A stretch of time in a table."""
    if begin_ms is None:
        return "due now"
    if end_ms is None:
        return f"later than {moment(begin_ms)}"
    return f"{moment(begin_ms)[:16]} … {moment(end_ms)[:16]}"


def moment(at_ms: int) -> str:
    """A time in UTC, to the second; years beyond those of the calendar as milliseconds."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
