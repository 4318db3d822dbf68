"""Sends messages for ``cometmq produce``: several calls run at the same time, results are shown in order, and a summary
follows.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from cometmq.cli.connection import explain_connect_error
from cometmq.cli.failures import PartlyDoneError
from cometmq.cli.output import Progress, notify
from cometmq.client.admin import Admin
from cometmq.client.admin.several import users_topics
from cometmq.client.errors import RemotingConnectError, RouteNotFoundError
from cometmq.client.producer.producer import Producer
from cometmq.client.send_result import PartlySentError, SendResult
from cometmq.errors import CometMQError
from cometmq.message.message import Message
from cometmq.message.properties import SHARDING_KEY
from cometmq.options import nearest
from cometmq.quantity import quantity, size_text

CALLS_IN_FLIGHT: Final = 16
"""Number of calls in flight. They keep the broker busy while the next messages are built."""
ROUTE_SECONDS: Final = 3.0
"""Seconds to wait for the nameserver to learn about a topic that a broker has just created."""

Outcomes = tuple[SendResult | BaseException, ...]


@dataclass
class Sent:
    """Results of the send calls that have finished."""

    keep: bool
    started: float
    count: int = 0
    body_bytes: int = 0
    failed: int = 0
    failure: BaseException | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, messages: list[Message], outcomes: tuple[SendResult | BaseException, ...]) -> None:
        """Add the results of one send call."""
        for message, outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                self.failed += 1
                self.failure = self.failure or outcome
                continue
            self.count += 1
            self.body_bytes += len(message.body)
            if self.keep:
                self.rows.append(_row(outcome))

    def failure_of_all(self, namesrv: str) -> BaseException:
        """Return the failure, or an error that also states how many messages were sent before the failure."""
        assert self.failure is not None
        cause = self.failure
        if isinstance(cause, RemotingConnectError):
            cause = explain_connect_error(cause, namesrv)
        if not self.count:
            return cause
        return PartlyDoneError(f"{self.failed} messages were not sent after {self.count} were: {cause}")

    def summary(self, topic: str, now: float) -> str:
        """Return the summary of the results as one sentence."""
        seconds = max(now - self.started, 1e-9)
        plural = "" if self.count == 1 else "s"
        return (
            f"Sent {self.count:,} message{plural} ({size_text(self.body_bytes)}) to topic {topic} "
            f"in {seconds:.2f} s: {self.count / seconds:,.0f}/s."
        )


async def send_all(
    producer: Producer,
    topic: str,
    source: AsyncGenerator[list[Message]],
    sent: Sent,
    progress: Progress,
    *,
    one_by_one: bool,
) -> None:
    """Send every list of messages from the source. Several calls run at the same time, but their results are in order.

    If sending creates the topic, this is reported, so that users notice a mistyped name immediately.
    """
    calls: deque[tuple[list[Message], asyncio.Task[Outcomes]]] = deque()

    async def finish_one() -> None:
        messages, call = calls.popleft()
        sent.add(messages, await call)
        progress.advance(len(messages))

    async with producer, aclosing(source) as lists:
        is_new = False
        async for messages in lists:
            if not sent.count:
                is_new = await _is_new(producer, topic)
            call = asyncio.create_task(_send(producer, messages, one_by_one=one_by_one))
            calls.append((messages, call))
            # The first call opens the connection; the later calls are sent in order.
            is_ordered = any(SHARDING_KEY in message.properties for message in messages)
            limit = 1 if is_ordered or not sent.count else CALLS_IN_FLIGHT
            while calls and (len(calls) >= limit or calls[0][1].done()):
                await finish_one()
            if is_new and sent.count:
                is_new = False
                await _tell_new_topic(producer, topic)
            if sent.failed:
                break
            await asyncio.sleep(0)
        while calls:
            await finish_one()


async def _is_new(producer: Producer, topic: str) -> bool:
    """Return True if no broker has the topic yet, but a broker would create it."""
    try:
        route = await producer.instance.routes.get_for_send(topic, producer.config.default_topic_queue_nums)
    except CometMQError:
        return False  # the send itself will report the error
    return route.auto_create


async def _tell_new_topic(producer: Producer, topic: str) -> None:
    """Print that the first message created its topic, and suggest a similar existing name."""
    clock = producer.instance.clock
    deadline = clock.monotonic() + ROUTE_SECONDS
    while True:
        try:
            queues = (await producer.instance.routes.refresh(topic)).write_queues
            break
        except RouteNotFoundError:
            if clock.monotonic() > deadline:
                return
            await clock.sleep(0.05)
    brokers = sorted({queue.broker_name for queue in queues})
    others = [name for name in await users_topics(Admin(instance=producer.instance)) if name != topic]
    near = nearest(topic, others)
    meant = f" Did you mean {near}?" if near else ""
    made = f"with {quantity(len(queues), 'queue')} on {', '.join(brokers)}"
    notify(f"Topic {topic} did not exist and was created {made}.{meant}")


async def _send(producer: Producer, messages: list[Message], *, one_by_one: bool) -> Outcomes:
    """Send messages. Messages with the same sharding key go to the same queue in order."""
    if all(SHARDING_KEY not in message.properties for message in messages):
        return await _send_unkeyed(producer, messages, one_by_one=one_by_one)
    by_key: defaultdict[str | None, list[int]] = defaultdict(list)
    for position, message in enumerate(messages):
        by_key[message.properties.get(SHARDING_KEY)].append(position)

    async def of_key(key: str | None, chosen: list[Message]) -> Outcomes:
        if key is None:
            return await _send_unkeyed(producer, chosen, one_by_one=one_by_one)
        return await _send_keyed(producer, chosen, key, one_by_one=one_by_one)

    parts = await asyncio.gather(
        *(of_key(key, [messages[position] for position in positions]) for key, positions in by_key.items())
    )
    outcomes: list[SendResult | BaseException] = [CometMQError("not sent")] * len(messages)
    for positions, part in zip(by_key.values(), parts, strict=True):
        for position, outcome in zip(positions, part, strict=True):
            outcomes[position] = outcome
    return tuple(outcomes)


async def _send_unkeyed(producer: Producer, messages: list[Message], *, one_by_one: bool) -> Outcomes:
    try:
        if len(messages) == 1:
            return (await producer.send(messages[0]),)
        return tuple(await (producer.send_many if one_by_one else producer.send_batch)(messages))
    except PartlySentError as error:
        return error.outcomes
    except CometMQError as error:
        return (error,) * len(messages)


async def _send_keyed(producer: Producer, messages: list[Message], key: str, *, one_by_one: bool) -> Outcomes:
    if not one_by_one:
        try:
            return tuple(await producer.send_batch(messages, sharding_key=key))
        except PartlySentError as error:
            return error.outcomes
        except CometMQError as error:
            return (error,) * len(messages)
    outcomes: list[SendResult | BaseException] = []
    for message in messages:
        try:
            outcomes.append(await producer.send(message, sharding_key=key))
        except CometMQError as error:
            return (*outcomes, *((error,) * (len(messages) - len(outcomes))))
    return tuple(outcomes)


def _row(result: SendResult) -> dict[str, Any]:
    return {
        "topic": result.queue.topic,
        "broker": result.queue.broker_name,
        "queue_id": result.queue.queue_id,
        "queue_offset": result.queue_offset,
        "msg_id": result.msg_id,
        "offset_msg_id": result.offset_msg_id,
        "status": result.status.value,
    }
