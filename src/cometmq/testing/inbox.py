"""A consumer that collects, so that a test can say what must arrive, and when."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Self

from cometmq.client.consumer_config import ConsumeFromWhere, PushConfig
from cometmq.client.listener import Verdict
from cometmq.client.push_consumer import PushConsumer
from cometmq.client.subscription import ALL, TAG
from cometmq.clock import VirtualClock
from cometmq.message.message import MessageExt
from cometmq.message.names import SCHEDULE_TOPIC, TRANS_HALF_TOPIC, dlq_topic
from cometmq.testing.waiting import wait_until
from cometmq.testing.whereabouts import Stored, describe_all, describe_cluster, stored

if TYPE_CHECKING:
    from cometmq.testing.cluster import Cluster

_numbers = itertools.count(1)

WITHIN_SECONDS: Final = 5.0
"""Of the cluster's clock, unless a test says otherwise."""


class ExpectationError(AssertionError):
    """Other messages arrived than a test expected; the text says which, and where the others are."""


class Inbox:
    """A member of a consumer group that keeps what it gets; made by :meth:`Cluster.inbox`.

    ``async with cluster.inbox("orders") as inbox:`` reads ``orders`` from its first message on. Each
    message is handed out once, in the order of arrival.

    :param topics: at least one; those that do not exist are made, with four queues.
    :param expression: the subscription to all of them, tags or SQL92 as ``expression_type`` says.
    :param group: the consumer group; by default one that nobody else is in.
    :param answer: what the listener answers every time: success, or that the message shall come again.
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: Sequence[str],
        *,
        expression: str = ALL,
        expression_type: str = TAG,
        group: str | None = None,
        answer: Verdict = None,
    ) -> None:
        if not topics:
            raise ValueError("an inbox needs a topic")
        self.topics: Final = tuple(topics)
        self.group: Final = group or f"inbox-{os.getpid()}-{next(_numbers)}"
        self.messages: Final[list[MessageExt]] = []
        """Everything that has arrived, in that order; a message that came again is there again."""
        self._expression = expression
        self._answer = answer
        self._cluster = cluster
        self._handed_out = 0
        self._consumer = PushConsumer(
            self.group,
            self._take,
            config=PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET),
            instance=cluster.client_instance(),
        )
        for topic in self.topics:
            self._consumer.subscribe(topic, expression, expression_type=expression_type)

    async def __aenter__(self) -> Self:
        for topic in self.topics:
            if not self._cluster.has_topic(topic):
                await self._cluster.create_topic(topic)
        await self._consumer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.close()

    async def _take(self, messages: Sequence[MessageExt]) -> Verdict:
        self.messages.extend(messages)
        return self._answer

    @property
    def waiting(self) -> list[MessageExt]:
        """What has arrived and was not handed out."""
        return self.messages[self._handed_out :]

    async def expect(self, count: int, within: float | timedelta = WITHIN_SECONDS) -> list[MessageExt]:
        """The next ``count`` messages, within so many seconds of the cluster's clock.

        A :class:`~cometmq.clock.VirtualClock` is moved as far as needed and no further; see
        :func:`~cometmq.testing.waiting.wait_until`. More messages than ``count`` wait for the next call.

        :raises ExpectationError: fewer arrived.
        """
        if not await wait_until(self._cluster.clock, lambda: len(self.waiting) >= count, within):
            raise ExpectationError(self._too_few(count, within))
        taken = self.waiting[:count]
        self._handed_out += count
        return taken

    async def expect_none(self, within: float | timedelta = WITHIN_SECONDS) -> None:
        """Nothing more arrives within so many seconds of the cluster's clock, which pass.

        :raises ExpectationError: something does, or waits already.
        """
        if await wait_until(self._cluster.clock, lambda: self.waiting, within):
            lines = [f"no message was expected from {self._name()}{_time(within)}, but there came:"]
            raise ExpectationError("\n".join([*lines, *describe_all(self.waiting)]))

    # --- what to tell ---
    def _name(self) -> str:
        topics = " and ".join(self.topics)
        return topics if self._expression == ALL else f"{topics} ({self._expression})"

    def _too_few(self, count: int, within: float | timedelta) -> str:
        waiting = self.waiting
        places = stored(self._cluster.brokers, self.group)
        lines = [f"{_messages(count)} expected from {self._name()}{_time(within)}, {len(waiting) or 'none'} came:"]
        lines += describe_all(waiting)
        if self._handed_out:
            lines.append(f"  (and {self._handed_out} that earlier expectations took)")
        lines.append(
            f"{_messages(count - len(waiting))} missing. What the brokers that run hold, for group {self.group}:"
        )
        lines += describe_cluster(places, self.topics, self.group)
        lines += [f"→ {step}" for step in self._next_steps(places)]
        return "\n".join(lines)

    def _next_steps(self, places: dict[str, Stored]) -> Iterable[str]:
        cluster = self._cluster
        stopped = [index for index in range(cluster.size) if index not in cluster.running]
        if stopped:
            yield f"broker {', '.join(map(str, stopped))} does not run: see start_broker"
        own = [places[topic] for topic in self.topics if topic in places]
        if any(place.lag for place in own):
            yield "the group has not got everything: is the broker paused, or a link to it cut?"
        left_out = sum(place.count for place in own) - len({message.offset_msg_id for message in self.messages})
        if self._expression != ALL and left_out > 0:
            tags = sorted({str(tag) for place in own for tag in place.tags})
            yield f"the subscription {self._expression!r} leaves messages out; the tags stored are {', '.join(tags)}"
        if dlq_topic(self.group) in places:
            yield f"messages failed too often and are in {dlq_topic(self.group)}"
        if SCHEDULE_TOPIC in places:
            yield f"messages wait for their time in {SCHEDULE_TOPIC}: give them more with within=…{self._next_alarm()}"
        if TRANS_HALF_TOPIC in places:
            yield f"half messages in {TRANS_HALF_TOPIC} wait for a commit or rollback, or for a check"
        others = [topic for topic in places if topic not in self.topics and topic[0] != "%" and topic != SCHEDULE_TOPIC]
        if not own:
            if others:
                yield f"nothing was sent to {self._name()}, but to {', '.join(sorted(others))}: is the topic right?"
            else:
                yield f"nothing was sent to this cluster; its nameserver is {cluster.namesrv_address}"

    def _next_alarm(self) -> str:
        clock = self._cluster.clock
        if not isinstance(clock, VirtualClock) or math.isinf(clock.next_alarm_in()):
            return ""
        return f" (the next is due in {clock.next_alarm_in():.0f} s)"


def _messages(count: int) -> str:
    return f"{count} message" if count == 1 else f"{count} messages"


def _time(within: float | timedelta) -> str:
    return f" within {within if isinstance(within, timedelta) else f'{within:g} s'}"
