"""Errors that the endpoint returns, with Apache's codes and messages."""

from __future__ import annotations

from typing import Final

from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.remoting.codes import ResponseCode


class ProxyError(Exception):
    """A request is rejected. The response's ``status`` contains the code and the message."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def status(self) -> v2.Status:
        """The status for the response."""
        return v2.Status(code=self.code, message=str(self))


class BrokerAwayError(ProxyError):
    """A broker cannot be reached, so it has certainly not executed the request."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.INTERNAL_SERVER_ERROR, message)


OK: Final = v2.Status(code=Code.OK, message="OK")

_CODES: Final[dict[int, Code]] = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    ResponseCode.FLOW_CONTROL: Code.TOO_MANY_REQUESTS,
    ResponseCode.LMQ_QUOTA_EXCEEDED: Code.LITE_TOPIC_QUOTA_EXCEEDED,
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}


def code_of(response_code: int) -> Code:
    """Return the gRPC code for a broker's response code (``ResponseBuilder``)."""
    return _CODES.get(response_code, Code.INTERNAL_SERVER_ERROR)


def refused(response_code: int, remark: str | None) -> ProxyError:
    """Return the error for a request that a broker rejected."""
    return ProxyError(code_of(response_code), remark or f"the broker responded with code {response_code}")
