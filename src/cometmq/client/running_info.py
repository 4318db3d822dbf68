"""What a consumer tells administrators of itself (``ConsumerRunningInfo``)."""

from __future__ import annotations

from enum import Enum
from typing import Final

from cometmq.client.consumer_config import ReadConfig
from cometmq.client.instance import ClientInstance
from cometmq.client.process_queue import ProcessQueue
from cometmq.remoting.bodies import ConsumerData, ConsumerRunningInfo, ProcessQueueInfo
from cometmq.remoting.codes import CURRENT_VERSION_NAME

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
    """Java's properties of every consumer, the options of its configuration, and its subscriptions."""
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
    """One queue; ``locked_ms`` is ``None`` where its lock is needed and not held."""
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
