"""The renewal of receipt handles while their clients live (``ReceiptHandleManager``).

A push consumer does not know how long its listener takes; it asks for ``auto_renew``. Shortly before the time of such a
message is over it is made longer, for some hours at most, as long as the client is there. The client goes on to use
its first handle; what stands for it now is known here. When a client leaves, its messages are visible again soon.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from cometmq.clock import Clock, TimerHandle
from cometmq.loop import TaskSet
from cometmq.proxy.backend.backend import Link
from cometmq.proxy.config import EndpointConfig
from cometmq.proxy.errors import ProxyError
from cometmq.proxy.limits import MAX_RENEWED_HANDLES
from cometmq.proxy.receipts import Receipt
from cometmq.proxy.sessions import ClientSession, Key, Sessions
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.pop_headers import ChangeInvisibleTimeRequestHeader, ChangeInvisibleTimeResponseHeader

_log = logging.getLogger(__name__)

_MINUTE: Final = 60_000
_STEPS_MS: Final = (1 * _MINUTE, 3 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 30 * _MINUTE, 60 * _MINUTE)
"""Each renewal is for longer (``RenewStrategyPolicy``)."""
_GONE_MS: Final = 1_000
"""Messages of a client that is gone are visible again after this time, as in Apache's proxy."""
_MOST_FAILURES: Final = 3
_Key = tuple[Key, str, str]


class _Renewed:
    """One message that a client works on."""

    __slots__ = ("began_ms", "failures", "group", "receipt", "session", "times", "topic")

    def __init__(self, session: ClientSession, group: str, topic: str, receipt: Receipt, began_ms: int) -> None:
        self.session = session
        self.group = group
        self.topic = topic
        self.receipt = receipt
        self.began_ms = began_ms
        self.times = 0
        self.failures = 0


async def change_time(link: Link, group: str, topic: str, receipt: Receipt, invisible_ms: int) -> Receipt:
    """Ask the broker for another time of a message; return the new receipt.

    :raises ProxyError: it refuses.
    """
    handle = receipt.handle
    header = ChangeInvisibleTimeRequestHeader(
        consumer_group=group,
        topic=receipt.popped_from(topic, group),
        queue_id=handle.queue_id,
        extra_info=handle.encode(),
        offset=handle.queue_offset,
        invisible_time=invisible_ms,
    )
    reply = await link.ask(handle.broker_name, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
    changed = reply.checked().header(ChangeInvisibleTimeResponseHeader)
    return receipt.changed(changed.pop_time, changed.invisible_time, changed.revive_qid)


class Renewals:
    """All messages that are renewed."""

    def __init__(self, config: EndpointConfig, sessions: Sessions, clock: Clock) -> None:
        self._config = config
        self._sessions = sessions
        self._clock = clock
        self._held: dict[_Key, _Renewed] = {}
        """By client, group and the first handle."""
        self._timer: TimerHandle | None = None
        self._rounds = TaskSet()
        self._renewing: set[str] = set()
        """Brokers whose round is under way."""

    def start(self) -> None:
        """Look at them from time to time."""
        self._timer = self._clock.call_later(self._config.renew_every_ms / 1000, self._look)

    async def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        await self._rounds.stop()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def has_room(self) -> bool:
        """One more message can be renewed."""
        return len(self._held) < MAX_RENEWED_HANDLES

    def hold(self, session: ClientSession, group: str, topic: str, receipt: Receipt) -> None:
        """Renew a message from now on."""
        key = (session.key, group, receipt.encode())
        self._held[key] = _Renewed(session, group, topic, receipt, self._clock.now_ms())

    def current(self, session: ClientSession, group: str, text: str) -> Receipt | None:
        """The present handle in place of a client's first one; ``None`` if the message is not renewed."""
        held = self._held.get((session.key, group, text))
        return None if held is None else held.receipt

    def release(self, session: ClientSession, group: str, text: str) -> None:
        """Renew a message no more."""
        self._held.pop((session.key, group, text), None)

    def _look(self) -> None:
        """Begin a round for each broker, unless its last one is under way: no broker waits for another one."""
        self._timer = self._clock.call_later(self._config.renew_every_ms / 1000, self._look)
        by_broker: dict[str, list[_Key]] = {}
        for key, held in self._held.items():
            by_broker.setdefault(held.receipt.handle.broker_name, []).append(key)
        for broker in by_broker.keys() - self._renewing:
            self._renewing.add(broker)
            self._rounds.start(self._renew_all(broker, by_broker[broker]), f"renew receipt handles of {broker}")

    async def _renew_all(self, broker: str, keys: Sequence[_Key]) -> None:
        try:
            for key in keys:
                held = self._held.get(key)
                if held is None:  # it was released meanwhile
                    continue
                if not self._sessions.has(held.session):
                    self._held.pop(key, None)
                    await self._free(held)
                elif held.receipt.ends_ms - self._clock.now_ms() <= self._config.renew_ahead_ms:
                    await self._renew(key, held)
        finally:
            self._renewing.discard(broker)

    async def _renew(self, key: _Key, held: _Renewed) -> None:
        now_ms = self._clock.now_ms()
        if held.receipt.ends_ms <= now_ms or now_ms - held.began_ms >= self._config.renew_most_ms:
            self._held.pop(key, None)
            return
        longer_ms = _STEPS_MS[min(held.times, len(_STEPS_MS) - 1)]
        try:
            receipt = await change_time(held.session.link, held.group, held.topic, held.receipt, longer_ms)
        except ProxyError as error:
            held.failures += 1
            if held.failures >= _MOST_FAILURES:
                _log.info("a message of %s is not renewed any more: %s", held.group, error)
                self._held.pop(key, None)
            return
        held.receipt = receipt
        held.times += 1
        held.failures = 0

    async def _free(self, held: _Renewed) -> None:
        """Let others have the message of a client that is gone."""
        if held.receipt.ends_ms - self._clock.now_ms() <= _GONE_MS:
            return
        try:
            await change_time(held.session.link, held.group, held.topic, held.receipt, _GONE_MS)
        except ProxyError as error:
            _log.info("a message of %s stays with a client that is gone: %s", held.group, error)
