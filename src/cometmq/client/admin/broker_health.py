"""The checks of ``cometmq doctor --cluster`` for a single broker: disk, version, clock and retention."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cometmq.client.admin.finding import ADVICE, OK, PROBLEM, Finding
from cometmq.limits import CLOCK_BEHIND_MS
from cometmq.quantity import duration_text

DISK_FULL_RATIO: Final = 0.9
"""Disk usage above which brokers reject messages."""
DISK_HIGH_RATIO: Final = 0.75
"""Disk usage above which brokers delete old messages early."""
SKEW_SECONDS: Final = 2.0
"""Clock difference in seconds up to which clocks count as equal: Apache's brokers report times in full seconds."""
ROLL_SECONDS: Final = 2 * 86_400
"""Time after which RocketMQ 5 rewrites a message with an arbitrary delay (``timerRollWindowSlot``)."""

_UPTIME: Final = re.compile(r"(\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds")
_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A broker's runtime information, with the local times before the request and after the response."""

    table: Mapping[str, str]
    asked_ms: int
    answered_ms: int

    @property
    def version(self) -> str:
        """Return CometMQ's version, or the protocol version for other brokers."""
        ours = self.table.get("cometmqVersion")
        return f"CometMQ {ours}" if ours else self.table.get("brokerVersionDesc", "unknown version")

    @property
    def is_cometmq(self) -> bool:
        """Return whether this is a CometMQ broker."""
        return "cometmqVersion" in self.table

    def number(self, key: str) -> int:
        """Return a number from the runtime information, or 0 if the broker does not report it."""
        value = self.table.get(key, "")
        return int(value) if value.isdecimal() else 0

    @property
    def now_ms(self) -> int | None:
        """Return the broker's time when it responded, or for Apache's brokers the sum of start time and uptime."""
        now, boot = self.table.get("currentTimestamp", ""), self.table.get("bootTimestamp", "")
        if now.isdecimal():
            return int(now)
        uptime = _UPTIME.search(self.table.get("runtime", ""))
        if uptime is None or not boot.isdecimal():
            return None
        days, hours, minutes, seconds = map(int, uptime.groups())
        return int(boot) + 1000 * (((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def check_disk(what: str, state: BrokerState) -> Finding:
    """Check how full the log's disk is."""
    try:
        ratio = float(state.table.get("commitLogDiskRatio", ""))
    except ValueError:
        return Finding(f"disk of {what}", ADVICE, "unknown", "check the disk on that machine")
    found = f"{ratio:.0%} used"
    if ratio >= DISK_FULL_RATIO:
        return Finding(f"disk of {what}", PROBLEM, found, "free disk space: the broker rejects messages")
    if ratio >= DISK_HIGH_RATIO:
        return Finding(f"disk of {what}", ADVICE, found, "free disk space: old messages are deleted early")
    return Finding(f"disk of {what}", OK, found)


def check_clock(what: str, state: BrokerState) -> Finding:
    """Compare a broker's clock with the local clock."""
    check, now = f"clock of {what}", state.now_ms
    if now is None:
        return Finding(check, ADVICE, "unknown", "compare the clocks on both machines")
    early, late = state.asked_ms - now, now - state.answered_ms
    skew = max(early, late, 0) / 1000
    if skew < SKEW_SECONDS:
        return Finding(check, OK, "as here")
    side = "behind" if early > late else "ahead of"
    todo = "synchronize both clocks with NTP: delays, retention and --since use the brokers' clocks"
    return Finding(check, ADVICE, f"{duration_text(skew)} {side} this machine's clock", todo)


def check_store(what: str, state: BrokerState) -> Iterator[Finding]:
    """Report store timestamps that are ahead of the broker's clock, and queue entries whose messages are missing."""
    behind, missing = state.number("clockBehindStoreMs"), state.number("missingQueueEntries")
    if behind > CLOCK_BEHIND_MS:
        yield check_store_time(what, behind)
    if missing:
        yield check_queue_entries(what, f"{missing:,}")


def check_queue_entries(what: str, missing: str) -> Finding:
    """Report queue entries whose messages are missing."""
    found = f"queue entries without a message, which readers skip: {missing}"
    todo = "stop the broker and run cometmq pipeline rebuild, which restores the entries whose messages are in the log"
    return Finding(f"queues of {what}", PROBLEM, found, todo)


def check_store_time(what: str, behind_ms: int) -> Finding:
    """Report whether the store time of the broker's newest message is ahead of the broker's clock."""
    found = f"the newest message is {duration_text(behind_ms / 1000)} ahead of the broker's clock"
    todo = "synchronize the clock with NTP; while it is behind, new messages get this store time"
    return Finding(f"store times of {what}", ADVICE, found, todo)


def check_versions(states: Sequence[BrokerState]) -> Finding:
    """Check that all brokers run the same version."""
    versions = sorted({state.version for state in states})
    if len(versions) > 1:
        return Finding("versions", ADVICE, ", ".join(versions), "upgrade the older brokers")
    return Finding("versions", OK, ", ".join(versions) or "none")


def check_retention(what: str, state: BrokerState, config: Mapping[str, str]) -> Finding:
    """Compare a broker's log retention with its longest message delay.

    CometMQ keeps messages with longer delays outside the log; Apache's broker deletes such messages before they are
    delivered.
    """
    check, hours = f"retention of {what}", config.get("fileReservedTime", "")
    if not hours.isdecimal():
        return Finding(check, ADVICE, "unknown", "check fileReservedTime")
    kept = f"{hours} hours"
    if state.is_cometmq:
        return Finding(check, OK, f"{kept}; longer-delayed messages are kept")
    longest = max((_seconds(level) for level in config.get("messageDelayLevel", "").split()), default=0)
    if config.get("timerWheelEnable") == "true":
        longest = max(longest, min(_seconds(config.get("timerMaxDelaySec", "0") + "s"), ROLL_SECONDS))
    if int(hours) * 3_600 <= longest:
        found = f"{kept}, but messages can wait for {duration_text(longest)} in the log"
        return Finding(
            check, PROBLEM, found, "increase fileReservedTime: messages are deleted before they are delivered"
        )
    return Finding(check, OK, f"{kept}; the longest delay in the log is {duration_text(longest)}")


def _seconds(delay: str) -> int:
    """Return a delay such as ``2h`` in seconds, or 0 if it is invalid."""
    number, unit = delay[:-1], delay[-1:]
    return int(number) * _UNIT_SECONDS.get(unit, 0) if number.isdecimal() else 0
