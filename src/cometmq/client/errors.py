"""The errors of the client, each with ``code``, ``cause`` and the reader's next step (``next_step``)."""

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
"""The error code ``ClientErrorCode.REQUEST_TIMEOUT_EXCEPTION`` of RocketMQ's clients."""

NEXT_STEPS: Final = {
    ResponseCode.SYSTEM_ERROR: "check that server's log",
    ResponseCode.SYSTEM_BUSY: "send more slowly, or spread the topic over more brokers",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: (
        "check that the address is not a broker's instead of a nameserver's or vice versa, and the server's version"
    ),
    ResponseCode.MESSAGE_ILLEGAL: (
        "correct what this text names; the broker's limits are its maxMessageSize and timerMaxDelaySec"
    ),
    ResponseCode.SERVICE_NOT_AVAILABLE: "the broker is stopping, is a slave, or its disk is full; check it",
    ResponseCode.NO_PERMISSION: "check the permissions of topic, group and broker; system topics refuse clients",
    ResponseCode.TOPIC_NOT_EXIST: "create the topic, or check its name and the nameserver's address",
    ResponseCode.QUERY_NOT_FOUND: "check key and time range; the message may have expired",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "correct the subscription expression",
    ResponseCode.SUBSCRIPTION_NOT_EXIST: "members of one group must all have the same subscriptions",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "create the group, or set autoCreateSubscriptionGroup=true",
    ResponseCode.CONSUMER_NOT_ONLINE: "start a consumer of the group first",
}


class ClientError(CometMQError):
    """A call of the client failed. ``code`` is RocketMQ's response code, if one fits."""

    def __init__(self, message: str, *, code: int | None = None, next_step: str | None = None) -> None:
        super().__init__(message, next_step=next_step)
        self.code = code

    @property
    def cause(self) -> BaseException | None:
        """Return the underlying failure, if there is one."""
        return self.__cause__


class BrokerError(ClientError):
    """A server answered with the error ``code`` and the text ``remark``."""

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
    """An ACL refused the request: missing or wrong credentials, or no permission. A retry does not help."""

    def __init__(self, address: str, code: int, remark: str | None, doing: str) -> None:
        super().__init__(address, code, remark, doing)
        self.next_step = denial_step(code, remark)


def refusal(address: str, code: int, remark: str | None, doing: str) -> BrokerError:
    """Return the error for an answer with an error ``code``; ``doing`` names the request."""
    kind = BrokerError if denial_step(code, remark) is None else AccessDeniedError
    return kind(address, code, remark, doing)


class UnknownBrokerError(ClientError):
    """The address in an offset id belongs to no broker of the cluster; nothing was sent there."""

    def __init__(self, offset_msg_id: str) -> None:
        super().__init__(
            f"{offset_msg_id} leads to no broker of this cluster",
            next_step="if a client returned this id, name its topic; else check that the message's broker runs",
        )


class OtherTopicError(ClientError):
    """The message with an offset id does not belong to the given topic."""

    def __init__(self, msg_id: str, wanted: str, topic: str) -> None:
        super().__init__(
            f"message {msg_id} belongs to topic {topic}, not to {wanted}",
            code=int(ResponseCode.QUERY_NOT_FOUND),
            next_step="use its own topic, or no topic, which an offset id does not need",
        )
        self.topic = topic


class RouteNotFoundError(ClientError):
    """No nameserver knows a broker with the topic."""

    def __init__(self, topic: str, detail: str) -> None:
        super().__init__(
            f"no route for topic {topic}: {detail}",
            code=int(ResponseCode.TOPIC_NOT_EXIST),
            next_step="create the topic, or check the nameserver's address and that a broker is registered there",
        )
        self.topic = topic


class MasterNotFoundError(RouteNotFoundError):
    """The topic is known, but has no master at present. A restarting master will soon be available again."""

    def __init__(self, topic: str, detail: str) -> None:
        super().__init__(topic, detail)
        self.next_step = "check that the masters of its brokers run and are registered"


class RequestTimeoutError(ClientError):
    """No reply to a request arrived in time. The request may be stored and consumed later; its reply is ignored."""

    def __init__(self, topic: str, timeout_s: float) -> None:
        super().__init__(
            f"no reply to a request to topic {topic} within {timeout_s:g} s",
            code=REQUEST_TIMEOUT,
            next_step="check that a consumer of the topic replies, and its response time",
        )
        self.topic = topic


class IllegalMessageError(ClientError):
    """The message violates a rule of all brokers; it was not sent."""

    def __init__(self, message: str, next_step: str | None = None) -> None:
        super().__init__(message, code=int(ResponseCode.MESSAGE_ILLEGAL), next_step=next_step)


class SerializationError(IllegalMessageError):
    """The producer's serializer failed to turn a message's value into bytes; the message was not sent."""

    def __init__(self, topic: str, keys: Sequence[str], value: object, reason: str) -> None:
        key = keys if isinstance(keys, str) else " ".join(keys)
        super().__init__(
            f"the value for topic {topic} (key {key or 'none'}), of type {type(value).__name__}, cannot be serialized: "
            f"{reason}",
            "give the producer a serializer for this type, or the message a body of bytes",
        )
        self.topic = topic


class DeserializationError(ClientError):
    """The consumer's deserializer failed on the body of a message; ``place`` names the message."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(
            f"the body of {place} cannot be decoded: {reason}",
            next_step="`cometmq message get` shows the body; `cometmq dlq` has it after its last attempt",
        )
        self.place = place


class DelayNotSupportedError(ClientError):
    """A broker before RocketMQ 5 would ignore the message's arbitrary delay; the message was not sent."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"the broker at {address} supports delay levels only and would deliver the message immediately",
            code=int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
            next_step="set a delay_level, or use CometMQ or RocketMQ 5 brokers",
        )
        self.address = address


class SendFailedError(ClientError):
    """Every attempt to send failed. ``attempts`` lists the broker and failure of each; the last failure is the
    ``cause``.

    An attempt that timed out or lost its connection may have stored the message anyway.
    """

    def __init__(self, topic: str, attempts: tuple[tuple[str, CometMQError], ...], elapsed_s: float) -> None:
        tried = "; ".join(dict.fromkeys(f"{broker}: {error.message}" for broker, error in attempts))
        last = attempts[-1][1]
        super().__init__(
            f"sending to topic {topic} failed after {len(attempts)} attempts in {elapsed_s:.1f} s: {tried}",
            code=getattr(last, "code", None),
            next_step=last.next_step or "check that the brokers run and are reachable",
        )
        self.topic = topic
        self.attempts = attempts


class ClientStateError(ClientError):
    """The client's state does not allow the call: not started, closed, or already used in another way."""
