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
from cometmq.client.errors import ClientError, RemotingClosedError, RemotingError
from cometmq.client.simple.message import PoppedMessage
from cometmq.client.simple.quiet import SPACING_MS, QuietPlaces
from cometmq.client.simple.requests import Place, Popped, SimpleRequests, passes
from cometmq.clock import wait_for
from cometmq.loop import TaskSet
from cometmq.remoting.bodies import SubscriptionData

log = logging.getLogger(__name__)

_POP_MS: Final = 15_000
"""Maximum time in milliseconds for which a pop waits at a broker before it is repeated."""
_SEEK_MS: Final = 1_000
"""Number of milliseconds between two requests for the route of a topic that does not exist yet."""
_EARLY_S: Final = 0.05
"""Number of seconds by which a wait may end early: brokers end their waits up to 0.03 s early."""
_END_S: Final = 1.0
"""Number of seconds for which the end of a consumer waits for the last responses to pops."""
_MOST_POPS: Final = 100
"""Maximum number of places at which one call pops in turn without finding messages; it has notifications ask the rest,
which takes no longer for thousands of places.
"""


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
        self._stale = dict.fromkeys(subscriptions)
        """Topics whose subscriptions or routes have changed since their places were made."""
        self._nowhere: set[str] = set()
        """Subscribed topics without places."""
        self._due: dict[str, None] = {}
        """The topics with places that are worth a pop, in the order of their turns; others, too, for a moment."""
        self._quiet = QuietPlaces(requests, subscriptions, lambda: self._taking > 0, self._is_due, spawn)
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
        now = self._clock.monotonic()
        found: list[PoppedMessage] = []
        others: list[PoppedMessage] = []
        while self.ready and len(found) < max_messages:
            message = self.ready.popleft()
            if message.invisible_until_s > now:
                (found if topic in (None, message.subscribed_topic) else others).append(message)
        self.ready.extendleft(reversed(others))
        return found

    async def _sweep(
        self, max_messages: int, invisible_ms: int, left_s: float, topic: str | None
    ) -> list[PoppedMessage]:
        """Pop at one place after the other, until one has messages."""
        places = self._in_turn(topic, waits=left_s > 0)
        is_only = self._has_one_place(topic)
        longest_ms = _SEEK_MS if self._has_unknown_topics else _POP_MS
        for number, place in enumerate(places):
            if self._quiet.has_failed(place) or (place in self._quiet and left_s > 0):
                continue
            if number >= _MOST_POPS and left_s > 0:
                self._quiet.add(place)
                continue
            waits_ms = min(max(round(left_s * 1000), 0), self._quiet.wait_ms(place, longest_ms)) if is_only else 0
            found = await self._pop(place, max_messages, invisible_ms, waits_ms)
            if found:
                self._pass_turn(place)
                if not is_only:
                    self._wake(place.topic)
                return found
            if self.is_stopped:
                break
            if left_s > 0 and not is_only:
                self._quiet.add(place)
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
            is_away = isinstance(error, RemotingError)
            await self._quiet.add_failed(place, error, self._places_on(place.broker) if is_away else ())
            return []
        self._instance.outages.over(place.broker)
        if popped.others:
            self._on_others(popped.others)
        if popped.messages:
            self._quiet.has_messages(place)
        elif poll_ms and self._quiet.ends_early(place, began, poll_ms):
            self._quiet.add(place, self._requests.config.error_delay_s)
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
        if self._in_turn(topic, waits=True) or any(topic in (None, message.subscribed_topic) for message in self.ready):
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

    # --- turns and routes ---

    def _in_turn(self, topic: str | None, *, waits: bool) -> list[Place]:
        """Return the places of a topic, or of all topics, in the order of their turns.

        :param waits: leave out quiet places.
        """
        for changed in list(self._stale) if topic is None else [topic] if topic in self._stale else []:
            del self._stale[changed]
            self._find_places(changed)
        names = [topic] if topic is not None else list(self._due if waits else self._turns)
        found = []
        for name in names:
            places = [place for place in self._turns.get(name, ()) if not (waits and place in self._quiet)]
            found += places
            if not places:
                self._due.pop(name, None)
        return found

    def _has_one_place(self, topic: str | None) -> bool:
        """Return whether a topic, or all topics, have only one place."""
        found = self._turns.values() if topic is None else [self._turns.get(topic, [])]
        return len(found) == 1 and all(len(places) == 1 for places in found)

    def _places_on(self, broker: str) -> list[Place]:
        return [place for places in self._turns.values() for place in places if place.broker == broker]

    def _is_due(self, place: Place) -> None:
        """Take notice of a place that is worth a pop again."""
        self._due.setdefault(place.topic)
        self._wake(place.topic)

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
            self._due.setdefault(topic)
        else:
            self._turns.pop(topic, None)
        if found or topic not in self._subscriptions:
            self._nowhere.discard(topic)
        else:
            self._nowhere.add(topic)
        for place in set(before) - set(kept):
            self._quiet.remove(place)

    def _pass_turn(self, place: Place) -> None:
        """Move a topic, and in it a broker, behind the others."""
        places = self._turns.pop(place.topic, None)
        if places is not None:
            at = places.index(place) + 1 if place in places else 0
            self._turns[place.topic] = places[at:] + places[:at]
            self._due.pop(place.topic, None)
            self._due[place.topic] = None

    def changed(self, topics: Iterable[str]) -> None:
        """Take notice of the changed subscriptions or routes of topics."""
        self._stale.update(dict.fromkeys(topics))
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
        return bool(self._nowhere)

    def _route_changed(self, topic: str) -> None:
        if topic in self._subscriptions:
            self.changed([topic])

    def _seek(self) -> None:
        """Request the routes of topics that do not exist yet."""
        if self._seeking is None or self._seeking.done():
            self._seeking = self._spawn(self._seek_routes())

    async def _seek_routes(self) -> None:
        try:
            if await self.find_routes(self._nowhere):
                await self._instance.send_heartbeats()
        except (ClientError, RemotingError) as error:
            log.debug("cannot request routes: %s", error)
        await self._clock.sleep(len(self._nowhere) * SPACING_MS / 1000)

    async def find_routes(self, topics: Iterable[str]) -> bool:
        """Request the routes of those topics whose routes are not known; return whether one was found.

        :raises RemotingError: no nameserver answers.
        """
        wanted = [name for name in topics if self._instance.routes.known(name) is None]
        missing = await self._instance.routes.get_all(wanted)
        for error in missing:
            if error.topic not in self._unknown:
                log.warning("cannot receive messages yet: %s", error)
        self._unknown = (self._unknown - set(wanted)) | {error.topic for error in missing}
        return len(missing) < len(wanted)

    # --- end ---

    def stop(self) -> None:
        """Make all callers return nothing, now and later."""
        if not self.is_stopped:
            self.is_stopped = True
            self._wake_all()
            self._requests.end_waits()
            self._quiet.stop()

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
