"""Jepsen's ``total-queue`` and ``kafka`` checks: what was sent beside what was read.

The history must end with reads of every queue to its end (the final polls).

=====================  ===========================================================================================
lost                   acknowledged, and another message after it was read, but it never was (``lost-write``)
unseen                 acknowledged, and never read, at the end of a queue
unexpected             read, but never sent
duplicated             at more places than it was sent (a repeated send may be there twice)
recovered              its sender got no answer, but it was read: this is no fault
failed read            read, although its sender was told that it was refused (``G1a``)
inconsistent offsets   two messages at one queue offset, in answers to producers or consumers
nonmonotonic poll      one answer has offsets that do not ascend, or begin before the one that was asked for
poll skip              one answer leaves out an offset
nonmonotonic send      a message that was sent after another one was acknowledged has an earlier place
=====================  ===========================================================================================
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tests.failover.checker.findings import Finding
from tests.failover.checker.history import History, Outcome, Poll, Queue, Send


@dataclass(frozen=True, slots=True)
class Totals:
    """The numbers of a history, which show that it tested something."""

    attempted: int
    acknowledged: int
    refused: int
    unknown: int
    read: int
    recovered: int
    repeated: int
    """Messages at two places whose client sent them more than once."""

    def __str__(self) -> str:
        return (
            f"{self.attempted} sent: {self.acknowledged} acknowledged, {self.refused} refused, {self.unknown} unknown "
            f"({self.recovered} of them read); {self.read} read, {self.repeated} of them twice by retries"
        )


def totals(history: History) -> Totals:
    """Count the messages of a history."""
    sends = history.sends
    outcomes = Counter(one.outcome for one in sends)
    places = _places(history)
    unknown = {one.value for one in sends if one.outcome is Outcome.INFO}
    return Totals(
        len(sends),
        outcomes[Outcome.OK],
        outcomes[Outcome.FAIL],
        outcomes[Outcome.INFO],
        len(places),
        len(unknown & places.keys()),
        sum(len(at) > 1 for at in places.values()),
    )


def check_queues(history: History) -> list[Finding]:
    """Return all anomalies of the messages."""
    sends = history.sends
    polls = history.polls
    places = _places(history)
    return [
        *_lost(sends, places),
        *_unexpected(sends, places),
        *_duplicated(sends, places),
        *_failed_reads(sends, places),
        *_inconsistent(sends, polls),
        *_polls(polls),
        *_nonmonotonic_sends(sends),
    ]


def _places(history: History) -> dict[str, set[tuple[Queue, int]]]:
    """Return the places at which each value was read."""
    places: dict[str, set[tuple[Queue, int]]] = defaultdict(set)
    for poll in history.polls:
        for offset, value in poll.read:
            places[value].add((poll.queue, offset))
    return places


def _lost(sends: Iterable[Send], places: dict[str, set[tuple[Queue, int]]]) -> Iterator[Finding]:
    highest: dict[Queue, int] = {}
    for at in places.values():
        for queue, offset in at:
            highest[queue] = max(offset, highest.get(queue, -1))
    for one in sends:
        if one.outcome is Outcome.OK and one.value not in places:
            end = highest.get(one.queue, -1)
            is_unseen = one.offset is not None and one.offset > end
            yield Finding(
                "unseen" if is_unseen else "lost",
                f"{one.value} was acknowledged by {one.server or 'the broker'} at {one.queue}:{one.offset} (log "
                f"{one.log_offset}), and never read; the queue was read up to {end}",
                frozenset({one.value}),
                frozenset() if one.offset is None else frozenset({(one.queue, one.offset)}),
            )


def _unexpected(sends: Iterable[Send], places: dict[str, set[tuple[Queue, int]]]) -> Iterator[Finding]:
    sent = {one.value for one in sends}
    for value, at in places.items():
        if value not in sent:
            yield Finding(
                "unexpected", f"{value} was read at {_text(at)}, and never sent", frozenset({value}), frozenset(at)
            )


def _duplicated(sends: Iterable[Send], places: dict[str, set[tuple[Queue, int]]]) -> Iterator[Finding]:
    attempts: Counter[str] = Counter()
    for one in sends:
        attempts[one.value] += one.attempts
    for value, at in places.items():
        if len(at) > attempts[value] > 0:
            yield Finding(
                "duplicated",
                f"{value} was sent {attempts[value]} times, and is at {_text(at)}",
                frozenset({value}),
                frozenset(at),
            )


def _failed_reads(sends: Iterable[Send], places: dict[str, set[tuple[Queue, int]]]) -> Iterator[Finding]:
    outcomes: dict[str, set[Outcome]] = defaultdict(set)
    for one in sends:
        outcomes[one.value].add(one.outcome)
    for value, known in outcomes.items():
        if known == {Outcome.FAIL} and value in places:
            at = places[value]
            yield Finding(
                "failed read", f"{value} was refused, but was read at {_text(at)}", frozenset({value}), frozenset(at)
            )


def _inconsistent(sends: Iterable[Send], polls: Iterable[Poll]) -> Iterator[Finding]:
    values: dict[tuple[Queue, int], set[str]] = defaultdict(set)
    log: dict[int, set[str]] = defaultdict(set)
    for one in sends:
        if one.outcome is Outcome.OK and one.offset is not None:
            values[one.queue, one.offset].add(one.value)
        if one.outcome is Outcome.OK and one.log_offset is not None:
            log[one.log_offset].add(one.value)
    for poll in polls:
        for offset, value in poll.read:
            values[poll.queue, offset].add(value)
    for (queue, offset), found in values.items():
        if len(found) > 1:
            yield Finding(
                "inconsistent offsets",
                f"{queue}:{offset} is {' and '.join(sorted(found))}",
                frozenset(found),
                frozenset({(queue, offset)}),
            )
    for place, found in log.items():
        if len(found) > 1:
            both = " and ".join(sorted(found))
            yield Finding("inconsistent offsets", f"the log's offset {place} was answered for {both}", frozenset(found))


def _polls(polls: Iterable[Poll]) -> Iterator[Finding]:
    for poll in polls:
        offsets = [offset for offset, _ in poll.read]
        at = frozenset((poll.queue, offset) for offset in offsets)
        if offsets and (offsets[0] < poll.asked or any(b <= a for a, b in itertools.pairwise(offsets))):
            yield Finding("nonmonotonic poll", str(poll), frozenset(), at)
        elif any(b > a + 1 for a, b in itertools.pairwise(offsets)):
            yield Finding("poll skip", str(poll), frozenset(), at)


def _nonmonotonic_sends(sends: Iterable[Send]) -> Iterator[Finding]:
    acknowledged = [one for one in sends if one.outcome is Outcome.OK and one.attempts == 1]
    yield from _backwards(acknowledged, "the log", lambda one: one.log_offset)
    queues: dict[Queue, list[Send]] = defaultdict(list)
    for one in acknowledged:
        queues[one.queue].append(one)
    for queue, some in queues.items():
        yield from _backwards(some, str(queue), lambda one: one.offset)


def _backwards(sends: list[Send], where: str, place: Callable[[Send], int | None]) -> Iterator[Finding]:
    """Yield each message that was sent after the acknowledgement of a message with a later place."""
    placed = [(one, at) for one in sends if (at := place(one)) is not None]
    ended = sorted(placed, key=lambda pair: pair[0].ended)
    done, latest, latest_at = 0, None, -1
    for one, at in sorted(placed, key=lambda pair: pair[0].began):
        while done < len(ended) and ended[done][0].ended < one.began:
            if ended[done][1] > latest_at:
                latest, latest_at = ended[done]
            done += 1
        if latest is not None and at <= latest_at:
            yield Finding(
                "nonmonotonic send",
                f"{one.value} was sent after {latest.value} was acknowledged at {latest_at} in {where}, and is at {at}",
                frozenset({one.value, latest.value}),
            )


def _text(places: Iterable[tuple[Queue, int]]) -> str:
    return " and ".join(f"{queue}:{offset}" for queue, offset in sorted(places))
