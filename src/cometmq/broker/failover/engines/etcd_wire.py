"""The JSON of etcd's gateway: requests and answers. Keys and values are in base64, and all numbers are strings."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any, TypeVar

import msgspec

from cometmq.broker.failover.engines.interface import EngineError

T = TypeVar("T")


class Header(msgspec.Struct, frozen=True):
    """The head of each answer."""

    cluster_id: str = "0"
    revision: str = "0"


class KeyValue(msgspec.Struct, frozen=True):
    """A key with its value and versions."""

    key: str
    value: str = ""
    mod_revision: str = "0"
    lease: str = "0"


class RangeResponse(msgspec.Struct, frozen=True):
    """The keys of a range."""

    kvs: list[KeyValue] = []
    header: Header = Header()


class Response(msgspec.Struct, frozen=True):
    """The answer to one operation of a transaction."""

    response_range: RangeResponse | None = None


class TxnResponse(msgspec.Struct, frozen=True):
    """The answer to a transaction; ``succeeded`` is left out if it is false."""

    header: Header
    succeeded: bool = False
    responses: list[Response] = []


class LeaseResponse(msgspec.Struct, frozen=True):
    """The answer to a grant."""

    ID: str
    header: Header = Header()


class KeepAliveResult(msgspec.Struct, frozen=True):
    """The rest of a lease in seconds; "0", or left out, if it has ended."""

    TTL: str = "0"


class KeepAliveResponse(msgspec.Struct, frozen=True):
    """The answer to a renewal."""

    result: KeepAliveResult = KeepAliveResult()


class TokenResponse(msgspec.Struct, frozen=True):
    """The answer to a sign-in."""

    token: str


class ErrorResponse(msgspec.Struct, frozen=True):
    """An error: versions differ in the names of the fields."""

    error: Any = ""
    message: str = ""
    code: int = 0

    @property
    def text(self) -> str:
        """The text of the error."""
        if self.message:
            return self.message
        return str(self.error.get("message", "")) if isinstance(self.error, dict) else str(self.error)


def b64(data: str | bytes) -> str:
    """Return base64."""
    return b64encode(data.encode() if isinstance(data, str) else data).decode()


def decode(data: bytes, kind: type[T], endpoint: object) -> T:
    """Return an answer.

    :raises EngineError: it is not valid.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EngineError(
            f"{endpoint} has sent an invalid answer: {error}", next_step="check that the endpoint is that of etcd"
        ) from error


def value_of(pair: KeyValue) -> bytes:
    """Return the value of a key.

    :raises EngineError: it is not base64.
    """
    return unb64(pair.value)


def unb64(text: str) -> bytes:
    """Return the bytes of a base64 text.

    :raises EngineError: it is not base64.
    """
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise EngineError("etcd has sent an invalid key or value", next_step="check etcd's version") from error


def put(key: str, value: bytes, lease: str = "0") -> dict[str, Any]:
    """Return the operation that writes a key."""
    return {"request_put": {"key": b64(key), "value": b64(value), "lease": lease}}


def get(key: str) -> dict[str, Any]:
    """Return the operation that reads a key."""
    return {"request_range": {"key": b64(key)}}


def delete(key: str) -> dict[str, Any]:
    """Return the operation that removes a key."""
    return {"request_delete_range": {"key": b64(key)}}


def is_at(key: str, version: str) -> dict[str, Any]:
    """Return the comparison that a key still has a version; "" if it must not exist."""
    if version:
        return {"key": b64(key), "target": "MOD", "result": "EQUAL", "mod_revision": version}
    return {"key": b64(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
