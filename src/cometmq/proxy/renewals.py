"""Renews receipt handles while clients handle messages (``ReceiptHandleManager``).

A push consumer does not know how long its listener takes; it asks for ``auto_renew``. Shortly before such a message
becomes visible again, its invisible time is renewed as long as the client is connected, for at most some hours. The
client keeps its first handle; this module stores the current handle. When a client is removed, its messages soon become
visible again.

The messages are checked periodically, in rounds. In each round, every message has one :class:`RenewalState`, and the
table of steps defines how the message is handled.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from cometmq.clock import Clock
from cometmq.loop import TaskSet
from cometmq.periodic import Periodic
from cometmq.proxy.config import EndpointConfig
from cometmq.proxy.errors import ProxyError
from cometmq.proxy.limits import MAX_RENEWED_HANDLES
from cometmq.proxy.receipts import Delivery, change_invisible_time, read_delivery
from cometmq.proxy.sessions import ClientSession, Key

_log = logging.getLogger(__name__)

_MINUTE: Final = 60_000
_STEPS_MS: Final = (1 * _MINUTE, 3 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 30 * _MINUTE, 60 * _MINUTE)
"""Invisible times of successive renewals (``RenewStrategyPolicy``)."""
_RELEASE_MS: Final = 1_000
"""Time after which a removed client's messages become visible again, as in Apache's proxy."""
_MAX_FAILURES: Final = 3
_Key = tuple[Key, str, str]


class RenewalState(enum.Enum):
    """The states of a message that a client is handling."""

    INVISIBLE = enum.auto()
    """The message remains invisible for some time."""
    NEARLY_VISIBLE = enum.auto()
    """The message would soon become visible again."""
    EXPIRED = enum.auto()
    """The message is visible again, or can no longer be renewed."""
    ABANDONED = enum.auto()
    """The message's client was removed."""


class _Renewal:
    """A message that a client is handling."""

    __slots__ = ("began_ms", "delivery", "failures", "session", "times")

    def __init__(self, session: ClientSession, delivery: Delivery, began_ms: int) -> None:
        self.session = session
        self.delivery = delivery
        self.began_ms = began_ms
        self.times = 0
        self.failures = 0

    def state(self, config: EndpointConfig, now_ms: int) -> RenewalState:
        """Return the message's state at a time."""
        if self.session.is_removed:
            return RenewalState.ABANDONED
        left_ms = self.delivery.ends_ms - now_ms
        if left_ms > config.renew_ahead_ms:
            return RenewalState.INVISIBLE
        is_too_old = now_ms - self.began_ms >= config.renew_most_ms
        if left_ms <= 0 or is_too_old or self.failures >= _MAX_FAILURES:
            return RenewalState.EXPIRED
        return RenewalState.NEARLY_VISIBLE


class Renewals:
    """The messages whose receipt handles are being renewed."""

    def __init__(self, config: EndpointConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._renewals: dict[_Key, _Renewal] = {}
        """The messages by client, group and first handle."""
        self._intervals = Periodic("renewing messages", config.renew_every_ms / 1000, self._begin_rounds, clock=clock)
        self._rounds = TaskSet()
        self._busy_brokers: set[str] = set()
        """The brokers for which a round is in progress."""
        self._steps: Final[Mapping[RenewalState, Callable[[_Key, _Renewal], Awaitable[None]] | None]] = {
            RenewalState.INVISIBLE: None,
            RenewalState.NEARLY_VISIBLE: self._renew,
            RenewalState.EXPIRED: self._forget,
            RenewalState.ABANDONED: self._release_abandoned,
        }

    def start(self) -> None:
        """Start the periodic rounds."""
        self._intervals.start()

    async def stop(self) -> None:
        """Stop the rounds."""
        self._intervals.close()
        await self._rounds.stop()

    def __len__(self) -> int:
        return len(self._renewals)

    @property
    def has_room(self) -> bool:
        """True if another message can be renewed."""
        return len(self._renewals) < MAX_RENEWED_HANDLES

    def add(self, session: ClientSession, topic: str, group: str, handle: str, lite_topic: str | None = None) -> None:
        """Start renewing a message.

        :raises ProxyError: the handle is malformed.
        """
        delivery = read_delivery(topic, group, handle, lite_topic)
        self._renewals[session.key, group, handle] = _Renewal(session, delivery, self._clock.now_ms())

    def find(self, session: ClientSession, topic: str, group: str, first_handle: str) -> Delivery | None:
        """Return the current delivery for a client's handle, or ``None`` if the message is not being renewed."""
        renewal = self._renewals.get((session.key, group, first_handle))
        return None if renewal is None else renewal.delivery._replace(topic=topic)

    def remove(self, session: ClientSession, group: str, first_handle: str) -> None:
        """Stop renewing a message."""
        self._renewals.pop((session.key, group, first_handle), None)

    def remove_all(self, key: Key, group: str, first_handles: Sequence[str]) -> None:
        """Stop renewing messages of the client with a session key."""
        for handle in first_handles:
            self._renewals.pop((key, group, handle), None)

    # --- rounds ---------------------------------------------------------------------------------
    def _begin_rounds(self) -> None:
        """Start a round for each broker whose last round has ended, so that a slow broker does not delay others."""
        by_broker: dict[str, list[_Key]] = {}
        for key, renewal in self._renewals.items():
            by_broker.setdefault(renewal.delivery.handle.broker_name, []).append(key)
        for broker in by_broker.keys() - self._busy_brokers:
            self._busy_brokers.add(broker)
            self._rounds.start(self._run_round(broker, by_broker[broker]), f"renew receipt handles of {broker}")

    async def _run_round(self, broker: str, keys: Sequence[_Key]) -> None:
        try:
            for key in keys:
                renewal = self._renewals.get(key)
                if renewal is None:  # the message was removed in the meantime
                    continue
                step = self._steps[renewal.state(self._config, self._clock.now_ms())]
                if step is not None:
                    await step(key, renewal)
        finally:
            self._busy_brokers.discard(broker)

    async def _renew(self, _key: _Key, renewal: _Renewal) -> None:
        invisible_ms = _STEPS_MS[min(renewal.times, len(_STEPS_MS) - 1)]
        try:
            renewal.delivery = await change_invisible_time(renewal.session.link, renewal.delivery, invisible_ms)
        except ProxyError as error:
            renewal.failures += 1
            _log.info("cannot renew a message for group %s: %s", renewal.delivery.group, error)
            return
        renewal.times += 1
        renewal.failures = 0

    async def _forget(self, key: _Key, _renewal: _Renewal) -> None:
        self._renewals.pop(key, None)

    async def _release_abandoned(self, key: _Key, renewal: _Renewal) -> None:
        """Make the message visible to other clients in the group."""
        self._renewals.pop(key, None)
        if renewal.delivery.ends_ms - self._clock.now_ms() <= _RELEASE_MS:
            return
        try:
            is_lite = renewal.delivery.lite_topic is not None
            await change_invisible_time(renewal.session.link, renewal.delivery, _RELEASE_MS, suspend=is_lite)
        except ProxyError as error:
            _log.info("cannot release a removed client's message for group %s: %s", renewal.delivery.group, error)
