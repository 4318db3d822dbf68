"""The checks of ``cometmq doctor --cluster`` on what one broker says of itself: disk, version, clock, retention."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cometmq.client.admin.finding import ADVICE, OK, PROBLEM, Finding
from cometmq.limits import CLOCK_BEHIND_MS
from cometmq.quantity import duration_text

DISK_FULL_RATIO: Final = 0.9
"""Brokers refuse messages above this."""
DISK_HIGH_RATIO: Final = 0.75
"""Brokers delete old messages early above this."""
SKEW_SECONDS: Final = 2.0
"""Brokers of Apache's tell their time in whole seconds."""
ROLL_SECONDS: Final = 2 * 86_400
"""RocketMQ 5 stores a message with any delay again after so long (``timerRollWindowSlot``)."""

_UPTIME: Final = re.compile(r"(\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds")
_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class BrokerState:
    """The runtime information of a broker, and the times here before it was asked and after its answer, in ms."""

    table: Mapping[str, str]
    asked_ms: int
    answered_ms: int

    @property
    def version(self) -> str:
        """CometMQ's version, else that of the wire."""
        ours = self.table.get("cometmqVersion")
        return f"CometMQ {ours}" if ours else self.table.get("brokerVersionDesc", "unknown version")

    @property
    def is_cometmq(self) -> bool:
        """Tell whether the broker is CometMQ's."""
        return "cometmqVersion" in self.table

    def number(self, key: str) -> int:
        """Return a number of the runtime information; 0 when the broker does not tell it."""
        value = self.table.get(key, "")
        return int(value) if value.isdecimal() else 0

    @property
    def now_ms(self) -> int | None:
        """The broker's clock when it answered; Apache's tells its start and its uptime."""
        now, boot = self.table.get("currentTimestamp", ""), self.table.get("bootTimestamp", "")
        if now.isdecimal():
            return int(now)
        uptime = _UPTIME.search(self.table.get("runtime", ""))
        if uptime is None or not boot.isdecimal():
            return None
        days, hours, minutes, seconds = map(int, uptime.groups())
        return int(boot) + 1000 * (((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def disk_of(what: str, state: BrokerState) -> Finding:
    """Check how full the disk of the log is."""
    try:
        ratio = float(state.table.get("commitLogDiskRatio", ""))
    except ValueError:
        return Finding(f"disk of {what}", ADVICE, "not known", "look at the machine itself")
    found = f"{ratio:.0%} used"
    if ratio >= DISK_FULL_RATIO:
        return Finding(f"disk of {what}", PROBLEM, found, "free some room: the broker refuses messages")
    if ratio >= DISK_HIGH_RATIO:
        return Finding(f"disk of {what}", ADVICE, found, "free some room: old messages are deleted early")
    return Finding(f"disk of {what}", OK, found)


def clock_of(what: str, state: BrokerState) -> Finding:
    """Compare the clock of a broker with the one here."""
    check, now = f"clock of {what}", state.now_ms
    if now is None:
        return Finding(check, ADVICE, "not known", "compare the clocks of the machines")
    early, late = state.asked_ms - now, now - state.answered_ms
    skew = max(early, late, 0) / 1000
    if skew < SKEW_SECONDS:
        return Finding(check, OK, "as here")
    side = "behind" if early > late else "ahead of"
    todo = "set both by NTP: delays, retention and --since go by the clocks of brokers"
    return Finding(check, ADVICE, f"{duration_text(skew)} {side} the one here", todo)


def store_of(what: str, state: BrokerState) -> Iterator[Finding]:
    """Tell of a store that is ahead of the broker's clock, and of queue entries that lead to no message."""
    behind, missing = state.number("clockBehindStoreMs"), state.number("missingQueueEntries")
    if behind > CLOCK_BEHIND_MS:
        yield store_ahead(what, behind)
    if missing:
        yield entries_missing(what, f"{missing:,}")


def entries_missing(what: str, missing: str) -> Finding:
    """Tell of queue entries that lead to no message."""
    found = f"entries without a message, which readers pass over: {missing}"
    todo = "stop it and run cometmq pipeline rebuild, which finds what the log has of them"
    return Finding(f"queues of {what}", PROBLEM, found, todo)


def store_ahead(what: str, behind_ms: int) -> Finding:
    """Tell of a newest message that is stored later than the clock shows."""
    found = f"its newest message is {duration_text(behind_ms / 1000)} ahead of its clock"
    todo = "set the clock by NTP; if it was ahead once, new messages carry that time until it has passed"
    return Finding(f"store times of {what}", ADVICE, found, todo)


def versions_of(states: Sequence[BrokerState]) -> Finding:
    """Check that brokers have one version."""
    versions = sorted({state.version for state in states})
    if len(versions) > 1:
        return Finding("versions", ADVICE, ", ".join(versions), "upgrade the older brokers")
    return Finding("versions", OK, ", ".join(versions) or "none")


def retention_of(what: str, state: BrokerState, config: Mapping[str, str]) -> Finding:
    """Compare how long a broker keeps its log with the longest delay of a message.

    CometMQ keeps messages that wait longer beside the log. Apache's deletes them before they are delivered.
    """
    check, hours = f"retention of {what}", config.get("fileReservedTime", "")
    if not hours.isdecimal():
        return Finding(check, ADVICE, "not known", "see fileReservedTime")
    kept = f"{hours} hours"
    if state.is_cometmq:
        return Finding(check, OK, f"{kept}; messages that wait longer are kept")
    longest = max((_seconds(level) for level in config.get("messageDelayLevel", "").split()), default=0)
    if config.get("timerWheelEnable") == "true":
        longest = max(longest, min(_seconds(config.get("timerMaxDelaySec", "0") + "s"), ROLL_SECONDS))
    if int(hours) * 3_600 <= longest:
        found = f"{kept}, and messages may wait {duration_text(longest)} in the log"
        return Finding(check, PROBLEM, found, "raise fileReservedTime: they are deleted before they are delivered")
    return Finding(check, OK, f"{kept}; the longest delay in the log is {duration_text(longest)}")


def _seconds(delay: str) -> int:
    """Return the seconds of ``2h``; 0 for what is no delay."""
    number, unit = delay[:-1], delay[-1:]
    return int(number) * _UNIT_SECONDS.get(unit, 0) if number.isdecimal() else 0
