"""The places of a simple consumer that had no messages: a NOTIFICATION waits at each until a message is there.

One request waits for each place, so thousands of them cost some memory, and a request from time to time. Therefore the
requests of many places wait for longer, and do not end together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from cometmq.client.background import Spawn
from cometmq.client.errors import BrokerError, ClientError, RemotingError
from cometmq.client.popping.first_waits import FIRST_MS, FirstWaits
from cometmq.client.simple.requests import Place, SimpleRequests, passes
from cometmq.remoting.bodies import SubscriptionData
from cometmq.remoting.codes import ResponseCode

log = logging.getLogger(__name__)

_NOTIFY_MS: Final = 5_000
"""Maximum time in milliseconds for which a notification waits. Apache's brokers answer only one of a group's waiting
notifications for each message, maybe that of a member that no longer waits; the others then wait at most this long.
"""
_MOST_NOTIFY_MS: Final = 60_000
SPACING_MS: Final = 6
"""Number of milliseconds by which each place makes the notifications of all longer, up to ``_MOST_NOTIFY_MS``, so that
thousands of idle places cost fewer than two hundred requests a second.
"""
_SPREAD: Final = 0.618
"""Part of a wait by which the second wait of a place differs from that of the one before, so that they end evenly."""
_FALSE_ALARMS: Final = 2
"""Number of notifications without messages after which the next one is sent only after a pause."""
_ALARM_PAUSE_S: Final = 0.05


class QuietPlaces:
    """The quiet places of a consumer.

    :param is_needed: returns whether a caller waits, so that the places have to stay quiet.
    :param on_end: called with a place that is worth a pop again.
    :param spawn: runs the notifications in the background.
    """

    def __init__(
        self,
        requests: SimpleRequests,
        subscriptions: Mapping[str, SubscriptionData],
        is_needed: Callable[[], bool],
        on_end: Callable[[Place], object],
        spawn: Spawn,
    ) -> None:
        self._requests = requests
        self._instance = requests.instance
        self._clock = requests.instance.clock
        self._error_delay_s = requests.config.error_delay_s
        self._subscriptions = subscriptions
        self._is_needed = is_needed
        self._on_end = on_end
        self._spawn = spawn
        self._listening: dict[Place, asyncio.Task[None]] = {}
        self._failed: set[Place] = set()
        """The quiet places whose brokers do not answer."""
        self._refused: dict[str, set[Place]] = {}
        """By broker, the places at which no further request may wait."""
        self._waits: FirstWaits[Place] = FirstWaits()
        self._alarms: dict[Place, int] = {}
        """The number of notifications of each place since its last message."""
        self._spread = 0.0

    def __contains__(self, place: Place) -> bool:
        return place in self._listening

    def has_failed(self, place: Place) -> bool:
        """Return whether the broker of a quiet place does not answer."""
        return place in self._failed

    def add(self, place: Place, pause_s: float = 0.0) -> None:
        """Have a notification wait at a place that has no messages."""
        if place not in self._listening:
            if self._alarms.get(place, 0) > _FALSE_ALARMS:
                pause_s = max(pause_s, _ALARM_PAUSE_S)
            self._listening[place] = self._spawn(self._listen(place, pause_s))

    async def add_failed(self, place: Place, error: ClientError | RemotingError, others: Iterable[Place]) -> None:
        """Find out when a broker that does not answer is back.

        :param others: its other places, if it answers nothing at all.
        """
        await self._note(place, error)
        for other in (place, *others):
            self._failed.add(other)
            self.add(other, self._error_delay_s)

    def remove(self, place: Place) -> None:
        """Forget a place that the consumer no longer has."""
        if (listener := self._listening.pop(place, None)) is not None:
            listener.cancel()
        self._failed.discard(place)
        self._refused.get(place.broker, set()).discard(place)
        self.has_messages(place)

    def stop(self) -> None:
        """Wait at no place any more."""
        for listener in self._listening.values():
            listener.cancel()

    def has_messages(self, place: Place) -> None:
        """Note that a pop has found messages."""
        self._alarms.pop(place, None)
        self._waits.found(place)

    # --- waiting ---

    async def _listen(self, place: Place, pause_s: float) -> None:
        try:
            if pause_s:
                await self._clock.sleep(pause_s)
            while not await self._is_worth_a_pop(place):
                pass
        finally:
            if self._listening.get(place) is asyncio.current_task():
                del self._listening[place]
                self._failed.discard(place)
                self._on_end(place)

    async def _is_worth_a_pop(self, place: Place) -> bool:
        """Wait for a notification; return whether the next caller should pop at the place, and not this method again.

        So it should if there is a message, if the broker refuses, and if no call runs any more.
        """
        data = self._subscriptions.get(place.topic)
        if data is None:
            return True
        began, wait_ms = self._clock.monotonic(), 0 if place in self._failed else self._notify_ms(place)
        try:
            has_message = await self._requests.has_message(place, data, wait_ms)
        except (ClientError, RemotingError) as error:
            if not passes(error):
                return True
            if isinstance(error, BrokerError) and error.code == ResponseCode.POLLING_FULL:
                await self._clock.sleep(self._refuse(place, error))
                return not self._is_needed()
            await self._note(place, error)
            self._failed.add(place)
            await self._clock.sleep(self._error_delay_s)
            return False
        self._instance.outages.over(place.broker)
        self._failed.discard(place)
        self._refused.get(place.broker, set()).discard(place)
        if has_message:
            self._alarms[place] = self._alarms.get(place, 0) + 1
        elif wait_ms and self.ends_early(place, began, wait_ms):
            await self._clock.sleep(self._error_delay_s)
            return True
        return has_message or not self._is_needed()

    def _notify_ms(self, place: Place) -> int:
        longest_ms = min(max(_NOTIFY_MS, len(self._listening) * SPACING_MS), _MOST_NOTIFY_MS)
        if self._waits.count(place) == 1 and longest_ms > _NOTIFY_MS:
            self._spread = (self._spread + _SPREAD) % 1
            return FIRST_MS + round((longest_ms - FIRST_MS) * self._spread)
        return self.wait_ms(place, longest_ms)

    def wait_ms(self, place: Place, longest_ms: int) -> int:
        """Return the time in milliseconds for which the next request waits at a place, at most ``longest_ms``."""
        return self._waits.limit_ms(place, longest_ms)

    def ends_early(self, place: Place, began: float, wait_ms: int) -> bool:
        """Count a wait that has ended; return whether that was long before its time, because the broker's clock is
        ahead of this one.

        The first wait is too short to tell.
        """
        is_first = not self._waits.count(place)
        self._waits.ended(place)
        return not is_first and (self._clock.monotonic() - began) * 2000 < wait_ms

    # --- failures ---

    def _refuse(self, place: Place, error: BrokerError) -> float:
        """Return the pause in seconds before a broker that holds too many requests is asked again."""
        refused = self._refused.setdefault(place.broker, set())
        is_first = not refused
        refused.add(place)
        pause_s = max(self._error_delay_s, len(refused) * SPACING_MS / 1000)
        log.log(
            logging.WARNING if is_first else logging.DEBUG,
            "messages of %s are looked for only every %g s or later: %s",
            *(place.topic, pause_s, error),
        )
        return pause_s

    async def _note(self, place: Place, error: ClientError | RemotingError) -> None:
        """Log a failure once, and request the route again if it may have changed."""
        self._waits.interrupted(place)  # the requests of all places end now, and the next ones should not
        if not isinstance(error, BrokerError):
            self._instance.outages.seen(place.broker, error, self._error_delay_s)
        elif place not in self._failed:
            log.warning(
                "cannot receive messages of %s, retrying every %g s: %s", place.topic, self._error_delay_s, error
            )
        try:
            await self._requests.refresh(place, error)
        except (ClientError, RemotingError) as failure:
            log.debug("cannot refresh the route of %s: %s", place.topic, failure)
