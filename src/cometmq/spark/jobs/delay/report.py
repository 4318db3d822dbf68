"""The delay job's report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cometmq.quantity import are, quantity
from cometmq.spark.jobs.report.parts import Notes, Part, Table, bar_rows, moment
from cometmq.spark.jobs.report.plots import Bars, Line, Plot, bars
from cometmq.spark.jobs.report.report import PARTLY_DONE, Report


class Reason(StrEnum):
    """The known reasons why a message may be stuck."""

    NOT_REACHED = "not reached"
    NO_TIMER = "no timer"
    NO_TOPIC = "no topic"
    NOWHERE = "nowhere"
    PASSED = "passed"
    UNKNOWN = "unknown"


WORDS: Final = {
    Reason.NOT_REACHED: "the broker has not delivered it yet: check the broker's log and whether its disk is full",
    Reason.NO_TIMER: "its broker is RocketMQ 4, which does not support arbitrary delays",
    Reason.NO_TOPIC: "its topic no longer exists",
    Reason.NOWHERE: "its record is damaged, or does not contain its topic and queue",
    Reason.PASSED: "delivery passed it, but it is not in its topic: it is lost, unless the topic was recreated",
    Reason.UNKNOWN: "the progress of delivery is unknown",
}
"""Description of each reason, for the report."""
_DRAWN: Final = 12
"""Maximum number of topics that a plot shows."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """The times from due time to delivery for a group of delayed messages, in ms."""

    name: str
    """Name of the group: a topic, a delay level, or the hour (UTC) in which the messages were due."""
    messages: int
    early: int
    """Number of messages that were delivered too early."""
    p50: int
    p90: int
    p99: int
    max: int


@dataclass(frozen=True, slots=True)
class LateMessage:
    """One delivered message, with its lateness."""

    topic: str
    level: int
    """Delay level, or 0 for an arbitrary delay."""
    unique_key: str
    msg_id: str
    due_ms: int
    late_ms: int


@dataclass(frozen=True, slots=True)
class WaitingTopic:
    """The waiting messages of one topic."""

    topic: str
    messages: int
    first_due_ms: int
    last_due_ms: int


@dataclass(frozen=True, slots=True)
class DueInterval:
    """The messages that are due in one interval: an hour in the next day, or a full day after that."""

    topic: str
    """Name of the topic, or empty for the total of all other topics."""
    begin_ms: int | None
    """Start of the interval, or ``None`` for messages that are already due and not yet too late."""
    end_ms: int | None
    """End of the interval, or ``None`` for all later messages."""
    messages: int


@dataclass(frozen=True, slots=True)
class TimerCount:
    """A broker's own count of waiting messages with arbitrary delays, including messages that are no longer in its
    log.
    """

    broker: str
    topic: str
    messages: int
    first_due_ms: int | None
    """Number of messages by due time, which Apache's brokers do not report."""
    last_due_ms: int | None


@dataclass(frozen=True, slots=True)
class TimerBehind:
    """A broker whose timer is behind, so that messages with arbitrary delays are stuck on it."""

    broker: str
    seconds: int


@dataclass(frozen=True, slots=True)
class StuckReason:
    """The number of messages on a broker that are stuck for one reason."""

    reason: Reason
    broker: str
    topic: str
    messages: int


@dataclass(frozen=True, slots=True)
class StuckMessage:
    """An overdue message that is not in its topic yet."""

    broker: str
    topic: str
    level: int
    """Delay level, or 0 for an arbitrary delay."""
    unique_key: str
    msg_id: str
    """Message id of the waiting record, which ``cometmq message id`` can show."""
    due_ms: int
    reason: Reason


@dataclass(frozen=True)
class DelayReport(Report):
    """Lateness of delivered messages, due times of waiting messages, and stuck messages."""

    TITLE = "Delayed messages of {0.source}"
    COMPUTED = ("is_stuck",)

    source: str
    at_ms: int
    """Time of the report, in ms since 1970."""
    grace_ms: int
    """A message that is overdue by more than this time is stuck."""
    delivered: int
    by_born: int
    """Number of delivered messages whose due time was computed from their born time."""
    topics: tuple[Lateness, ...]
    levels: tuple[Lateness, ...]
    hours: tuple[Lateness, ...]
    """Lateness by the hour in which messages were due, starting with the oldest."""
    slowest: tuple[LateMessage, ...]
    waiting: int
    waiting_topics: tuple[WaitingTopic, ...]
    """Topics with waiting messages, most messages first."""
    due: tuple[DueInterval, ...]
    """Waiting messages by due time. Topics with the same due time are in the order of ``waiting_topics``."""
    timer_counts: tuple[TimerCount, ...]
    timers_behind: tuple[TimerBehind, ...]
    stuck: int
    stuck_reasons: tuple[StuckReason, ...]
    stuck_messages: tuple[StuckMessage, ...]
    """Stuck messages with the earliest due times."""
    notes: tuple[str, ...]
    seconds: float

    @property
    def is_stuck(self) -> bool:
        """Return True if a message or a broker's timer is stuck."""
        return bool(self.stuck or self.timers_behind)

    @property
    def exit_code(self) -> int:
        """Return exit code 3 if something is stuck."""
        return PARTLY_DONE if self.is_stuck else 0

    def due_by_time(self) -> list[tuple[str, int]]:
        """Return the intervals with their totals over all topics."""
        sums: dict[tuple[int | None, int | None], int] = {}
        for of in self.due:
            key = (of.begin_ms, of.end_ms)
            sums[key] = sums.get(key, 0) + of.messages
        return [(interval_name(begin, end), count) for (begin, end), count in sums.items()]

    @property
    def verdict(self) -> str:
        """Return a sentence that states whether messages or timers are stuck."""
        found = [f"{quantity(self.stuck, 'message')} {are(self.stuck)} stuck"] if self.stuck else []
        late = len(self.timers_behind)
        found += [f"{quantity(late, 'timer')} {are(late)} behind"] if late else []
        return "; ".join(found) or "No message is stuck"

    def _figures(self) -> list[tuple[str, str]]:
        counts = (("delivered", self.delivered), ("waiting", self.waiting), ("stuck", self.stuck))
        return [*((f"{count:,}", name) for name, count in counts), (f"{self.seconds:.1f} s", "duration")]

    def _parts(self) -> Iterator[Part]:
        yield (
            f"{self.delivered:,} delayed messages delivered, {self.waiting:,} waiting, {self.stuck:,} stuck: "
            f"{self.source} at {moment(self.at_ms)} UTC; {self.seconds:.1f} s"
        )
        if self.notes:
            yield Notes(self.notes)
        if self.timers_behind:
            behind = [f"the timer of {of.broker} is {of.seconds:,} s behind" for of in self.timers_behind]
            yield Notes(behind, urgent=True)
        for title, found in (("topic", self.topics), ("level", self.levels), ("due (UTC)", self.hours)):
            if found:
                yield Table(
                    (f"<late by ms, {title}", ">messages", ">early", ">p50", ">p90", ">p99", ">max"),
                    [(of.name, of.messages, of.early, of.p50, of.p90, of.p99, of.max) for of in found],
                    f"Lateness by {title}",
                )
        if self.slowest:
            yield Table(
                ("<slowest", "<topic", ">level", "<due (UTC)", ">late by ms"),
                [
                    (of.unique_key or of.msg_id, of.topic, level_name(of.level), moment(of.due_ms), of.late_ms)
                    for of in self.slowest
                ],
                "The latest messages",
            )
        if self.waiting_topics:
            yield Table(
                ("<waits for", ">messages", "<first due (UTC)", "<last due (UTC)"),
                [
                    (of.topic, of.messages, moment(of.first_due_ms), moment(of.last_due_ms))
                    for of in self.waiting_topics
                ],
                "Waiting, by topic",
            )
            yield Table(
                ("<due (UTC)", ">messages", "<"), bar_rows(self.due_by_time(), 24), "Waiting, by when they are due"
            )
        if self.timer_counts:
            counted = [(of.topic, of.messages, of.broker) for of in self.timer_counts]
            yield Table(
                ("<any delay, as brokers count", ">messages", "<broker"), counted, "Any delay, as brokers count"
            )
        if self.stuck:
            yield Notes(
                [_stuck_line(of) for of in self.stuck_reasons],
                f"stuck: due more than {self.grace_ms // 1000:,} s ago and not delivered",
                urgent=True,
            )
            yield Table(
                ("<stuck", "<topic", ">level", "<due (UTC)", "<waits as"),
                [
                    (of.unique_key or None, of.topic or None, level_name(of.level), moment(of.due_ms), of.msg_id)
                    for of in self.stuck_messages
                ],
                "Stuck messages",
            )

    def _plots(self) -> list[Plot]:
        times = self.due_by_time()
        begins = [(name.partition(" … ")[0], count) for name, count in times]
        plots: list[Plot] = [bars("Due, from … (UTC) on", "messages", begins)]
        for title, found in (("topic", self.topics[:_DRAWN]), ("level", self.levels)):
            ranks = {rank: [getattr(of, rank) for of in found] for rank in ("p50", "p90", "p99")}
            plots.append(Bars(f"Late by {title}", "ms", [of.name[:24] for of in found], ranks))
        if len(self.hours) > 1:
            curves = {rank: [getattr(of, rank) for of in self.hours] for rank in ("p50", "p99", "max")}
            title = f"Late by when it was due, from {self.hours[0].name} on"
            at = range(len(self.hours))
            plots.append(Line(title, "ms", "hours in which something was due", at, curves))
        return plots


def _stuck_line(of: StuckReason) -> str:
    place = f"{of.topic or '(no topic)'} at {of.broker or '(broker not named)'}"
    return f"{of.messages:>9,}  {place}: {WORDS[of.reason]}"


def level_name(level: int) -> str:
    """Format a delay level for a table."""
    return str(level) if level else "any"


def interval_name(begin_ms: int | None, end_ms: int | None) -> str:
    """Format a time interval for a table."""
    if begin_ms is None:
        return "due now"
    if end_ms is None:
        return f"later than {moment(begin_ms)}"
    return f"{moment(begin_ms, 'm')} … {moment(end_ms, 'm')}"
