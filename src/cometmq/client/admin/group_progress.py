"""The progress of a broker's groups, even if it is too large for one response.

A CometMQ broker reports only sums, not the progress of each queue. Apache's broker is asked for all groups in one
request. If the response would be too large, for example with a million offsets, groups are queried one by one.
:class:`ProgressWatch` queries only some groups in each poll, so that a poll takes at most a second.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.client.admin import Admin
from cometmq.client.admin.several import gathered
from cometmq.client.errors import BrokerError
from cometmq.remoting.admin_bodies import ConsumeStats, GroupSums, ProgressSums, TopicProgress
from cometmq.remoting.codes import ResponseCode

SECONDS_PER_POLL: Final = 0.3
"""Maximum time that a poll spends on querying groups one by one."""
_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A group's progress on one broker."""

    at: float
    """The monotonic time of the response."""
    per_s: float
    topics: Mapping[str, TopicProgress]

    @property
    def lag(self) -> int:
        """Return the number of messages not yet consumed in any topic."""
        return sum(topic.lag for topic in self.topics.values())


def summed(listed: Iterable[ConsumeStats], at: float) -> GroupProgress:
    """Create a group's progress from a broker's response."""
    topics: dict[str, TopicProgress] = {}
    per_s = 0.0
    for stats in listed:
        per_s += stats.consume_tps
        for queue, offsets in stats.offset_table.items():
            lag = offsets.broker_offset - offsets.consumer_offset
            known = topics.get(queue.topic, TopicProgress(0, 0))
            topics[queue.topic] = TopicProgress(known.end + offsets.broker_offset, known.lag + lag)
    return GroupProgress(at, per_s, topics)


async def all_groups(admin: Admin, broker_address: str) -> AsyncIterator[tuple[str, list[ConsumeStats]]]:
    """Yield each of a broker's groups with its progress.

    :raises BrokerError: the broker refuses.
    """
    at_once = await _at_once(admin, broker_address)
    if at_once is not None:
        for group, listed in at_once.items():
            yield group, listed
        return
    for group in await admin.groups(broker_address):
        yield group, [await admin.progress_at(group, broker_address)]


async def _at_once(admin: Admin, broker_address: str) -> dict[str, list[ConsumeStats]] | None:
    """Return the progress of all groups, or ``None`` if the response would be too large."""
    try:
        answer = await admin.progress_of_all_groups(broker_address)
    except BrokerError as error:
        if error.code != ResponseCode.SYSTEM_ERROR:
            raise
        return None
    found: dict[str, list[ConsumeStats]] = {}
    for listed in answer.consume_stats_list:
        for group, stats in listed.items():
            found.setdefault(group, []).extend(stats)
    return found


async def sums_of(
    admin: Admin, broker_address: str, groups: Iterable[str], *, with_topics: bool = False
) -> ProgressSums | None:
    """Return groups' progress summed by topic, or ``None`` if the broker does not support this.

    :param with_topics: include the number of messages ever stored in each topic.
    """
    try:
        return await admin.progress_sums(broker_address, groups, with_topics=with_topics)
    except BrokerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        return None


async def progress_of_groups(admin: Admin, broker_address: str, groups: Iterable[str]) -> dict[str, GroupSums]:
    """Return the progress, on one broker, of those of the given groups that the broker knows."""
    wanted = list(groups)
    sums = await sums_of(admin, broker_address, wanted)
    if sums is not None:
        return sums.groups

    async def ask(group: str) -> GroupSums:
        try:
            return GroupSums(topics=dict(summed([await admin.progress_at(group, broker_address)], 0.0).topics))
        except BrokerError as error:
            if error.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
                return GroupSums()
            raise

    return await gathered({group: ask(group) for group in wanted})


def groups_with_members(groups: Iterable[str], sums: Iterable[Mapping[str, GroupSums]], least: int) -> list[str]:
    """Return the groups that have, or may have, at least ``least`` members.

    :param sums: answers of brokers; a broker that does not report a group's members may have any number.
    """
    members = dict.fromkeys(groups, 0)
    for at_broker in sums:
        for group in members:
            found = at_broker.get(group)
            members[group] += least if found is None or found.members is None else found.members
    return [group for group, count in members.items() if count >= least]


class ProgressWatch:
    """Polls the progress of a broker's groups.

    :param with_topics: include the number of messages of each topic.
    """

    def __init__(self, admin: Admin, *, with_topics: bool = False) -> None:
        self._admin = admin
        self._with_topics = with_topics
        self.messages: Mapping[str, int] | None = None
        """The number of messages ever stored in each topic, or ``None`` if the broker reports it only for single
        topics.
        """
        self._is_large = False
        self._known: dict[str, GroupProgress] = {}
        self._turn: list[str] = []
        """Groups to query next; the group that was queried longest ago is at the end."""

    async def poll(self, broker_address: str, *, everything: bool) -> Mapping[str, GroupProgress]:
        """Poll a broker. On a large broker, the progress of some groups is from earlier polls or still unknown.

        :param everything: query all groups, however long that takes.
        :raises CometMQError: the broker does not answer.
        """
        clock = self._admin.instance.clock
        there = await self._admin.groups(broker_address)
        sums = await sums_of(self._admin, broker_address, there, with_topics=self._with_topics)
        if sums is not None:
            self.messages = sums.topics if self._with_topics else None
            now = clock.monotonic()
            return {group: GroupProgress(now, found.consume_tps, found.topics) for group, found in sums.groups.items()}
        self.messages = None
        if not self._is_large:
            at_once = await _at_once(self._admin, broker_address)
            if at_once is not None:
                now = clock.monotonic()
                return {group: summed(listed, now) for group, listed in at_once.items()}
            self._is_large = True
        self._known = {group: known for group, known in self._known.items() if group in there}
        queued = set(self._turn)
        self._turn = [*(group for group in there if group not in queued), *self._turn]
        until = clock.monotonic() + SECONDS_PER_POLL
        for _ in range(len(self._turn)):
            chosen = [group for group in self._turn[-_AT_ONCE:] if group in there]
            del self._turn[-_AT_ONCE:]
            asked = {group: self._admin.progress_at(group, broker_address) for group in chosen}
            for group, stats in (await gathered(asked)).items():
                self._known[group] = summed([stats], clock.monotonic())
            if not self._turn or (not everything and clock.monotonic() >= until):
                break
        return self._known
