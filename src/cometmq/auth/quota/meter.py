"""Token buckets, and the meter of a quota subject.

A bucket is filled at its rate up to its capacity. A request passes if the bucket contains at least one complete token,
and uses its tokens even if the bucket then falls below zero: one large message passes, and later ones wait. On average,
no subject gets more than its rate. If the clock moves backwards, the bucket does not change.
"""

from __future__ import annotations

import math
from typing import Final

from cometmq.auth.quota.model import Limits, Subject

IN_SECONDS: Final = 1.0
"""Capacity of the buckets for incoming traffic, in seconds at their rate."""
OUT_SECONDS: Final = 4.0
"""Capacity of the buckets for outgoing traffic, in seconds at their rate.

Java's consumers wait 3 s after a denial before they pull again, and must still get their full rate.
"""
WINDOW_SECONDS: Final = 10.0
"""Number of seconds over which the current use is averaged."""

RATES: Final = {
    "messagesIn": IN_SECONDS,
    "bytesIn": IN_SECONDS,
    "messagesOut": OUT_SECONDS,
    "bytesOut": OUT_SECONDS,
}


class Bucket:
    """A token bucket that is filled at a constant rate."""

    __slots__ = ("_at", "_before", "_began", "_capacity", "_count", "level", "rate")

    def __init__(self, rate: int, seconds: float, now: float) -> None:
        self.rate = rate
        self._capacity = rate * seconds
        self.level: float = rate
        self._at = self._began = now
        self._count = self._before = 0.0

    def change(self, rate: int, seconds: float, now: float) -> None:
        """Change the rate. If the number of tokens is negative, it remains so."""
        self.fill(now)
        if self.rate == 0:
            self.level = rate
        self.rate, self._capacity = rate, rate * seconds
        self.level = min(self.level, self._capacity)

    def fill(self, now: float) -> None:
        """Add the tokens for the time since the last call."""
        if now > self._at:
            self.level = min(self._capacity, self.level + (now - self._at) * self.rate)
        self._at = now

    def take(self, amount: float, now: float) -> None:
        """Use tokens and count them."""
        self.level -= amount
        self._turn(now)
        self._count += amount

    def wait_s(self) -> float:
        """Return the number of seconds until the bucket contains a whole token; infinite if the rate is 0."""
        if self.level >= 1:
            return 0.0
        return (1 - self.level) / self.rate if self.rate else math.inf

    def use(self, now: float) -> float:
        """Return the current use in tokens per second."""
        self._turn(now)
        passed = now - self._began
        return (self._before * (1 - passed / WINDOW_SECONDS) + self._count) / WINDOW_SECONDS

    def _turn(self, now: float) -> None:
        passed = now - self._began
        if 0 <= passed < WINDOW_SECONDS:
            return
        self._before = self._count if 0 <= passed < 2 * WINDOW_SECONDS else 0.0
        self._count, self._began = 0.0, now


class Quota:
    """The limits for a subject in the table, and its number of denials."""

    __slots__ = ("delayed", "denials", "limits", "subject", "subjects")

    def __init__(self, subject: Subject, limits: Limits) -> None:
        self.subject = subject
        self.limits = limits
        self.denials = self.delayed = 0
        self.subjects = 0
        """The meters to which this quota applies."""


class Meter:
    """Measures the use by one account, address or group."""

    __slots__ = ("buckets", "connections", "delayed", "denials", "limits", "quota", "subject", "used_at", "version")

    def __init__(self, subject: Subject, quota: Quota, version: int, now: float) -> None:
        self.subject = subject
        self.buckets: dict[str, Bucket] = {}
        self.connections = 0
        self.denials = self.delayed = 0
        self.used_at = now
        self.quota = quota
        quota.subjects += 1
        self._adopt(version, now)

    def adopt(self, quota: Quota, version: int, now: float) -> None:
        """Apply a quota from the given version of the table."""
        self.quota.subjects -= 1
        self.quota = quota
        quota.subjects += 1
        self._adopt(version, now)

    def _adopt(self, version: int, now: float) -> None:
        self.version = version
        self.limits = self.quota.limits
        given = self.limits.given()
        for name, seconds in RATES.items():
            rate, bucket = given.get(name), self.buckets.get(name)
            if rate is None:
                self.buckets.pop(name, None)
            elif bucket is None:
                self.buckets[name] = Bucket(rate, seconds, now)
            elif bucket.rate != rate:
                bucket.change(rate, seconds, now)

    def refuses(self, names: tuple[str, str], now: float) -> tuple[str, float] | None:
        """Return which rate the subject exceeds, and the number of seconds to wait."""
        self.used_at = now
        for name in names:
            bucket = self.buckets.get(name)
            if bucket is not None:
                bucket.fill(now)
                wait_s = bucket.wait_s()
                if wait_s > 0:
                    return name, wait_s
        return None

    def room(self, names: tuple[str, str], most: tuple[int, int], now: float) -> tuple[int, int]:
        """Return how many messages and bytes the subject may use now, but at most ``most`` of each."""
        self.used_at = now
        messages, size = most
        for at, name in enumerate(names):
            bucket = self.buckets.get(name)
            if bucket is not None:
                bucket.fill(now)
                left = max(int(bucket.level), 0)
                if at == 0:
                    messages = min(messages, left)
                else:
                    size = min(size, left)
        return messages, size

    def take(self, names: tuple[str, str], messages: int, size: int, now: float) -> None:
        """Count messages and bytes."""
        for name, amount in zip(names, (messages, size), strict=True):
            bucket = self.buckets.get(name)
            if bucket is not None:
                bucket.take(amount, now)

    def hold(self) -> None:
        """Count a delayed request."""
        self.delayed += 1
        self.quota.delayed += 1

    def deny(self) -> None:
        """Count a denied request."""
        self.denials += 1
        self.quota.denials += 1
