"""The client's errors, each with a ``code``, a ``cause`` and a next step (``next_step``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cometmq.errors import CometMQError
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.errors import (
    ForkedError,
    RemotingClosedError,
    RemotingConnectError,
    RemotingError,
    RemotingSendError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
    denial_step,
)

__all__ = [
    "AccessDeniedError",
    "BrokerError",
    "ClientError",
    "ClientStateError",
    "DelayNotSupportedError",
    "DeserializationError",
    "ForkedError",
    "IllegalMessageError",
    "MasterNotFoundError",
    "RemotingClosedError",
    "RemotingConnectError",
    "RemotingError",
    "RemotingSendError",
    "RemotingTimeoutError",
    "RemotingTooMuchRequestError",
    "RequestTimeoutError",
    "RouteNotFoundError",
    "SendFailedError",
    "SerializationError",
    "UnknownBrokerError",
]

REQUEST_TIMEOUT: Final = 10_006
"""The error code ``ClientErrorCode.REQUEST_TIMEOUT_EXCEPTION`` in RocketMQ's clients."""

NEXT_STEPS: Final = {
    ResponseCode.SYSTEM_ERROR: "check the server's log",
    ResponseCode.SYSTEM_BUSY: "send more slowly, or distribute the topic over more brokers",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: (
        "check the server's version, and that a broker's address is not used for a nameserver or vice versa"
    ),
    ResponseCode.MESSAGE_ILLEGAL: ("correct the message; the broker's limits are maxMessageSize and timerMaxDelaySec"),
    ResponseCode.SERVICE_NOT_AVAILABLE: "check the broker: it is stopping, it is a slave, or its disk is full",
    ResponseCode.NO_PERMISSION: "check the permissions of topic, group and broker; clients cannot use system topics",
    ResponseCode.POLLING_FULL: (
        "raise the broker's maxPopPollingSize or popPollingSize, or divide the topics among several consumers"
    ),
    ResponseCode.TOPIC_NOT_EXIST: "create the topic, or check its name and the nameserver's address",
    ResponseCode.QUERY_NOT_FOUND: "check the key and the time range; the message may have expired",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "correct the subscription expression",
    ResponseCode.SUBSCRIPTION_NOT_EXIST: "make sure that all members of the group have the same subscriptions",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "create the group, or set autoCreateSubscriptionGroup=true",
    ResponseCode.CONSUMER_NOT_ONLINE: "start a consumer of the group first",
}


class ClientError(CometMQError):
    """A client call failed. ``code`` is RocketMQ's response code, if there is one."""

    def __init__(self, message: str, *, code: int | None = None, next_step: str | None = None) -> None:
        super().__init__(message, next_step=next_step)
        self.code = code

    @property
    def cause(self) -> BaseException | None:
        """Return the underlying error, if there is one."""
        return self.__cause__


class BrokerError(ClientError):
    """A server returned the error ``code`` and the text ``remark``."""

    not_stored = False
    """True if the broker says that the message is certainly not stored, so it can safely be sent again."""

    def __init__(self, address: str, code: int, remark: str | None, doing: str) -> None:
        try:
            known: ResponseCode | None = ResponseCode(code)
        except ValueError:
            known = None
        name = f"{code} {known.name}" if known is not None else str(code)
        super().__init__(
            f"{doing}: {address} answered {name}: {remark or 'no remark'}",
            code=code,
            next_step=NEXT_STEPS.get(known) if known is not None else None,
        )
        self.address = address
        self.remark = remark


class AccessDeniedError(BrokerError):
    """An ACL denied the request because of missing or wrong credentials or a missing permission."""

    def __init__(self, address: str, code: int, remark: str | None, doing: str) -> None:
        super().__init__(address, code, remark, doing)
        self.next_step = denial_step(code, remark)


def refusal(address: str, code: int, remark: str | None, doing: str) -> BrokerError:
    """Return the error for a response with an error ``code``."""
    kind = BrokerError if denial_step(code, remark) is None else AccessDeniedError
    return kind(address, code, remark, doing)


class UnknownBrokerError(ClientError):
    """The address in an offset id does not belong to any broker in the cluster. Nothing was sent."""

    def __init__(self, offset_msg_id: str) -> None:
        super().__init__(
            f"message id {offset_msg_id} does not belong to any broker in this cluster",
            next_step="if a client returned this id, specify its topic; otherwise check that the message's "
            "broker is running",
        )


class OtherTopicError(ClientError):
    """The message with an offset id does not belong to the given topic."""

    def __init__(self, msg_id: str, wanted: str, topic: str) -> None:
        super().__init__(
            f"message {msg_id} belongs to topic {topic}, not to {wanted}",
            code=int(ResponseCode.QUERY_NOT_FOUND),
            next_step="use the message's topic, or no topic, because an offset id does not need one",
        )
        self.topic = topic


class RouteNotFoundError(ClientError):
    """No nameserver knows a broker for the topic."""

    def __init__(self, topic: str, detail: str) -> None:
        super().__init__(
            f"no route for topic {topic}: {detail}",
            code=int(ResponseCode.TOPIC_NOT_EXIST),
            next_step="create the topic, or check the nameserver's address and that a broker is registered with it",
        )
        self.topic = topic


class MasterNotFoundError(RouteNotFoundError):
    """The topic exists but currently has no master. A restarting master will soon be available again."""

    def __init__(self, topic: str, detail: str) -> None:
        super().__init__(topic, detail)
        self.next_step = "check that the topic's masters are running and registered"


class RequestTimeoutError(ClientError):
    """No reply to a request arrived in time. The request may still be consumed, but its reply will be ignored."""

    def __init__(self, topic: str, timeout_s: float) -> None:
        super().__init__(
            f"no reply to a request to topic {topic} within {timeout_s:g} s",
            code=REQUEST_TIMEOUT,
            next_step="check that a consumer of the topic replies, and how long it takes",
        )
        self.topic = topic


class IllegalMessageError(ClientError):
    """The message violates a rule that all brokers enforce. It was not sent."""

    def __init__(self, message: str, next_step: str | None = None) -> None:
        super().__init__(message, code=int(ResponseCode.MESSAGE_ILLEGAL), next_step=next_step)


class SerializationError(IllegalMessageError):
    """The producer's serializer could not convert a message's value to bytes. The message was not sent."""

    def __init__(self, topic: str, keys: Sequence[str], value: object, reason: str) -> None:
        key = keys if isinstance(keys, str) else " ".join(keys)
        super().__init__(
            f"the value for topic {topic} (key {key or 'none'}), of type {type(value).__name__}, cannot be serialized: "
            f"{reason}",
            "create the producer with a serializer for this type, or set the message's body to bytes",
        )
        self.topic = topic


class DeserializationError(ClientError):
    """The consumer's deserializer failed on a message's body; ``place`` identifies the message."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(
            f"the body of {place} cannot be decoded: {reason}",
            next_step="use `cometmq message get` to see the body, or `cometmq dlq` after the last attempt",
        )
        self.place = place


class DelayNotSupportedError(ClientError):
    """A broker older than RocketMQ 5 would ignore the message's delay. The message was not sent."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"the broker at {address} supports only delay levels and would deliver the message immediately",
            code=int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
            next_step="set a delay_level, or use CometMQ or RocketMQ 5 brokers",
        )
        self.address = address


class SendFailedError(ClientError):
    """Every attempt to send failed. ``attempts`` lists each broker and failure; the last failure is the ``cause``.

    An attempt that timed out or lost its connection may have stored the message anyway.
    """

    def __init__(self, topic: str, attempts: tuple[tuple[str, CometMQError], ...], elapsed_s: float) -> None:
        tried = "; ".join(dict.fromkeys(f"{broker}: {error.message}" for broker, error in attempts))
        last = attempts[-1][1]
        super().__init__(
            f"sending to topic {topic} failed after {len(attempts)} attempts in {elapsed_s:.1f} s: {tried}",
            code=getattr(last, "code", None),
            next_step=last.next_step or "check that the brokers are running and reachable",
        )
        self.topic = topic
        self.attempts = attempts


class ClientStateError(ClientError):
    """The client's state does not allow the call: it is not started, closed, or used in another way."""
