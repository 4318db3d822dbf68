"""Encodes SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE frames, and splits lists into batches (``MessageBatch``).

Headers are JSON, ``{"code":310,"extFields":{…letters of SendMessageRequestHeaderV2…},…}``. Everything that is the same
for all messages of a queue is encoded once. Properties follow RocketMQ's text form, escaped as JSON; the unique key is
hex and needs no escaping. The signed text consists of the values in the order of their names: first the capitals, then
the letters, which are already in order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from cometmq.client.errors import IllegalMessageError
from cometmq.client.send.config import ProducerConfig
from cometmq.clock import SYSTEM_CLOCK
from cometmq.limits import MAX_BATCH_MESSAGES, MAX_PROPERTIES_BYTES
from cometmq.message.batch import PIECE_OVERHEAD_BYTES, encode_piece
from cometmq.message.compression import pack
from cometmq.message.lite_names import check_lite_topic
from cometmq.message.message import Message
from cometmq.message.names import AUTO_CREATE_TOPIC, RETRY_PREFIX, check_topic
from cometmq.message.properties import (
    PROPERTY_SEPARATOR,
    RESERVED_NAMES,
    TIMER_NAMES,
    UNIQ_KEY,
    WAIT,
    encode_properties,
    property_mark,
)
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.codes import CURRENT_VERSION, RequestCode
from cometmq.remoting.frame import JSON
from cometmq.remoting.headers import SendMessageRequestHeaderV2
from cometmq.remoting.signing import Credentials, Stamps, signed_text

_json: Final = msgspec.json.Encoder().encode
_UNIQUE_MARK: Final = property_mark(UNIQ_KEY)
_WAITS: Final = tuple(PROPERTY_SEPARATOR + encode_properties({WAIT: wait}) for wait in ("false", "true"))
_WORDS: Final = struct.Struct(">iI")

UNIQ_KEY_BYTES: Final = len(UNIQ_KEY) + 2 + 56 + len(WAIT) + 7
"""Maximum number of bytes added by the client's own properties."""

_TAIL: Final = b'"language":"PYTHON","serializeTypeCurrentRPC":"JSON","version":%d}' % CURRENT_VERSION
_PIECE_ROOM: Final = PIECE_OVERHEAD_BYTES + UNIQ_KEY_BYTES


class SendEncoder:
    """Encodes a producer group's send requests.

    :param credentials: used to sign every frame.
    :param now_ms: returns the time for the timestamps of signed frames.
    """

    def __init__(
        self,
        group: str,
        config: ProducerConfig,
        credentials: Credentials | None = None,
        now_ms: Callable[[], int] = SYSTEM_CLOCK.now_ms,
    ) -> None:
        self._group = group
        self._queue_nums = config.default_topic_queue_nums
        self._max_message_bytes = config.max_message_bytes
        self._compress_over = config.compress_over_bytes
        self._compression = config.compression
        self._level = config.compression_level
        self._credentials = credentials
        self._stamps = Stamps(now_ms)
        self._heads: dict[tuple[int, MessageQueue], bytes] = {}
        self._signed_parts: dict[tuple[int, MessageQueue], tuple[bytes, bytes]] = {}
        """The constant parts of the signed text, before the field ``f`` and after the field ``i``; none without
        credentials.
        """
        self._topics: set[str] = set()

    # --- one message ---

    def check(self, message: Message) -> None:
        """Check that brokers can accept a message.

        :raises IllegalMessageError: the body is missing, too large or a text; the topic name is invalid; or a number is
            not an int32.
        """
        body = message.body
        if type(body) is not bytes and not isinstance(body, (bytes, bytearray, memoryview)):
            raise IllegalMessageError(
                f"the body is {type(body).__name__}, not bytes",
                "encode it, for example with text.encode(), or pass it as value",
            )
        size = len(body)
        if size > self._max_message_bytes:
            raise IllegalMessageError(
                f"a body of {size} bytes exceeds the limit of {self._max_message_bytes}",
                "split the body, or increase max_message_bytes in the producer and maxMessageSize on the brokers",
            )
        if not size:
            raise IllegalMessageError("the message has no body", "set a body of at least one byte")
        if message.flag or message.delay_level:
            _check_int32("flag", message.flag)
            _check_int32("delay level", message.delay_level)
        if message.topic not in self._topics:
            self._check_topic(message.topic)

    def _check_topic(self, topic: str) -> None:
        wrong = check_topic(topic)
        if wrong is not None:
            raise IllegalMessageError(wrong, "choose another name")
        if len(self._topics) < 10_000:
            self._topics.add(topic)

    def properties_text(self, message: Message, unique_key: str) -> str:
        """Encode a message's properties.

        :raises IllegalMessageError: a delay or priority is invalid, a name is reserved, a name or value is empty, a
            value is not text, a text contains a separator or an unpaired surrogate, or the properties have more than
            32,767 bytes.
        """
        own = _UNIQUE_MARK + unique_key + _WAITS[bool(message.wait_store_msg_ok)]
        is_timed = message.delay is not None or message.deliver_at is not None or message.ttl is not None
        is_lite = message.lite_topic is not None
        is_special = is_timed or message.priority is not None or is_lite
        if not (message.tags or message.keys or message.properties or message.delay_level or is_special):
            return own
        if is_lite:
            _check_lite_topic(message)
        if is_special:
            _check_again(message)
        reserved = message.properties.keys() & RESERVED_NAMES
        if reserved:
            raise IllegalMessageError(
                f"properties {', '.join(sorted(reserved))} are reserved for RocketMQ", "choose other names"
            )
        if "" in message.properties or not all(message.properties.values()):
            raise IllegalMessageError(
                "a property with an empty name or value would not be stored", "remove it from the properties"
            )
        try:
            properties = message.all_properties()
            properties.pop(WAIT, None)
            text = encode_properties(properties) + own
        except ValueError as error:
            raise IllegalMessageError(str(error), "remove the bytes 1 and 2") from error
        except TypeError as error:
            raise IllegalMessageError("tags, keys and properties must be text", "pass each value as a str") from error
        if not text.isascii():
            _check_unicode(text)
        if len(text) * 3 > MAX_PROPERTIES_BYTES and len(text.encode()) > MAX_PROPERTIES_BYTES:
            raise IllegalMessageError(
                f"properties of {len(text.encode())} bytes exceed the limit of {MAX_PROPERTIES_BYTES}",
                "move large values to the body",
            )
        return text

    def packed(self, message: Message) -> tuple[bytes, int]:
        """Return the body to send and its sysFlag; a large body is compressed if that makes it smaller."""
        body = message.body
        if len(body) <= self._compress_over:
            return body, 0
        return pack(body, self._compression, self._level)

    def frame(
        self,
        code: int,
        queue: MessageQueue,
        opaque: int,
        body: bytes | memoryview,
        properties_text: str,
        sys_flag: int,
        flag: int,
        born_timestamp: int,
        command_flag: int = 0,
    ) -> bytes:
        """Encode a send request to ``queue`` as a frame; ``born_timestamp`` is in milliseconds."""
        head = self._heads.get((code, queue)) or self._head(code, queue)
        if self._credentials is not None:
            first, last = self._signed_parts[code, queue]
            stamp = self._stamps.next().encode()
            text = properties_text.encode()
            fields = b"%b%b%d%d%d%b%b" % (stamp, first, sys_flag, born_timestamp, flag, text, last)
            signature = self._credentials.signature(fields, body).encode()
            head = b'%b"AccessAt":"%b","Signature":"%b",' % (head, stamp, signature)
        header = b'%b"f":"%d","g":"%d","h":"%d","i":%b},"flag":%d,"opaque":%d,%b' % (
            head,
            sys_flag,
            born_timestamp,
            flag,
            _json(properties_text),
            command_flag,
            opaque,
            _TAIL,
        )
        size = len(header)
        return b"".join((_WORDS.pack(4 + size + len(body), JSON << 24 | size), header, body))

    def _head(self, code: int, queue: MessageQueue) -> bytes:
        batch = "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false"
        fields = {
            "a": self._group,
            "b": queue.topic,
            "c": AUTO_CREATE_TOPIC,
            "d": str(self._queue_nums),
            "e": str(queue.queue_id),
            "j": "0",
            "k": "false",
            "m": batch,
            "n": queue.broker_name,
        }
        if len(self._heads) > 10_000:
            self._heads.clear()
            self._signed_parts.clear()
        if self._credentials is not None:
            before = {**self._credentials.fields, **{name: value for name, value in fields.items() if name < "f"}}
            after = {name: value for name, value in fields.items() if name > "i"}
            self._signed_parts[code, queue] = signed_text(before), signed_text(after)
            fields |= self._credentials.fields
        head = self._heads[code, queue] = b'{"code":%d,"extFields":%b,' % (code, _json(fields)[:-1])
        return head

    def header(
        self, code: int, queue: MessageQueue, properties_text: str, sys_flag: int, flag: int, born_timestamp: int
    ) -> SendMessageRequestHeaderV2:
        """Return the header of the request that :meth:`frame` encodes as an object, for RPC hooks."""
        return SendMessageRequestHeaderV2(
            producer_group=self._group,
            topic=queue.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=self._queue_nums,
            queue_id=queue.queue_id,
            sys_flag=sys_flag,
            born_timestamp=born_timestamp,
            flag=flag,
            properties=properties_text,
            reconsume_times=0,
            batch=code == RequestCode.SEND_BATCH_MESSAGE,
            broker_name=queue.broker_name,
        )

    # --- batches ---

    def piece_bytes(self, message: Message) -> int:
        """Return an upper bound of a message's size in a batch body.

        :raises IllegalMessageError: as :meth:`properties_text`.
        """
        size = _PIECE_ROOM + len(message.body)
        if message.tags or message.keys or message.properties or message.is_delayed:
            size += len(self.properties_text(message, "").encode())
        return size

    def batch_body(self, messages: Sequence[Message], unique_keys: Sequence[str]) -> bytes:
        """Encode a batch body; see :mod:`cometmq.message.batch`.

        :raises IllegalMessageError: as :meth:`properties_text`.
        """
        out: list[bytes] = []
        for message, key in zip(messages, unique_keys, strict=True):
            out += encode_piece(message.flag, message.body, self.properties_text(message, key).encode())
        return b"".join(out)


def _check_int32(name: str, value: object) -> None:
    """Check a number that records store in four bytes or that brokers read as a Java ``int``.

    :raises IllegalMessageError: the value is not an integer, or does not fit.
    """
    if not isinstance(value, int) or not -(2**31) <= value < 2**31:
        raise IllegalMessageError(f"the {name} must not be {value!r:.100}", "use a 32-bit integer")


def _check_unicode(text: str) -> None:
    """Check that a text can be sent as UTF-8.

    :raises IllegalMessageError: the text contains an unpaired surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise IllegalMessageError(
            f"tags, keys or properties contain {error.object[error.start]!a}, which is only half of a character",
            "remove it, or use the complete character",
        ) from error


def _check_again(message: Message) -> None:
    """Check delay, priority and life time again, because the message may have changed since it was created.

    :raises IllegalMessageError: the message has two delays, or an invalid delay, priority or life time.
    """
    try:
        message.check_delay()
        message.check_priority()
        message.check_ttl()
    except ValueError as error:
        reason, _, next_step = str(error).partition(": ")
        raise IllegalMessageError(reason, next_step) from None


def _check_lite_topic(message: Message) -> None:
    wrong = check_lite_topic(message.lite_topic or "")
    if wrong is not None:
        raise IllegalMessageError(wrong, "choose another name")
    if message.is_delayed or message.priority is not None:
        raise IllegalMessageError(
            "a message of a lite topic cannot have a delay or a priority", "leave it or the lite topic out"
        )


def is_batchable(message: Message) -> bool:
    """Return whether a message may be in a batch: it has no delay, priority or lite topic, and no retry topic.

    A batch is stored in one queue, but the queue of a message with a priority is its level.
    """
    return (
        not message.is_delayed
        and message.priority is None
        and message.lite_topic is None
        and not message.topic.startswith(RETRY_PREFIX)
        and (not message.properties or TIMER_NAMES.isdisjoint(message.properties))
    )


def split_batches(messages: Sequence[Message], max_bytes: int, sizes: Sequence[int]) -> list[list[int]]:
    """Split a list into batches; return the positions of each batch's messages, in order for each topic.

    The messages in a batch have the same topic and ``wait_store_msg_ok``, no delay, no priority and no retry topic; the
    body has at most ``max_bytes``. A message that cannot be batched, or that fills a batch, is sent alone.

    :param sizes: the bytes of each message in a batch.
    """
    batches: list[list[int]] = []
    kinds: dict[tuple[str, bool], _Open] = {}
    opened = _Open("", True)
    for position, message in enumerate(messages):
        if (
            message.topic != opened.topic
            or message.wait_store_msg_ok != opened.wait
            or message.is_delayed
            or message.priority is not None
            or message.lite_topic is not None
            or message.properties
        ):
            if not is_batchable(message):
                batches.append([position])
                continue
            kind = (message.topic, message.wait_store_msg_ok)
            opened = kinds.get(kind) or kinds.setdefault(kind, _Open(*kind))
        size = sizes[position]
        batch = opened.batch
        if not batch or opened.filled_bytes + size > max_bytes or len(batch) >= MAX_BATCH_MESSAGES:
            batch = opened.batch = []
            opened.filled_bytes = 0
            batches.append(batch)
        batch.append(position)
        opened.filled_bytes += size
    return batches


class _Open:
    """A batch that still has room for messages of one kind."""

    __slots__ = ("batch", "filled_bytes", "topic", "wait")

    def __init__(self, topic: str, wait: bool) -> None:
        self.topic = topic
        self.wait = wait
        self.batch: list[int] = []
        self.filled_bytes = 0
