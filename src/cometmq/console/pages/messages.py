"""The message pages: a search, one message with its body, properties, trace and consumers, and a form for test
messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.datastructures import UploadFile
from starlette.responses import RedirectResponse, Response

from cometmq.client.admin import END_OF_TIME_MS
from cometmq.client.admin.several import gathered
from cometmq.client.consumer.newest import Found, Search, newest
from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.consumer.pulling import PullStatus
from cometmq.client.consumer.subscription import ALL, SQL92, TAG
from cometmq.client.errors import BrokerError, OtherTopicError, RouteNotFoundError, UnknownBrokerError
from cometmq.client.producer.producer import Producer
from cometmq.client.trace.reader import way_of
from cometmq.client.trace.steps import TraceStep, steps_of
from cometmq.console.bodies import FORMS, Shown, best_form, body_as
from cometmq.console.decoding import AVRO, PROTOBUF, Task, decoded
from cometmq.console.page import Ask, FormError, NotFoundError, Plan, Table, change, page, posted
from cometmq.limits import MAX_QUERY_MESSAGES
from cometmq.message.message import Message, MessageExt
from cometmq.message.names import TOOLS_GROUP
from cometmq.message.properties import KEY_SEPARATOR, KEYS, PRIORITY_MAX, TAGS, UNIQ_KEY
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.errors import RemotingError
from cometmq.threads import in_thread

ROWS: Final = 50
_BEGINNING_CHARS: Final = 160
_PRODUCER_GROUP: Final = "cometmq-console"
_GROUPS_ASKED: Final = 50


@dataclass(frozen=True)
class MessageLine:
    """A message in a list, with the beginning of its body."""

    topic: str
    broker: str
    queue_id: int
    offset: int
    stored_ms: int
    msg_id: str
    tags: str | None
    keys: str
    size: int
    beginning: str

    @classmethod
    def of(cls, message: MessageExt) -> MessageLine:
        """Create the list entry for a message."""
        body = message.body
        return cls(
            topic=message.topic,
            broker=message.broker_name,
            queue_id=message.queue_id,
            offset=message.queue_offset,
            stored_ms=message.store_timestamp,
            msg_id=message.msg_id,
            tags=message.tags,
            keys=" ".join(message.keys),
            size=len(body),
            beginning=body[: 4 * _BEGINNING_CHARS].decode(errors="replace")[:_BEGINNING_CHARS],
        )

    @property
    def address(self) -> str:
        """Return the address of the message's page."""
        return address_of_place(self.topic, self.broker, self.queue_id, self.offset)


def address_of_place(topic: str, broker: str, queue_id: int, offset: int) -> str:
    """Return the address of a message's page."""
    return f"/messages/{quote(topic, safe='')}/{quote(broker, safe='')}/{queue_id}/{offset}"


def expression_of(ask: Ask) -> tuple[str, str]:
    """Return the form's filter expression and its type."""
    sql, tag = ask.text("sql", longest=4_000), ask.text("tag")
    if sql and tag:
        raise FormError(ask.t("filter by a tag or by SQL92, not by both"))
    return (sql, SQL92) if sql else (tag or ALL, TAG)


async def search(ask: Ask) -> Response:
    """Search for messages by id or key, or for the newest messages in a time range."""
    topic, msg_id, key = ask.topic(), ask.text("id"), ask.text("key")
    if msg_id:
        return await _to_message(ask, msg_id, topic)
    found: Found[MessageLine] | None = None
    if topic and key:
        begin, end = ask.period()
        messages = await ask.admin.query_message(
            topic,
            key,
            max_messages=MAX_QUERY_MESSAGES,
            begin_ms=begin or 0,
            end_ms=END_OF_TIME_MS if end is None else end,
        )
        found = Found([MessageLine.of(message) for message in reversed(messages)], 0, is_complete=True)
    elif topic:
        found = await newest_of(ask, ROWS, MessageLine.of)
    older = None
    if found is not None and not key and len(found.messages) == ROWS:
        kept = {name: value for name, value in ask.request.query_params.items() if name != "end" and value}
        first, last = found.messages[0].stored_ms, found.messages[-1].stored_ms
        # Other messages from the last millisecond are shown again: twice is better than never.
        older = "?" + urlencode({**kept, "end": str(last + (first != last))})
    return ask.page("messages/search.html", found=found, topic=topic, older=older, key=key)


async def newest_of(ask: Ask, wanted: int, keep: Any) -> Found[Any]:
    """Find the newest messages that match the form's topic, time range and filter."""
    expression, kind = expression_of(ask)
    begin, end = ask.period()
    wish = Search(
        topic=ask.topic(),
        begin_ms=begin,
        end_ms=end,
        expression=expression,
        expression_type=kind,
        wanted=wanted,
    )
    async with PullConsumer(TOOLS_GROUP, instance=ask.admin.instance) as consumer:
        return await newest(consumer, wish, keep)


async def _to_message(ask: Ask, msg_id: str, topic: str) -> Response:
    message = await _message_of(ask, msg_id, topic)
    broker = message.broker_name or await _broker_at(ask, message)
    return RedirectResponse(address_of_place(message.topic, broker, message.queue_id, message.queue_offset), 303)


async def _message_of(ask: Ask, msg_id: str, topic: str) -> MessageExt:
    """Return the message with the given id: a client's id, or an offset id, which contains the broker's address.

    :raises NotFoundError: no message has this id.
    :raises FormError: the offset id names a server that is not a broker of this cluster.
    """
    try:
        return await ask.admin.message_by_id(msg_id, topic or None)
    except OtherTopicError as error:
        raise NotFoundError(
            ask.t("message {id} belongs to topic {topic}", id=msg_id, topic=error.topic),
            next_step=ask.t("search there, or without a topic"),
        ) from error
    except ValueError as error:
        raise NotFoundError(
            ask.t("message {id} does not exist", id=msg_id),
            next_step=ask.t("if a client created this id, enter the topic; the message may also have expired"),
        ) from error
    except UnknownBrokerError as error:
        raise FormError(
            ask.t("{id} does not name a broker of this cluster", id=msg_id),
            next_step=ask.t("for an id that a client created, enter the topic; the message may also have expired"),
        ) from error


async def _broker_at(ask: Ask, message: MessageExt) -> str:
    """Return the name of the broker whose address is in an offset id."""
    for name, address in (await ask.admin.masters()).items():
        if address == message.store_host:
            return name
    queues = [queue for queue in await ask.admin.queues(message.topic) if queue.queue_id == message.queue_id]
    return queues[0].broker_name if queues else "?"


# --- one message ----------------------------------------------------------------------------------
async def message_at(ask: Ask) -> MessageExt:
    """Return the message in the page's address.

    :raises NotFoundError: the message is not stored or has expired.
    """
    topic, broker = ask.path("topic"), ask.path("broker")
    queue_id, offset = int(ask.path("queue_id")), int(ask.path("offset"))
    async with PullConsumer(TOOLS_GROUP, instance=ask.admin.instance) as consumer:
        result = await consumer.pull(MessageQueue(topic, broker, queue_id), offset, 1)
    if result.status is not PullStatus.FOUND or result.messages[0].queue_offset != offset:
        raise NotFoundError(
            ask.t("queue {queue} of {topic} has no message {offset}", queue=queue_id, topic=topic, offset=offset),
            next_step=ask.t("its offsets are {first} to {last}", first=result.min_offset, last=result.max_offset - 1),
        )
    return result.messages[0]


async def show_message(ask: Ask) -> Response:
    """Show one message."""
    message = await message_at(ask)
    form = ask.text("as")
    return await _shown(ask, message, form if form in FORMS else best_form(message.body))


async def decode(ask: Ask) -> Response:
    """Show one message. The schema from the form is used to decode its body."""
    message = await message_at(ask)
    form, failure, shown = ask.text("form"), "", None
    try:
        if form == AVRO:
            schema = ask.text("schema", longest=200_000).encode()
            shown = await in_thread(decoded, Task(form, message.body, schema))
        elif form == PROTOBUF:
            file = ask.form.get("descriptor")
            descriptor = await file.read() if isinstance(file, UploadFile) else b""
            shown = await in_thread(decoded, Task(form, message.body, descriptor, ask.text("type")))
        else:
            raise FormError(ask.t("{name} must be one of {choices}", name="form", choices="avro, protobuf"))
    except Exception as error:
        failure = str(error)
    return await _shown(ask, message, form, decoded_body=shown, failure=failure)


async def _shown(
    ask: Ask, message: MessageExt, form: str, *, decoded_body: Shown | None = None, failure: str = ""
) -> Response:
    consumers = await _consumers(ask, message)
    steps = await _steps(ask, message.msg_id)
    total = max(((step.after_ms or 0) + (step.took_ms or 0) for step in steps), default=0) or 1
    own = {KEYS, TAGS, UNIQ_KEY}
    return ask.page(
        "messages/message.html",
        message=message,
        broker=ask.path("broker"),
        place=address_of_place(ask.path("topic"), ask.path("broker"), message.queue_id, message.queue_offset),
        forms=FORMS,
        form=form,
        body=body_as(message.body, form),
        size=len(message.body),
        decoded=decoded_body,
        failure=failure,
        properties=sorted((name, value) for name, value in message.properties.items() if name not in own),
        consumers=consumers,
        steps=steps,
        total=total,
    )


async def _steps(ask: Ask, msg_id: str) -> list[TraceStep]:
    try:
        return steps_of(await way_of(ask.admin, msg_id))
    except (BrokerError, RemotingError, RouteNotFoundError):
        return []


async def _consumers(ask: Ask, message: MessageExt) -> dict[str, bool | None]:
    """For each group, return True if its offset is after the message, or ``None`` if the group has no offset."""
    queue = MessageQueue(ask.path("topic"), ask.path("broker"), message.queue_id)
    try:
        groups = await ask.admin.groups_of_topic(queue.topic)
        offsets = await gathered({name: ask.admin.offsets.committed(name, queue) for name in groups[:_GROUPS_ASKED]})
    except (BrokerError, RemotingError, RouteNotFoundError):
        return {}
    return {name: None if offset is None else offset > message.queue_offset for name, offset in offsets.items()}


async def download(ask: Ask) -> Response:
    """Return the complete body as a file."""
    message = await message_at(ask)
    headers = {"Content-Disposition": f'attachment; filename="{message.queue_id}-{message.queue_offset}.bin"'}
    return Response(message.body, media_type="application/octet-stream", headers=headers)


# --- a test message -------------------------------------------------------------------------------
async def send_form(ask: Ask) -> Response:
    """Ask for a test message."""
    return ask.page("messages/send.html", topic=ask.topic())


async def send(ask: Ask) -> Plan:
    """Send a message."""
    topic = ask.topic_to_write()
    body = str(ask.form.get("body") or "").replace("\r\n", "\n")  # forms send line ends in this form
    properties: dict[str, str] = {}
    for line in ask.text("properties", longest=32_000).splitlines():
        name, value = (part.strip() for part in line.partition("=")[::2])
        if not name or not value:
            raise FormError(ask.t("write each property as a line NAME=VALUE, not {line}", line=line))
        if properties.setdefault(name, value) != value:
            raise FormError(ask.t("the property {name} has two values", name=name))
    delay = ask.whole("delay", most=30 * 86_400)
    message = Message(
        topic,
        body.encode(),
        tags=ask.text("tag") or None,
        keys=[key for key in ask.text("keys").split(KEY_SEPARATOR) if key],
        properties=properties,
        delay=timedelta(seconds=delay) if delay else None,
        priority=ask.whole("priority", most=PRIORITY_MAX),
    )
    await ask.admin.topic_route(topic)
    sent: list[str] = []

    async def run() -> str:
        async with Producer(_PRODUCER_GROUP, instance=ask.admin.instance) as producer:
            result = await producer.send(message)
        sent.append(result.msg_id)
        return ask.t("Message {id} is sent to topic {topic}.", id=result.msg_id, topic=topic)

    query = urlencode({"topic": topic})
    return Plan(
        title=ask.t("Send a message to {topic}", topic=topic),
        sentence=ask.t("All groups that consume the topic receive this message."),
        action=ask.t("Send it"),
        what="message.send",
        subject=topic,
        run=run,
        then=f"/messages?{query}",
        back=f"/messages/send?{query}",
        table=Table(
            (
                *(ask.t("Tag"), ask.t("Keys"), ask.t("Bytes"), ask.t("Delay in seconds"), ask.t("Priority")),
                ask.t("Body"),
            ),
            [(message.tags, " ".join(message.keys), len(message.body), delay, message.priority, body[:300])],
        ),
        details={"bytes": len(message.body), "tag": message.tags or "", "keys": " ".join(message.keys)},
    )


_PLACE: Final = "/messages/{topic}/{broker}/{queue_id:int}/{offset:int}"
ROUTES = (
    page("/messages", search),
    page("/messages/send", send_form),
    change("/messages/send", send),
    page(_PLACE, show_message),
    posted(_PLACE, decode),
    page(f"{_PLACE}/body", download),
)
