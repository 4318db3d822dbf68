"""A consumer's state as shown to administrators (``ConsumerRunningInfo``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Final

import msgspec

from cometmq.client.consumer.config import ReadConfig
from cometmq.client.consumer.process_queue import ProcessQueue
from cometmq.client.instance import ClientInstance
from cometmq.clock import Clock
from cometmq.remoting.admin_bodies import ConsumerRunningInfo, ConsumeStatus, ProcessQueueInfo
from cometmq.remoting.bodies import ConsumerData, MessageQueue
from cometmq.remoting.codes import CURRENT_VERSION_NAME

WINDOW_S: Final = 60.0
"""Number of seconds over which rates are computed: the last minute, as in Java."""


class _Sample(msgspec.Struct):
    at: float
    pulled: dict[str, int]
    done: dict[str, int]
    failed: dict[str, int]


class Activity:
    """A push consumer's rates, sampled at each offset report and each state request."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[ProcessQueue, tuple[int, int]] = {}
        self._times: dict[MessageQueue, tuple[int, int]] = {}
        self._pulled: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._failed: dict[str, int] = {}
        self._samples: deque[_Sample] = deque([self._now()])

    def failed(self, topic: str, count: int) -> None:
        """Count a topic's failed messages."""
        self._failed[topic] = self._failed.get(topic, 0) + count

    def sample(self, queues: Mapping[MessageQueue, ProcessQueue]) -> None:
        """Take a sample of the counters."""
        now_ms = self._clock.now_ms()
        before, self._seen = self._seen, {}
        for queue, process_queue in queues.items():
            pulled, done = process_queue.pulled_count, process_queue.pulled_count - process_queue.cached_count
            old_pulled, old_done = before.get(process_queue, (0, 0))
            pulled_ms, done_ms = self._times.get(queue, (0, 0))
            self._times[queue] = (now_ms if pulled > old_pulled else pulled_ms, now_ms if done > old_done else done_ms)
            self._pulled[queue.topic] = self._pulled.get(queue.topic, 0) + pulled - old_pulled
            self._done[queue.topic] = self._done.get(queue.topic, 0) + done - old_done
            self._seen[process_queue] = (pulled, done)
        self._times = {queue: times for queue, times in self._times.items() if queue in queues}
        self._samples.append(self._now())
        while len(self._samples) > 2 and self._samples[1].at <= self._clock.monotonic() - WINDOW_S:
            self._samples.popleft()

    def times(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the sample times of the last pull and the last consumption in milliseconds since 1970; 0 means
        never.
        """
        return self._times.get(queue, (0, 0))

    def status(self, topic: str) -> ConsumeStatus:
        """Return a topic's rates per second over the last minute; response times are not measured."""
        first, last = self._samples[0], self._samples[-1]
        seconds = max(last.at - first.at, 1.0)
        failed = (last.failed.get(topic, 0) - first.failed.get(topic, 0)) / seconds
        done = (last.done.get(topic, 0) - first.done.get(topic, 0)) / seconds
        return ConsumeStatus(
            pull_tps=(last.pulled.get(topic, 0) - first.pulled.get(topic, 0)) / seconds,
            consume_ok_tps=done,
            consume_failed_tps=failed,
            consume_failed_msgs=self._failed.get(topic, 0),
        )

    def _now(self) -> _Sample:
        return _Sample(self._clock.monotonic(), dict(self._pulled), dict(self._done), dict(self._failed))


_MIB: Final = 1024 * 1024


def running_info(
    instance: ClientInstance,
    config: ReadConfig,
    heartbeat: ConsumerData,
    started_ms: int,
    *,
    orderly: bool = False,
    threads: int = 1,
) -> ConsumerRunningInfo:
    """Return a consumer's properties as in Java, its configuration options, and its subscriptions."""
    properties = {_camel(name): _text(value) for name, value in vars(config).items()}
    properties |= {
        "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in instance.routes.namesrv),
        "PROP_CONSUME_TYPE": heartbeat.consume_type,
        "PROP_CONSUMEORDERLY": str(orderly).lower(),
        "PROP_THREADPOOL_CORE_SIZE": str(threads),
        "PROP_CLIENT_VERSION": CURRENT_VERSION_NAME,
        "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
        "consumerGroup": heartbeat.group_name,
    }
    subscriptions = sorted(heartbeat.subscription_data_set, key=lambda subscription: subscription.topic)
    return ConsumerRunningInfo(properties=properties, subscription_set=subscriptions)


def process_queue_info(
    process_queue: ProcessQueue, locked_ms: int | None, pulled_ms: int, consumed_ms: int
) -> ProcessQueueInfo:
    """Return a queue's state; ``locked_ms`` is ``None`` if a required lock is not held."""
    first, last = process_queue.cached_span
    running = [message.queue_offset for request in list(process_queue.running) for message in request.messages]
    return ProcessQueueInfo(
        commit_offset=process_queue.offset or 0,
        cached_msg_min_offset=first,
        cached_msg_max_offset=last,
        cached_msg_count=process_queue.cached_count,
        cached_msg_size_in_mib=process_queue.cached_bytes // _MIB,
        transaction_msg_min_offset=min(running, default=0),
        transaction_msg_max_offset=max(running, default=0),
        transaction_msg_count=len(running),
        locked=locked_ms is not None,
        last_lock_timestamp=locked_ms or 0,
        dropped=process_queue.dropped,
        last_pull_timestamp=pulled_ms,
        last_consume_timestamp=consumed_ms,
    )


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _text(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    return getattr(value, "__name__", None) or str(value)
