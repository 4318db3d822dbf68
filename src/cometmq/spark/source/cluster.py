"""The cluster that a reader's options name, asked by the blocking client, with the errors of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from cometmq.client.blocking.cluster import ANSWER_SECONDS, ClusterOptions, Queue
from cometmq.client.blocking.offsets import Bounds, OffsetClient
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.errors import CometMQError
from cometmq.spark.errors import SparkSourceError, UnreachableError
from cometmq.spark.source.options import SourceOptions


class Cluster(OffsetClient):
    """The brokers behind ``namesrvAddr``, and the topics asked for.

    Its methods raise UnreachableError when servers do not answer, and SparkSourceError when they refuse.
    """

    unreachable: ClassVar[type[CometMQError]] = UnreachableError
    refused: ClassVar[type[CometMQError]] = SparkSourceError
    namesrv_step = "is option namesrvAddr right, and is it running?"
    broker_step = "is it running? option pollTimeoutMs waits longer"

    def __init__(self, options: SourceOptions, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._asked_at = clock.monotonic
        self.latency_ms: dict[str, float] = {}
        """Time that each broker took for its last answer about the bounds of its queues."""
        super().__init__(
            ClusterOptions(
                options.namesrv_addr,
                options.access.security,
                timeout_s=min(ANSWER_SECONDS, options.poll_timeout_s),
                patience_s=options.poll_timeout_s,
                topics=options.topics,
                topic_pattern=options.topic_pattern,
                from_slaves=options.from_slaves,
                group=options.consumer_group,
            ),
            clock=clock,
        )

    def queues(self) -> list[Queue]:
        """Look up every readable queue that is asked for, on the brokers that are registered now."""
        return [queue for queue in super().queues() if self._options.assigns(queue)]

    def _bounds_of(self, members: Sequence[Queue], patience_s: float) -> dict[Queue, Bounds]:
        began = self._asked_at()
        found = super()._bounds_of(members, patience_s)
        self.latency_ms[members[0].broker] = round((self._asked_at() - began) * 1000, 3)
        return found
