"""Right histories, and mistakes that are planted in them: each check must find its mistake, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from tests.failover.checker.history import Commit, History, Outcome, Poll, Queue, Send

QUEUES: Final = tuple(Queue("Planted", number) for number in range(3))
MESSAGES: Final = 120
RECORD_BYTES: Final = 100
GROUP: Final = "readers"
SERVERS: Final = ("a", "b")
"""The masters of epochs 1 and 2; the second begins in the middle of the log."""
EPOCHS: Final = ((1, 0), (2, RECORD_BYTES * (MESSAGES // 2)))
MASTERS: Final = {1: "a", 2: "b"}


def right_history(seed: int) -> History:
    """Return a history without a fault: some answers are lost, some messages refused, and some sent again."""
    rng = random.Random(seed)
    history = History()
    logs: dict[Queue, list[str]] = {queue: [] for queue in QUEUES}
    now, end = 0.0, 0
    for number in range(MESSAGES):
        queue, value = rng.choice(QUEUES), f"m{number}"
        began, now = now, now + rng.uniform(0.001, 0.01)
        kind = rng.choice(("ok", "ok", "ok", "refused", "lost", "stored", "again")) if number % 20 else "ok"
        server = SERVERS[end >= EPOCHS[1][1]]
        one = Send(f"p{number % 3}", value, queue, began, now, Outcome.INFO)
        if kind == "refused":
            history.add(replace(one, outcome=Outcome.FAIL))
            continue
        if kind != "lost":
            log = logs[queue]
            for _ in range(2 if kind == "again" else 1):
                log.append(value)
                end += RECORD_BYTES
            if kind == "ok":
                one = replace(
                    one, outcome=Outcome.OK, server=server, offset=len(log) - 1, log_offset=end - RECORD_BYTES
                )
            elif kind == "again":
                one = replace(one, outcome=Outcome.OK, offset=len(log) - 1, attempts=2)
        history.add(one)
        if number % 5 == 0:
            now = _read(history, logs, rng, now)
    while now < 2.0:
        now = _read(history, logs, rng, now + 0.1)
    for queue, log in logs.items():
        for at in range(0, len(log), 7):
            read = tuple(enumerate(log))[at : at + 7]
            history.add(Poll("final", queue, now, now + 0.01, at, read))
            now += 0.02
    return history


def _read(history: History, logs: dict[Queue, list[str]], rng: random.Random, now: float) -> float:
    queue = rng.choice([queue for queue in QUEUES if logs[queue]])
    log = logs[queue]
    at = rng.randrange(len(log))
    history.add(Poll("reader", queue, now, now + 0.001, at, tuple(enumerate(log))[at : at + 4], "a"))
    committed = len(log)
    history.add(Commit("reader", GROUP, queue, now + 0.001, now + 0.002, True, committed))
    history.add(Commit("reader", GROUP, queue, now + 0.002, now + 0.003, False, committed))
    return now + 0.003


Plant = Callable[[History, random.Random], None]


def acknowledged(history: History, rng: random.Random) -> Send:
    """Return a message in the middle of its queue that was acknowledged once."""
    last = {queue: max(offset for offset, _ in _read_of(history, queue)) for queue in QUEUES}
    return rng.choice(
        [
            one
            for one in history.sends
            if one.outcome is Outcome.OK
            and one.attempts == 1
            and one.offset is not None
            and one.offset < last[one.queue]
        ]
    )


def _read_of(history: History, queue: Queue) -> Iterator[tuple[int, str]]:
    for poll in history.polls:
        if poll.queue == queue:
            yield from poll.read


def _change(history: History, before: object, after: Send | Poll | Commit | None) -> None:
    at = next(i for i, one in enumerate(history.operations) if one is before)
    history.operations[at : at + 1] = [] if after is None else [after]


def _polls(history: History, change: Callable[[Poll], tuple[tuple[int, str], ...]]) -> None:
    history.operations[:] = [
        replace(one, read=change(one)) if isinstance(one, Poll) else one for one in history.operations
    ]


def _lose(history: History, rng: random.Random) -> None:
    """An acknowledged message is not there; the following ones move up to its place."""
    gone = acknowledged(history, rng)
    _polls(history, lambda poll: tuple(pair for pair in poll.read if pair[1] != gone.value))


def _lose_end(history: History, rng: random.Random) -> None:
    queue = rng.choice(QUEUES)
    now = max(one.ended for one in history.operations)
    offset = max(offset for offset, _ in _read_of(history, queue)) + 1
    history.add(Send("p0", "last", queue, now, now + 0.01, Outcome.OK, "b", offset, 10**6))


def _invent(history: History, rng: random.Random) -> None:
    poll = rng.choice([poll for poll in history.polls if poll.read])
    _change(history, poll, replace(poll, read=(*poll.read, (poll.read[-1][0] + 1000, "ghost"))))


def _repeat(history: History, rng: random.Random) -> None:
    """A message that was sent once is there twice, at the end of its queue."""
    queue = rng.choice(QUEUES)
    once = rng.choice(
        [one for one in history.sends if one.outcome is Outcome.OK and one.queue == queue and one.attempts == 1]
    )
    end = max(offset for offset, _ in _read_of(history, queue)) + 1
    history.add(Poll("final", queue, 9.0, 9.1, end, ((end, once.value),)))


def _read_refused(history: History, rng: random.Random) -> None:
    refused = rng.choice([one for one in history.sends if one.outcome is Outcome.FAIL])
    end = max(offset for offset, _ in _read_of(history, refused.queue)) + 1
    history.add(Poll("final", refused.queue, 9.0, 9.1, end, ((end, refused.value),)))


def _reuse_offset(history: History, rng: random.Random) -> None:
    """A consumer has read a message that a later master replaced by another one."""
    one = acknowledged(history, rng)
    assert one.offset is not None
    other = next(x for x in history.sends if x.outcome is Outcome.INFO)
    history.add(Poll("reader", one.queue, one.began, one.ended, one.offset, ((one.offset, other.value),)))


def _reuse_log_offset(history: History, rng: random.Random) -> None:
    one, other = sorted(rng.sample([x for x in history.sends if x.log_offset is not None], 2), key=lambda x: x.began)
    _change(history, other, replace(other, log_offset=one.log_offset))


def _turn_poll(history: History, rng: random.Random) -> None:
    poll = rng.choice([poll for poll in history.polls if len(poll.read) > 1])
    _change(history, poll, replace(poll, read=tuple(reversed(poll.read))))


def _skip_in_poll(history: History, rng: random.Random) -> None:
    poll = rng.choice([poll for poll in history.polls if poll.client == "reader" and len(poll.read) > 2])
    _change(history, poll, replace(poll, read=(poll.read[0], *poll.read[2:])))


def _send_backwards(history: History, rng: random.Random) -> None:
    """A later message gets a place before one that had been acknowledged."""
    ok = [one for one in history.sends if one.log_offset is not None]
    at = rng.randrange(2, len(ok))
    before = ok[at - 2].log_offset
    assert before is not None
    _change(history, ok[at], replace(ok[at], log_offset=before - 1))


def _ahead(history: History, rng: random.Random) -> None:
    read = rng.choice([one for one in history.commits if not one.is_write])
    _change(history, read, replace(read, offset=read.offset + MESSAGES))


def _behind(history: History, rng: random.Random) -> None:
    read = [one for one in history.commits if not one.is_write and one.began > 1.9][-1]
    _change(history, read, replace(read, offset=0))


def _second_master(history: History, rng: random.Random) -> None:
    one = rng.choice([one for one in history.sends if one.server == "b"])
    _change(history, one, replace(one, server="a"))


PLANTS: Final[dict[str, tuple[Plant, frozenset[str]]]] = {
    "an acknowledged message is gone": (_lose, frozenset({"lost", "poll skip"})),
    "an acknowledged message at the end is gone": (_lose_end, frozenset({"unseen"})),
    "a message comes from nowhere": (_invent, frozenset({"unexpected", "poll skip"})),
    "a message is stored twice": (_repeat, frozenset({"duplicated"})),
    "a refused message is read": (_read_refused, frozenset({"failed read"})),
    "a queue offset is given again": (_reuse_offset, frozenset({"inconsistent offsets", "duplicated"})),
    "a log offset is given again": (
        _reuse_log_offset,
        frozenset({"inconsistent offsets", "nonmonotonic send", "two masters"}),
    ),
    "a poll turns its messages": (_turn_poll, frozenset({"nonmonotonic poll"})),
    "a poll leaves out a message": (_skip_in_poll, frozenset({"poll skip"})),
    "a message goes before an acknowledged one": (_send_backwards, frozenset({"nonmonotonic send", "two masters"})),
    "a group jumps ahead": (_ahead, frozenset({"offset ahead"})),
    "a group goes back": (_behind, frozenset({"offset behind"})),
    "an old master acknowledges": (_second_master, frozenset({"two masters"})),
}
"""What is planted, the plant, and the kinds of findings that it may give."""
