"""Measures a cluster's activity with few requests: rates and lag for topics, groups and clients.

A CometMQ broker reports the progress of all its groups and the messages of all its topics as sums. Apache's broker is
asked for the progress of all groups, which includes the ends of the consumed queues. Topics that nobody consumes are
queried one by one: :data:`TOPICS_PER_POLL` in each poll, or fewer if brokers must read their disks. Topics that grew
recently are queried in every poll, the others one after the other. So a poll of ten thousand topics costs as much as a
poll of a thousand. After all topics have been queried, the next poll queries only those whose last message is at most
:data:`IDLE_MS` older than their broker's newest message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from cometmq.client.admin import Admin
from cometmq.client.admin.broker_status import BrokerStatus
from cometmq.client.admin.group_progress import SECONDS_PER_POLL, GroupProgress, ProgressWatch
from cometmq.client.admin.members import connection_of
from cometmq.client.admin.several import ASKED_AT_ONCE, gathered
from cometmq.client.errors import BrokerError, RemotingError
from cometmq.errors import CometMQError
from cometmq.message.names import RETRY_PREFIX, SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS, SYSTEM_TOPICS, reply_topic
from cometmq.remoting.admin_bodies import ConsumerRunningInfo, ProducerTableInfo
from cometmq.remoting.bodies import MessageQueue

T = TypeVar("T")

TOPICS_PER_POLL: Final = 500
GROUPS_PER_POLL: Final = 200
"""Maximum number of groups whose members are queried per poll."""
CLIENTS_PER_POLL: Final = 50
"""Maximum number of consumers whose own rates are requested per poll."""
TOPICS_BY_QUEUE: Final = 100
"""A group's lag is shown queue by queue if the group has at most this many topics on a broker."""
IDLE_MS: Final = 60_000
TOPIC_LIST_SECONDS: Final = 30.0
"""Seconds after which the list of topics is read again."""

_INNER: Final = (RETRY_PREFIX, "rmq_sys_", "RMQ_SYS_")


@dataclass(frozen=True, slots=True)
class BrokerActivity:
    """The activity of a master. Rates are in messages per second, or ``None`` while the master does not respond."""

    broker: str
    address: str
    in_per_s: float | None
    out_per_s: float | None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class TopicActivity:
    """The activity of a topic. ``messages`` counts all messages ever sent; other figures are ``None`` until known."""

    topic: str
    in_per_s: float | None
    messages: int | None
    groups: int
    lag: int
    """Number of messages not yet consumed by the group that is furthest behind."""


@dataclass(frozen=True, slots=True)
class GroupActivity:
    """The activity of a consumer group."""

    group: str
    out_per_s: float
    lag: int
    members: int | None
    topics: int


@dataclass(frozen=True, slots=True)
class ClientActivity:
    """The activity of a connected client. Rate and lag are known only for consumers that report them."""

    client_id: str
    kind: str
    group: str
    address: str
    language: str
    per_s: float | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The result of one poll."""

    brokers: tuple[BrokerActivity, ...]
    topics: tuple[TopicActivity, ...]
    groups: tuple[GroupActivity, ...]
    clients: tuple[ClientActivity, ...]


@dataclass(slots=True)
class _Ends:
    """The end of a topic on one broker in two consecutive polls."""

    at: float
    total: int
    per_s: float | None = None
    stored_ms: int = 0
    """Store time of the topic's last message."""

    def moved(self, at: float, total: int) -> None:
        """Record a new end; if the topic was recreated, start counting again."""
        if at > self.at:
            self.per_s = max(0, total - self.total) / (at - self.at)
            self.at = at
        self.total = total


@dataclass(slots=True)
class _BrokerView:
    """A broker's responses in one poll."""

    shown: BrokerActivity
    progress: Mapping[str, GroupProgress] = field(default_factory=dict)
    """Progress by group."""
    at: float = 0.0
    """The monotonic time of the response."""
    messages: Mapping[str, int] | None = None
    """The number of messages by topic, if the broker reports it."""
    producers: ProducerTableInfo = field(default_factory=ProducerTableInfo)


class ActivityWatch:
    """Polls a cluster and computes rates as averages between two polls.

    A broker that does not answer appears in the snapshot with its error and its last known figures.
    """

    def __init__(self, admin: Admin, *, with_topics: bool = True, with_clients: bool = True) -> None:
        self._admin = admin
        self._with_topics = with_topics
        self._with_clients = with_clients
        self._masters: dict[str, str] = {}
        """All brokers, including those that the nameserver no longer knows."""
        self._clusters: set[str] = set()
        self._views: dict[str, _BrokerView] = {}
        self._progress: dict[str, ProgressWatch] = {}
        self._topics: dict[str, set[str]] = {}
        """The topics on each broker."""
        self._topics_at = float("-inf")
        self._ends: dict[tuple[str, str], _Ends] = {}
        self._newest_ms: dict[str, int] = {}
        self._turn: list[tuple[str, str]] = []
        self._members: dict[str, list[ClientActivity]] = {}
        self._groups_turn: list[str] = []

    async def poll(self, *, everything: bool = False) -> Snapshot:
        """Poll the cluster once.

        :param everything: query every topic and group, however many exist.
        :raises CometMQError: no nameserver answers the first poll.
        """
        try:
            self._masters |= await self._admin.masters()
            self._clusters = set((await self._admin.cluster_info()).cluster_addr_table)
        except CometMQError:
            if not self._masters:
                raise
        began = self._admin.instance.clock.monotonic()
        asked = {name: self._broker(name, address, everything=everything) for name, address in self._masters.items()}
        views = await gathered(asked)
        for name, view in views.items():
            if view.shown.trouble and name in self._views:
                view.progress, view.producers = self._views[name].progress, self._views[name].producers
        self._views = views
        self._note_consumed()
        if self._with_topics:
            await self._list_topics(began)
            await self._ask_topics(began, everything=everything)
        if self._with_clients:
            await self._ask_members()
        return Snapshot(
            tuple(view.shown for view in views.values()),
            tuple(self._topic_rows()),
            tuple(self._group_rows()),
            tuple(self._client_rows()),
        )

    # --- brokers ---

    async def _broker(self, name: str, address: str, *, everything: bool) -> _BrokerView:
        try:
            status = BrokerStatus.of(await self._admin.runtime_info(address))
            view = _BrokerView(BrokerActivity(name, address, status.in_per_s, status.out_per_s))
            watch = self._progress.setdefault(name, ProgressWatch(self._admin, with_topics=self._with_topics))
            view.progress = await watch.poll(address, everything=everything)
            view.at, view.messages = self._admin.instance.clock.monotonic(), watch.messages
        except CometMQError as error:
            return _BrokerView(BrokerActivity(name, address, None, None, str(error)))
        if self._with_clients:
            view.producers = await _answer_or(self._admin.producers, address, ProducerTableInfo())
        return view

    def _alive(self) -> dict[str, str]:
        return {name: view.shown.address for name, view in self._views.items() if not view.shown.trouble}

    # --- topics ---

    def _note_consumed(self) -> None:
        for name, view in self._views.items():
            if view.shown.trouble:
                continue
            if view.messages is not None:
                for topic, total in view.messages.items():
                    self._note(name, topic, view.at, total)
                continue
            ends: dict[str, tuple[float, int]] = {}
            for group in view.progress.values():
                for topic, progress in group.topics.items():
                    ends[topic] = max(ends.get(topic, (0.0, 0)), (group.at, progress.end))
            for topic, (at, end) in ends.items():
                self._note(name, topic, at, end)

    def _note(self, broker: str, topic: str, now: float, total: int) -> None:
        known = self._ends.get((broker, topic))
        if known is None:
            self._ends[(broker, topic)] = _Ends(now, total)
        else:
            known.moved(now, total)

    async def _list_topics(self, now: float) -> None:
        is_time = now - self._topics_at >= TOPIC_LIST_SECONDS
        if is_time:
            self._topics_at = now
        hidden = SYSTEM_TOPICS | self._masters.keys() | self._clusters | set(map(reply_topic, self._clusters))
        for name, address in self._alive().items():
            listed: Iterable[str] | None = self._views[name].messages
            if listed is None:
                if not is_time:
                    continue
                try:
                    listed = await self._admin.topic_configs(address)
                except CometMQError:
                    continue
            self._topics[name] = {topic for topic in listed if topic not in hidden and not topic.startswith(_INNER)}

    async def _ask_topics(self, began: float, *, everything: bool) -> None:
        alive = self._alive()
        fresh = {place for place, ends in self._ends.items() if ends.at >= began}
        wanted = [(name, topic) for name in alive for topic in self._topics.get(name, ()) if (name, topic) not in fresh]
        if everything:
            wanted = [place for place in wanted if not self._is_idle(*place)]
        elif len(wanted) > TOPICS_PER_POLL:
            wanted = self._in_turn(wanted)

        async def ask(broker: str, topic: str) -> None:
            try:
                table = (await self._admin.topic_stats_of(topic, alive[broker])).offset_table
            except CometMQError:
                return
            at = self._admin.instance.clock.monotonic()
            self._note(broker, topic, at, sum(offsets.max_offset for offsets in table.values()))
            stored_ms = max((offsets.last_update_timestamp for offsets in table.values()), default=0)
            self._ends[(broker, topic)].stored_ms = stored_ms
            self._newest_ms[broker] = max(self._newest_ms.get(broker, 0), stored_ms)

        clock = self._admin.instance.clock
        until = clock.monotonic() + SECONDS_PER_POLL
        for at in range(0, len(wanted), ASKED_AT_ONCE):
            if at and not everything and clock.monotonic() >= until:
                self._turn[:0] = wanted[at:]
                break
            await gathered({place: ask(*place) for place in wanted[at : at + ASKED_AT_ONCE]})

    def _is_idle(self, broker: str, topic: str) -> bool:
        ends = self._ends.get((broker, topic))
        if ends is None or (ends.stored_ms and ends.stored_ms > self._newest_ms.get(broker, 0) - IDLE_MS):
            return False
        ends.per_s = 0.0
        return True

    def _in_turn(self, wanted: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the topics that grew recently, then the topics that were queried longest ago."""
        growing = [place for place in wanted if (ends := self._ends.get(place)) is not None and ends.per_s]
        chosen = dict.fromkeys(growing[: TOPICS_PER_POLL // 2])
        if len(self._turn) < TOPICS_PER_POLL:
            queued = set(self._turn)
            self._turn += [place for place in wanted if place not in queued]
        there = set(wanted)
        while self._turn and len(chosen) < TOPICS_PER_POLL:
            place = self._turn.pop(0)
            if place in there:
                chosen[place] = None
        return list(chosen)

    def _topic_rows(self) -> Iterable[TopicActivity]:
        groups: dict[str, dict[str, int]] = {}
        for view in self._views.values():
            for group, progress in view.progress.items():
                for topic, of_topic in progress.topics.items():
                    lags = groups.setdefault(topic, {})
                    lags[group] = lags.get(group, 0) + of_topic.lag
        for topic in sorted(set[str]().union(*self._topics.values())):
            ends = [known for name in self._masters if (known := self._ends.get((name, topic))) is not None]
            rates = [known.per_s for known in ends if known.per_s is not None]
            lags = groups.get(topic, {})
            yield TopicActivity(
                topic,
                sum(rates) if rates else None,
                sum(known.total for known in ends) if ends else None,
                len(lags),
                max(lags.values(), default=0),
            )

    # --- groups and clients ---

    def _group_rows(self) -> Iterable[GroupActivity]:
        rates: dict[str, float] = {}
        lags: dict[str, int] = {}
        topics: dict[str, set[str]] = {}
        for view in self._views.values():
            for group, progress in view.progress.items():
                rates[group] = rates.get(group, 0.0) + progress.per_s
                lags[group] = lags.get(group, 0) + progress.lag
                topics.setdefault(group, set()).update(progress.topics)
        for group in sorted(rates.keys() | self._members.keys()):
            members = self._members.get(group)
            if group in SYSTEM_GROUPS or (group.startswith(SYSTEM_GROUP_PREFIX) and not members):
                continue
            yield GroupActivity(
                group,
                rates.get(group, 0.0),
                lags.get(group, 0),
                None if members is None else len(members),
                len(topics.get(group, ())),
            )

    async def _ask_members(self) -> None:
        groups = {group for view in self._views.values() for group in view.progress}
        if len(self._groups_turn) < GROUPS_PER_POLL:
            queued = set(self._groups_turn)
            self._groups_turn += sorted(groups - queued)
        chosen = [group for group in self._groups_turn[:GROUPS_PER_POLL] if group in groups]
        del self._groups_turn[:GROUPS_PER_POLL]
        budget = CLIENTS_PER_POLL

        async def ask(group: str) -> None:
            nonlocal budget
            found: dict[str, ClientActivity] = {}
            lags: dict[MessageQueue, int] | None = None
            for address in self._alive().values():
                try:
                    connections = (await connection_of(self._admin, group, address)).connection_set
                except CometMQError:
                    continue
                for one in connections:
                    if one.client_id in found:
                        continue
                    rate, lag = None, None
                    if budget > 0:
                        budget -= 1
                        if lags is None:
                            lags = await self._lags(group)
                        rate, lag = await self._client_activity(group, one.client_id, address, lags)
                    found[one.client_id] = ClientActivity(
                        one.client_id, "consumer", group, one.client_addr, one.language, rate, lag
                    )
            self._members[group] = list(found.values())

        await gathered({group: ask(group) for group in chosen})

    async def _client_activity(
        self, group: str, client_id: str, address: str, lags: dict[MessageQueue, int]
    ) -> tuple[float | None, int | None]:
        """Return a consumer's rate, which a broker requests from the consumer, and the lag of the consumer's queues."""
        try:
            info: ConsumerRunningInfo = await self._admin.consumer_running_info(group, client_id, address)
        except CometMQError:
            return None, None
        rate = sum(status.consume_ok_tps for status in info.status_table.values())
        return rate, sum(lags.get(queue, 0) for queue in info.mq_table) if lags else None

    async def _lags(self, group: str) -> dict[MessageQueue, int]:
        """Return a group's known lag by queue."""
        found: dict[MessageQueue, int] = {}
        for name, address in self._alive().items():
            progress = self._views[name].progress.get(group)
            if progress is None or not 0 < len(progress.topics) <= TOPICS_BY_QUEUE:
                continue
            try:
                table = (await self._admin.progress_at(group, address)).offset_table
            except CometMQError:
                continue
            found |= {queue: offsets.broker_offset - offsets.consumer_offset for queue, offsets in table.items()}
        return found

    def _client_rows(self) -> Iterable[ClientActivity]:
        for members in self._members.values():
            yield from members
        seen: set[tuple[str, str]] = set()
        for view in self._views.values():
            for group, listed in view.producers.data.items():
                for one in listed:
                    if (group, one.client_id) not in seen:
                        seen.add((group, one.client_id))
                        yield ClientActivity(one.client_id, "producer", group, one.remote_ip, one.language, None, None)


async def _answer_or(ask: Callable[[str], Awaitable[T]], address: str, otherwise: T) -> T:
    """Return the response, or ``otherwise`` if the broker does not support the request."""
    try:
        return await ask(address)
    except (BrokerError, RemotingError):
        return otherwise
