"""Bodies of requests and responses: the structs that RocketMQ encodes as JSON (``common/protocol/body``).

They are written and read in fastjson's dialect (:mod:`cometmq.fastjson`): numeric keys are not quoted, maps keyed by a
:class:`MessageQueue` have that object as the key, null fields are left out, and fields are in alphabetical order.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar, get_args, get_origin

import msgspec
from msgspec import UNSET, UnsetType

from cometmq import fastjson
from cometmq.errors import CometMQError
from cometmq.limits import MAX_LOOSE_BODY_BYTES, MAX_PARSED_BODY_BYTES

T = TypeVar("T")


class BodyError(CometMQError):
    """The body of a request or response is malformed."""


class Body(msgspec.Struct, rename="camel", kw_only=True):
    """Base class for all bodies."""


class MessageQueue(msgspec.Struct, rename="camel", frozen=True, order=True):
    """A queue of a topic on one broker; queues sort in the same order as in RocketMQ's clients."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"queue {self.queue_id} of {self.topic} on {self.broker_name}"


class DataVersion(Body):
    """The version of a table. Versions are equal only if both of their numbers match."""

    counter: int = 0
    state_version: int | None = None
    timestamp: int = 0


class TopicConfig(Body, kw_only=True):
    """A topic's configuration (``TopicConfig``)."""

    attributes: dict[str, str] | None = None
    order: bool = False
    perm: int = 6
    read_queue_nums: int = 16
    topic_filter_type: str = "SINGLE_TAG"
    topic_name: str
    topic_sys_flag: int = 0
    write_queue_nums: int = 16


class TopicConfigSerializeWrapper(Body):
    """The configurations of all topics on a broker."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_config_table: dict[str, TopicConfig] = {}


class RegisterBrokerBody(Body):
    """A broker's registration (request code 103)."""

    filter_server_list: list[str] = []
    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = msgspec.field(
        default_factory=TopicConfigSerializeWrapper
    )


class SubscriptionGroupConfig(Body, kw_only=True):
    """A consumer group's configuration, with Apache's defaults.

    RocketMQ 5's fields keep the values they were given, and are left out if they are not set, as in 4.9.
    """

    attributes: dict[str, str] | UnsetType = UNSET
    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool | UnsetType = UNSET
    consume_timeout_minute: int | UnsetType = UNSET
    group_name: str
    group_retry_policy: dict[str, Any] | UnsetType = UNSET
    group_sys_flag: int | UnsetType = UNSET
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    which_broker_when_consume_slowly: int = 1


class SubscriptionGroupWrapper(Body):
    """The configurations of all consumer groups on a broker."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}


class QueueData(Body):
    """The queues of a topic on one broker."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


class BrokerData(Body):
    """The addresses registered for a broker name, by broker id (0 is the master)."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str]


class TopicRouteData(Body):
    """A topic's queues and brokers."""

    broker_datas: list[BrokerData] = []
    queue_datas: list[QueueData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None


class GoneBroker(Body):
    """A broker that is no longer registered with a nameserver."""

    cluster: str
    broker_name: str
    broker_id: int
    broker_addr: str
    gone_for_ms: int
    reason: str


class RivalBrokers(Body):
    """Live brokers that replace each other in routes because they have the same name and id."""

    broker_name: str
    broker_id: int
    broker_addrs: list[str]


class ClusterInfo(Body):
    """All brokers and clusters known to a nameserver."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}
    gone_brokers: list[GoneBroker] | None = None
    """Brokers that left recently; CometMQ's own field, which Apache's tools ignore."""
    rival_brokers: list[RivalBrokers] | None = None
    """Live brokers that replace each other because they have the same name and id (CometMQ's own field)."""


ENUMERATIONS: Final = {
    "consumeType": ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY"),
    "messageModel": ("BROADCASTING", "CLUSTERING"),
    "consumeFromWhere": (
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ),
}
"""For each field with an enumeration, its constants in Java's order; the C++ client sends a constant's position."""


class SubscriptionData(Body):
    """A consumer's subscription to one topic."""

    topic: str
    sub_string: str = "*"
    expression_type: str = "TAG"
    sub_version: int = 0
    tags_set: list[str] = []
    code_set: list[int | str] = []
    class_filter_mode: bool = False


class ConsumerData(Body):
    """A consumer group in a heartbeat."""

    group_name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class ProducerData(Body):
    """A producer group in a heartbeat."""

    group_name: str


class HeartbeatData(Body):
    """Request body for HEART_BEAT (34)."""

    client_id: str = msgspec.field(name="clientID")
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []


class KVTable(Body):
    """A table with text keys and values."""

    table: dict[str, str] = {}


class TopicList(Body):
    """A list of topic names."""

    topic_list: list[str] = []
    broker_addr: str | None = None


class ConsumerIdList(Body):
    """Response to GET_CONSUMER_LIST_BY_GROUP (38)."""

    consumer_id_list: list[str] = []


class LockBatchRequestBody(Body):
    """Request body for LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42)."""

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue] = []


class LockBatchResponseBody(Body):
    """The queues locked by the requesting client (request code 41)."""

    lock_ok_mq_set: list[MessageQueue] = msgspec.field(default_factory=list, name="lockOKMQSet")


class CheckClientRequestBody(Body):
    """Request body for CHECK_CLIENT_CONFIG (46)."""

    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData | None = None


class ResetOffsetBody(Body):
    """Each queue's new offset (request codes 220 and 222)."""

    offset_table: dict[MessageQueue, int] = {}


class ConsumerOffsetSerializeWrapper(Body):
    """All consumer offsets, by ``topic@group`` and queue id (request code 43 and ``consumerOffset.json``)."""

    offset_table: dict[str, dict[int, int]] = {}


class DelayOffsetSerializeWrapper(Body):
    """The offset up to which each delay level has been delivered (request code 45 and ``delayOffset.json``)."""

    offset_table: dict[int, int] = {}


@functools.cache
def _fields_of(kind: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """Return ``(name in JSON, attribute)`` for each field of a struct, sorted by name."""
    return tuple(sorted((info.encode_name, info.name) for info in msgspec.structs.fields(kind)))


def to_builtins(body: Any) -> Any:
    """Convert a body to dicts and lists for fastjson, with sorted keys and no null fields."""
    if isinstance(body, msgspec.Struct):
        fields = ((written, getattr(body, name)) for written, name in _fields_of(type(body)))
        return {written: to_builtins(value) for written, value in fields if value is not None and value is not UNSET}
    if isinstance(body, dict):
        if any(isinstance(key, msgspec.Struct) for key in body):
            return fastjson.ObjectKeyMap((to_builtins(key), to_builtins(value)) for key, value in body.items())
        return {key: to_builtins(value) for key, value in body.items()}
    if isinstance(body, (list, tuple, set, frozenset)):
        return [to_builtins(item) for item in body]
    return body


def encode_body(body: Any) -> bytes:
    """Encode a body as compact fastjson."""
    return fastjson.dumps(to_builtins(body))


def encode_table(body: TopicConfigSerializeWrapper | SubscriptionGroupWrapper | RegisterBrokerBody) -> bytes:
    """Encode a table of topics like :func:`encode_body`, but 100 times faster: 10,000 topics take 1 ms.

    The fields are declared in alphabetical order, and only two may be null. The removed text never occurs inside a
    string, because quotes in strings are escaped by a backslash.
    """
    return _without_null_fields(msgspec.json.encode(body))


def encode_rows(rows: Mapping[str, TopicConfig | SubscriptionGroupConfig]) -> bytes:
    """Encode part of a table without the enclosing braces, so that the parts can be joined."""
    return _without_null_fields(msgspec.json.encode(rows))[1:-1]


def _without_null_fields(text: bytes) -> bytes:
    return text.replace(b'"attributes":null,', b"").replace(b'"stateVersion":null,', b"")


def encode_json(body: Any) -> bytes:
    """Encode a body as compact, strict JSON; the body must not have maps keyed by queues."""
    return msgspec.json.encode(to_builtins(body))


def decode_body(kind: type[T], data: bytes) -> T:
    """Decode a body of the given type, written in standard JSON or in fastjson's dialect.

    :raises BodyError: the text is malformed, or a field is missing or has the wrong type.
    """
    return _decode(kind, data, None)


def decode_request(kind: type[T], data: bytes, max_bytes: int, max_objects: int | None = None) -> T:
    """Decode a request body quickly, even if it is malformed.

    Strict JSON takes about 10 ms per MB. Looser JSON (null for a missing value, the position of an enumeration's
    constant) is accepted up to MAX_LOOSE_BODY_BYTES, and other dialects up to MAX_PARSED_BODY_BYTES.

    :param max_objects: maximum number of objects, of a body that may have many: each takes about 1 µs.
    :raises BodyError: see :func:`decode_body`; or the body has more than ``max_bytes`` or ``max_objects``.
    """
    if len(data) > max_bytes:
        raise BodyError(f"{kind.__name__}: {len(data)} bytes are too many; the maximum is {max_bytes}")
    if max_objects is not None and (objects := data.count(b"{")) > max_objects:
        raise BodyError(f"{kind.__name__}: {objects} objects are too many; the maximum is {max_objects}")
    try:
        body: T = _strict_decoder(kind).decode(data)  # type: ignore[arg-type]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if len(data) > MAX_LOOSE_BODY_BYTES:
            raise BodyError(f"{kind.__name__}: {error}") from error
    else:
        return body
    return _decode(kind, data, MAX_PARSED_BODY_BYTES)


@functools.cache
def _strict_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, strict=False)


def _decode(kind: type[T], data: bytes, max_parsed_bytes: int | None) -> T:
    if b"{{" in data and max_parsed_bytes is None and (body := _decode_pairs(kind, data)) is not None:
        return body
    try:
        parsed = fastjson.loads(data, max_parsed_bytes=max_parsed_bytes)
    except (fastjson.FastjsonError, TypeError) as error:
        raise BodyError(f"{kind.__name__}: {error}") from error
    except RecursionError as error:
        raise _nested_too_deeply(kind) from error
    if b"null" not in data:  # most bodies: nothing has to be removed from them
        with suppress(msgspec.ValidationError, TypeError, RecursionError):
            return msgspec.convert(parsed, kind, strict=False)
    return body_of(kind, parsed)


def body_of(kind: type[T], parsed: Any) -> T:
    """Convert parsed JSON to a body of the given type.

    :raises BodyError: a field is missing or has the wrong type.
    """
    try:
        return msgspec.convert(_without_nulls(parsed), kind, strict=False)
    except (msgspec.ValidationError, TypeError) as error:
        raise BodyError(f"{kind.__name__}: {error}") from error
    except RecursionError as error:
        raise _nested_too_deeply(kind) from error


def _nested_too_deeply(kind: type[Any]) -> BodyError:
    return BodyError(f"{kind.__name__}: the body is nested too deeply")


def _decode_pairs(kind: type[T], data: bytes) -> T | None:
    """Decode a body that has maps with queues as keys, or return ``None`` if only the full parser can decode it."""
    paired: Any = _paired(kind)  # type: ignore[arg-type]
    text = fastjson.with_pairs(data)
    if paired == kind or text is None:
        return None
    try:
        value = _strict_decoder(paired).decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    body: T = _joined(kind, value)
    return body


@functools.cache
def _paired(kind: Any) -> Any:
    """Return a type like ``kind`` in which a list of pairs replaces each map that has queues as keys."""
    arguments = tuple(map(_paired, get_args(kind)))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind is not MessageQueue:
        fields = msgspec.structs.fields(kind)
        types = [_paired(field.type) for field in fields]
        if types == [field.type for field in fields]:
            return kind
        made: Any = msgspec.field
        rows = [
            (one.name, of, made(name=one.encode_name, default=one.default, default_factory=one.default_factory))
            for one, of in zip(fields, types, strict=True)
        ]
        return msgspec.defstruct(kind.__name__, rows, kw_only=True)
    if get_origin(kind) is dict and arguments[0] is MessageQueue:
        return list[tuple[arguments]]  # type: ignore[valid-type]
    return get_origin(kind)[arguments] if get_origin(kind) in (dict, list) and arguments != get_args(kind) else kind


def _joined(kind: Any, value: Any) -> Any:
    """Convert a value with such lists of pairs (see ``_paired``) to the original type ``kind``."""
    if _paired(kind) == kind:
        return value
    if get_origin(kind) is dict:
        pairs = value if isinstance(value, list) else value.items()
        each = get_args(kind)[1]
        return dict(pairs) if _paired(each) == each else {key: _joined(each, item) for key, item in pairs}
    if get_origin(kind) is list:
        return [_joined(get_args(kind)[0], item) for item in value]
    fields = msgspec.structs.fields(kind)
    return kind(**{field.name: _joined(field.type, getattr(value, field.name)) for field in fields})


def _without_nulls(value: Any) -> Any:
    if isinstance(value, fastjson.ObjectKeyMap):
        return {msgspec.convert(key, MessageQueue, strict=False): _without_nulls(item) for key, item in value}
    if isinstance(value, dict):
        return {key: _constant(key, _without_nulls(item)) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _constant(key: str, value: Any) -> Any:
    """Return the name of an enumeration constant that is given by its position, as fastjson does."""
    constants = ENUMERATIONS.get(key)
    if constants is not None and isinstance(value, int) and 0 <= value < len(constants):
        return constants[value]
    return value
