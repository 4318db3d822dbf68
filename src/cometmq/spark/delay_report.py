"""What the delay job found, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final


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
        """A summary to read in a terminal of 100 columns."""
        lines = [
            f"{self.delivered:,} delayed messages delivered, {self.waiting:,} wait, {self.stuck:,} are stuck: "
            f"{self.source} at {moment(self.at_ms)} UTC; {self.seconds:.1f} s"
        ]
        lines += [f"  {note}" for note in self.notes]
        lines += [f"  the timer of {of.broker} is {of.seconds:,} s behind" for of in self.timers_behind]
        for title, found in (("topic", self.topics), ("level", self.levels), ("due (UTC)", self.hours)):
            if found:
                lines += ["", f"  {'late by ms, ' + title:<44} {'messages':>11} {'early':>7} {'p50':>7} {'p90':>7} "]
                lines[-1] += f"{'p99':>8} {'max':>10}"
                lines += [
                    f"  {of.name:<44} {of.messages:>11,} {of.early:>7,} {of.p50:>7,} {of.p90:>7,} {of.p99:>8,} "
                    f"{of.max:>10,}"
                    for of in found
                ]
        if self.slowest:
            lines += ["", f"  {'slowest':<36} {'topic':<20} {'level':>5}  {'due (UTC)':<19} {'late by ms':>11}"]
            lines += [
                f"  {of.unique_key or of.msg_id:<36} {of.topic:<20} {level_name(of.level):>5}  {moment(of.due_ms):<19} "
                f"{of.late_ms:>11,}"
                for of in self.slowest
            ]
        lines += self._waiting_lines() + self._stuck_lines()
        return "\n".join(lines)

    def _waiting_lines(self) -> list[str]:
        lines = []
        if self.waiting_topics:
            lines += ["", f"  {'waits for':<44} {'messages':>11}  {'first due (UTC)':<19}  {'last due (UTC)':<19}"]
            lines += [
                f"  {of.topic:<44} {of.messages:>11,}  {moment(of.first_due_ms):<19}  {moment(of.last_due_ms):<19}"
                for of in self.waiting_topics
            ]
            times = self.due_by_time()
            most = max(count for _, count in times)
            lines += ["", f"  {'due (UTC)':<42} {'messages':>11}"]
            lines += [f"  {name:<42} {count:>11,}  {'█' * max(1, count * 36 // most)}" for name, count in times]
        if self.timer_counts:
            lines += ["", f"  {'any delay, as brokers count':<44} {'messages':>11}  {'broker':<24}"]
            lines += [f"  {of.topic:<44} {of.messages:>11,}  {of.broker:<24}" for of in self.timer_counts]
        return lines

    def _stuck_lines(self) -> list[str]:
        if not self.stuck:
            return []
        lines = ["", f"  stuck: due more than {self.grace_ms // 1000:,} s ago and not delivered"]
        for of in self.stuck_reasons:
            lines.append(f"  {of.messages:>11,}  {of.topic or '(no topic)'} at {of.broker or '(broker not named)'}: ")
            lines[-1] += WORDS[of.reason]
        lines += ["", f"  {'stuck':<36} {'topic':<20} {'level':>5}  {'due (UTC)':<19}  {'waits as':<34}"]
        lines += [
            f"  {one.unique_key or '–':<36} {one.topic or '–':<20} {level_name(one.level):>5}  "
            f"{moment(one.due_ms):<19}  {one.msg_id:<34}"
            for one in self.stuck_messages
        ]
        return lines


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
