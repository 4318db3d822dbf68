"""The live tail, which shows a topic's new messages as they are stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.responses import Response

from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.console.limits import MAX_TAILS
from cometmq.console.live import event, event_stream
from cometmq.console.page import Ask, address_of, page
from cometmq.console.pages.messages import MessageLine, expression_of
from cometmq.console.rendering import shown
from cometmq.errors import CometMQError
from cometmq.message.names import TOOLS_GROUP
from cometmq.remoting.bodies import MessageQueue

LOOK_SECONDS: Final = 1.0
MESSAGES_PER_LOOK: Final = 40
"""Maximum number of messages that are shown per poll. Further messages are only counted, since nobody can read
faster.
"""


async def show_tail(ask: Ask) -> Response:
    """Show the page on which new messages appear."""
    return ask.page("messages/tail.html", topic=ask.topic())


async def events(ask: Ask) -> Response:
    """Send new messages until the browser disconnects."""
    expression, kind = expression_of(ask)
    return event_stream(_events(ask, ask.topic(), expression, kind))


async def _events(ask: Ask, topic: str, expression: str, kind: str) -> AsyncIterator[bytes]:
    console = ask.console
    if console.tails >= MAX_TAILS:
        yield event("refused", ask.t("{most} live tails are open, which is the maximum", most=MAX_TAILS))
        return
    console.tails += 1
    try:
        with console.streams.one(address_of(ask.request)):
            async with (
                ask.visitor.connections.admin() as admin,
                PullConsumer(TOOLS_GROUP, instance=admin.instance) as consumer,
            ):
                offsets = {queue: at.max_offset for queue, at in (await admin.topic_stats(topic)).offset_table.items()}
                yield event("open", {"queues": len(offsets)})
                while not console.streams.stopping.is_set():
                    ends = (await admin.topic_stats(topic)).offset_table
                    offsets |= {
                        queue: at.min_offset for queue, at in ends.items() if at.max_offset < offsets.get(queue, 0)
                    }
                    grown = {
                        queue: at.max_offset for queue, at in ends.items() if at.max_offset > offsets.get(queue, 0)
                    }
                    lines: list[dict[str, Any]] = []
                    skipped = 0
                    for queue, end in grown.items():
                        begin = offsets.get(queue, 0)
                        offsets[queue] = end
                        start = max(begin, end - max(1, MESSAGES_PER_LOOK // len(grown)))
                        skipped += start - begin
                        lines += await _lines(consumer, queue, start, end, expression, kind)
                    lines.sort(key=lambda line: line["stored"])
                    yield event("messages", {"lines": lines, "skipped": skipped}) if grown else b": nothing new\n\n"
                    await console.clock.sleep(LOOK_SECONDS)
    except CometMQError as error:
        yield event("refused", str(error))
    finally:
        console.tails -= 1


async def _lines(
    consumer: PullConsumer, queue: MessageQueue, start: int, end: int, expression: str, kind: str
) -> list[dict[str, Any]]:
    result = await consumer.pull(queue, start, end - start, expression=expression, expression_type=kind)
    lines = [MessageLine.of(message) for message in result.messages if message.queue_offset < end]
    return [
        {
            "stored": line.stored_ms,
            "place": f"{line.broker}/{line.queue_id}/{line.offset}",
            "address": line.address,
            "tag": shown(line.tags or ""),
            "keys": shown(line.keys),
            "body": shown(line.beginning),
        }
        for line in lines
    ]


ROUTES = (page("/messages/tail", show_tail), page("/messages/tail/events", events))
