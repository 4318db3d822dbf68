"""The topics and brokers of a simple consumer, and who asks which of them.

Theory of operation. A *place* is a topic on a broker. A pop takes messages, so it must not be left waiting at a broker
when its caller no longer waits: the messages would be hidden from the group while nobody consumes them. Therefore:

* With one place, ``receive`` pops there and lets the broker wait.
* With several places, ``receive`` pops at each without waiting, beginning with the topic whose turn it is. A place that
  has nothing becomes *quiet*: a NOTIFICATION waits there, which takes no messages. ``receive`` skips quiet places, and
  sleeps if all are quiet. The answer to a notification makes its place worth a pop again, and wakes one caller. That
  one wakes the next if it finds messages. So one wait covers all topics and brokers, and no topic starves. While a
  call of ``receive`` runs, quiet places stay quiet, however long it takes to pop at the others.
* A place whose broker does not answer is quiet, too. After a pause, a notification finds out when the broker is back,
  so a dead broker does not delay messages of the others.

A caller that is cancelled or stopped takes its pop back, by ending the connection of waiting pops unless others wait
there, too. If messages are on their way by then, they are *ready*: the next caller gets them, or they are given back
when the consumer is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from cometmq.client.background import Spawn
from cometmq.client.errors import BrokerError, ClientError, RemotingClosedError, RemotingError, RouteNotFoundError
from cometmq.client.simple.message import PoppedMessage
from cometmq.client.simple.requests import Place, Popped, SimpleRequests, passes
from cometmq.clock import wait_for
from cometmq.loop import TaskSet
from cometmq.remoting.bodies import SubscriptionData

log = logging.getLogger(__name__)

_POP_MS: Final = 15_000
"""Maximum time in milliseconds for which a pop waits at a broker before it is repeated."""
_NOTIFY_MS: Final = 5_000
"""Maximum time in milliseconds for which a notification waits. Apache's brokers answer only one of a group's waiting
notifications for each message, maybe that of a member that no longer waits; the others then wait at most this long.
"""
_FIRST_MS: Final = 1_000
"""Maximum time in milliseconds of the first wait at a place after a message. Apache's brokers do not see a message that
arrives while a pop or a notification begins to wait; such messages often follow the start of a consumer.
"""
_MOST_NOTIFY_MS: Final = 30_000
_SPACING_MS: Final = 3
"""Number of milliseconds by which each place makes the notifications of all longer, up to ``_MOST_NOTIFY_MS``, so that
thousands of idle places cost at most some hundred requests a second.
"""
_SEEK_MS: Final = 1_000
"""Number of milliseconds between two requests for the route of a topic that does not exist yet."""
_EARLY_S: Final = 0.05
"""Number of seconds by which a wait may end early: brokers end their waits up to 0.03 s early."""
_END_S: Final = 1.0
"""Number of seconds for which the end of a consumer waits for the last responses to pops."""
_FALSE_ALARMS: Final = 2
"""Number of notifications without messages after which the next one is sent only after a pause."""
_ALARM_PAUSE_S: Final = 0.05


class Places:
    """The places of a consumer's subscriptions, and its waiting callers.

    :param on_others: called with messages that only look as if they matched a subscription.
    :param spawn: runs notifications in the background.
    """

    def __init__(
        self,
        requests: SimpleRequests,
        subscriptions: Mapping[str, SubscriptionData],
        on_others: Callable[[list[PoppedMessage]], object],
        spawn: Spawn,
    ) -> None:
        self._requests = requests
        self._instance = requests.instance
        self._clock = requests.instance.clock
        self._subscriptions = subscriptions
        self._on_others = on_others
        self._spawn = spawn
        self._turns: dict[str, list[Place]] = {}
        """The places of each topic, in the order of their turns; the topics, too."""
        self._stale = set(subscriptions)
        """Topics whose subscriptions or routes have changed since their places were made."""
        self._quiet: dict[Place, asyncio.Task[None]] = {}
        self._waited: set[Place] = set()
        """The places at which a wait has ended since the last message."""
        self._failed: set[Place] = set()
        """The quiet places whose brokers do not answer."""
        self._alarms: dict[Place, int] = {}
        """The number of notifications of each place since its last message."""
        self._waiters: dict[asyncio.Future[None], str | None] = {}
        """The callers that wait, with the topic that they want."""
        self._pops = TaskSet()
        self._taking = 0
        """The number of calls that run."""
        self._polling = 0
        """The number of callers that wait at a broker."""
        self._seeking: asyncio.Task[None] | None = None
        self._unknown: set[str] = set()
        """Topics that did not exist when they were last looked for."""
        self._interrupt: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Ends waits at brokers when places change, or at the end."""
        self.is_stopped = False
        self.ready: deque[PoppedMessage] = deque()
        """Messages that arrived after their caller had stopped waiting."""
        self._instance.routes.on_change.append(self._route_changed)

    # --- receiving ---

    async def take(self, max_messages: int, invisible_ms: int, wait_s: float, topic: str | None) -> list[PoppedMessage]:
        """Wait for messages up to ``wait_s`` seconds; return an empty list if none came, or once stopped.

        :param topic: the only topic to receive from; by default all.
        :raises BrokerError: a broker refuses, for example because of a missing permission.
        """
        deadline = self._clock.monotonic() + wait_s
        self._taking += 1
        try:
            while not self.is_stopped:
                left_s = deadline - self._clock.monotonic()
                found = self._take_ready(max_messages, topic) or await self._sweep(
                    max_messages, invisible_ms, left_s, topic
                )
                left_s = deadline - self._clock.monotonic()
                if found or left_s <= _EARLY_S:
                    return found
                await self._wait(left_s, topic)
            return []
        finally:
            self._taking -= 1

    def _take_ready(self, max_messages: int, topic: str | None) -> list[PoppedMessage]:
        now_ms = self._clock.now_ms()
        found: list[PoppedMessage] = []
        others: list[PoppedMessage] = []
        while self.ready and len(found) < max_messages:
            message = self.ready.popleft()
            if message.invisible_until_ms > now_ms:
                (found if topic in (None, message.subscribed_topic) else others).append(message)
        self.ready.extendleft(reversed(others))
        return found

    async def _sweep(
        self, max_messages: int, invisible_ms: int, left_s: float, topic: str | None
    ) -> list[PoppedMessage]:
        """Pop at one place after the other, until one has messages."""
        places = self._in_turn(topic)
        is_only = len(places) == 1
        longest_ms = _SEEK_MS if self._has_unknown_topics else _POP_MS
        for place in places:
            if place in self._failed or (place in self._quiet and left_s > 0):
                continue
            waits_ms = min(max(round(left_s * 1000), 0), self._wait_ms(place, longest_ms)) if is_only else 0
            found = await self._pop(place, max_messages, invisible_ms, waits_ms)
            if found:
                self._pass_turn(place)
                if not is_only:
                    self._wake(place.topic)
                return found
            if self.is_stopped:
                break
            if left_s > 0 and not is_only:
                self._hush(place)
        return []

    async def _pop(self, place: Place, max_messages: int, invisible_ms: int, poll_ms: int) -> list[PoppedMessage]:
        data = self._subscriptions.get(place.topic)
        if data is None:
            return []
        work = self._requests.pop(place, data, max_messages, invisible_ms, poll_ms)
        began = self._clock.monotonic()
        pop = asyncio.get_running_loop().create_task(work)
        self._pops.hold(pop)
        self._polling += poll_ms > 0
        ends: set[asyncio.Future[Any]] = {pop, self._interrupt}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pop.add_done_callback(self._left_pop_ended)
            raise
        finally:
            self._polling -= poll_ms > 0
            if not pop.done() and not self._polling:
                self._requests.end_waits()
        if not pop.done():
            pop.add_done_callback(self._left_pop_ended)
            return []
        try:
            popped = pop.result()
        except (ClientError, RemotingError) as error:
            if self.is_stopped and isinstance(error, RemotingClosedError):
                return []
            self._pass_turn(place)
            if not passes(error):
                raise
            await self._fail(place, error)
            return []
        self._instance.outages.over(place.broker)
        if popped.others:
            self._on_others(popped.others)
        if popped.messages:
            self._alarms.pop(place, None)
            self._waited.discard(place)
        elif poll_ms and self._ends_early(place, began, poll_ms):
            self._hush(place, self._requests.config.error_delay_s)
        return popped.messages

    def _left_pop_ended(self, pop: asyncio.Task[Popped]) -> None:
        if pop.cancelled() or pop.exception() is not None:
            return
        popped = pop.result()
        if popped.others:
            self._on_others(popped.others)
        self.give_back(popped.messages)

    def give_back(self, messages: Iterable[PoppedMessage]) -> None:
        """Put back messages that their caller did not get; the next caller gets them."""
        row = list(messages)
        if row:
            self.ready.extendleft(reversed(row))
            self._wake_all()

    # --- waiting ---

    async def _wait(self, left_s: float, topic: str | None) -> None:
        """Wait until a place has messages, a topic gets a route, or the time is over."""
        if self._has_unknown_topics:
            self._seek()
            left_s = min(left_s, _SEEK_MS / 1000)
        if any(place not in self._quiet for place in self._in_turn(topic)) or any(
            topic in (None, message.subscribed_topic) for message in self.ready
        ):
            return  # there is something to do by now
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = topic
        try:
            await wait_for(self._clock, left_s, waiter)
        except (TimeoutError, asyncio.CancelledError) as error:
            if waiter.done() and not waiter.cancelled():
                self._wake(None)  # another caller can use it
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self._waiters.pop(waiter, None)

    def _wake(self, topic: str | None) -> None:
        """Wake one caller that wants messages of a topic; with ``None``, wake all."""
        for waiter, wanted in list(self._waiters.items()):
            if not waiter.done() and (topic is None or wanted in (None, topic)):
                waiter.set_result(None)
                if topic is not None:
                    return

    # --- quiet places ---

    def _hush(self, place: Place, pause_s: float = 0.0) -> None:
        """Have a notification wait at a place that has no messages."""
        if place not in self._quiet:
            if self._alarms.get(place, 0) > _FALSE_ALARMS:
                pause_s = max(pause_s, _ALARM_PAUSE_S)
            self._quiet[place] = self._spawn(self._listen(place, pause_s))

    async def _listen(self, place: Place, pause_s: float) -> None:
        try:
            if pause_s:
                await self._clock.sleep(pause_s)
            while not await self._is_worth_a_pop(place):
                pass
        finally:
            if self._quiet.get(place) is asyncio.current_task():
                del self._quiet[place]
                self._failed.discard(place)
                self._wake(place.topic)

    async def _is_worth_a_pop(self, place: Place) -> bool:
        """Wait for a notification; return whether the next caller should pop at the place, and not this method again.

        So it should if there is a message, if the broker answers again or refuses, and if no call runs any more.
        """
        data = self._subscriptions.get(place.topic)
        if data is None:
            return True
        longest_ms = min(max(_NOTIFY_MS, len(self._turns) * _SPACING_MS), _MOST_NOTIFY_MS)
        began, wait_ms = self._clock.monotonic(), 0 if place in self._failed else self._wait_ms(place, longest_ms)
        try:
            has_message = await self._requests.has_message(place, data, wait_ms)
        except (ClientError, RemotingError) as error:
            if not passes(error):
                return True
            await self._note(place, error)
            self._failed.add(place)
            await self._clock.sleep(self._requests.config.error_delay_s)
            return False
        self._instance.outages.over(place.broker)
        if has_message:
            self._alarms[place] = self._alarms.get(place, 0) + 1
        elif wait_ms and self._ends_early(place, began, wait_ms):
            await self._clock.sleep(self._requests.config.error_delay_s)
            return True
        return has_message or place in self._failed or not self._taking

    def _wait_ms(self, place: Place, longest_ms: int) -> int:
        return longest_ms if place in self._waited else min(longest_ms, _FIRST_MS)

    def _ends_early(self, place: Place, began: float, wait_ms: int) -> bool:
        """Return whether a broker ended a wait long before its time, because its clock is ahead of this one.

        The first wait is too short to tell.
        """
        is_first = place not in self._waited
        self._waited.add(place)
        return not is_first and (self._clock.monotonic() - began) * 2000 < wait_ms

    async def _fail(self, place: Place, error: ClientError | RemotingError) -> None:
        """Skip all places of a broker that does not answer, until it answers again."""
        await self._note(place, error)
        for other in [other for places in self._turns.values() for other in places if other.broker == place.broker]:
            if other == place or isinstance(error, RemotingError):
                self._failed.add(other)
                self._hush(other, self._requests.config.error_delay_s)

    async def _note(self, place: Place, error: ClientError | RemotingError) -> None:
        """Log a failure once, and request the route again if it may have changed."""
        pause_s = self._requests.config.error_delay_s
        if not isinstance(error, BrokerError):
            self._instance.outages.seen(place.broker, error, pause_s)
        elif place not in self._failed:
            log.warning("cannot receive messages of %s, retrying every %g s: %s", place.topic, pause_s, error)
        try:
            await self._requests.refresh(place, error)
        except (ClientError, RemotingError) as failure:
            log.debug("cannot refresh the route of %s: %s", place.topic, failure)

    # --- turns and routes ---

    def _in_turn(self, topic: str | None) -> list[Place]:
        """Return the places of a topic, or of all topics, in the order of their turns."""
        for changed in list(self._stale) if topic is None else self._stale & {topic}:
            self._stale.discard(changed)
            self._find_places(changed)
        if topic is not None:
            return list(self._turns.get(topic, ()))
        return [place for places in self._turns.values() for place in places]

    def _find_places(self, topic: str) -> None:
        """Make the places of a topic, and leave those that it no longer has."""
        route = self._instance.routes.known(topic) if topic in self._subscriptions else None
        brokers = dict.fromkeys(queue.broker_name for queue in route.read_queues) if route is not None else {}
        before = self._turns.get(topic, [])
        kept = [place for place in before if place.broker in brokers]
        known = {place.broker for place in kept}
        found = kept + [Place(topic, broker) for broker in brokers if broker not in known]
        if found:
            self._turns[topic] = found
        else:
            self._turns.pop(topic, None)
        for place in set(before) - set(kept):
            if (listener := self._quiet.pop(place, None)) is not None:
                listener.cancel()
            self._failed.discard(place)
            self._waited.discard(place)
            self._alarms.pop(place, None)

    def _pass_turn(self, place: Place) -> None:
        """Move a topic, and in it a broker, behind the others."""
        places = self._turns.pop(place.topic, None)
        if places is not None:
            at = places.index(place) + 1 if place in places else 0
            self._turns[place.topic] = places[at:] + places[:at]

    def changed(self, topic: str) -> None:
        """Take notice of the changed subscription or route of a topic."""
        self._stale.add(topic)
        self._wake_all()

    def _wake_all(self) -> None:
        """Wake all callers, also those that wait at a broker."""
        if not self._interrupt.done():
            self._interrupt.set_result(None)
        if not self.is_stopped:
            self._interrupt = asyncio.get_running_loop().create_future()
        self._wake(None)

    @property
    def _has_unknown_topics(self) -> bool:
        return len(self._turns) < len(self._subscriptions)

    def _route_changed(self, topic: str) -> None:
        if topic in self._subscriptions:
            self.changed(topic)

    def _seek(self) -> None:
        """Request the routes of topics that do not exist yet."""
        if self._seeking is None or self._seeking.done():
            self._seeking = self._spawn(self._seek_routes())

    async def _seek_routes(self) -> None:
        try:
            if await self.find_routes(self._subscriptions):
                await self._instance.send_heartbeats()
        except (ClientError, RemotingError) as error:
            log.debug("cannot request routes: %s", error)

    async def find_routes(self, topics: Iterable[str]) -> bool:
        """Request the routes of those topics whose routes are not known; return whether one was found.

        :raises RemotingError: no nameserver answers.
        """
        is_found = False
        for topic in [name for name in topics if self._instance.routes.known(name) is None]:
            try:
                await self._instance.routes.get(topic)
            except RouteNotFoundError as error:
                if topic not in self._unknown:
                    self._unknown.add(topic)
                    log.warning("cannot receive messages yet: %s", error)
            else:
                self._unknown.discard(topic)
                is_found = True
        return is_found

    # --- end ---

    def stop(self) -> None:
        """Make all callers return nothing, now and later."""
        if not self.is_stopped:
            self.is_stopped = True
            self._wake_all()
            self._requests.end_waits()

    async def close(self) -> list[PoppedMessage]:
        """End all calls; return the messages that no caller got."""
        self.stop()
        self._instance.routes.on_change.remove(self._route_changed)
        with suppress(TimeoutError):
            await wait_for(self._clock, _END_S, self._pops.join())
        await asyncio.sleep(0)  # the callbacks of the last pops
        untaken = list(self.ready)
        self.ready.clear()
        return untaken
