"""HMAC-SHA1 signatures for requests (``AclClientRPCHook``, ``AclUtils``, ``AclSigner``).

The signed text consists of the values of all header fields in the order of their names, followed by the body. The
fields include ``AccessKey`` and, if there is one, ``SecurityToken``; ``Signature`` contains the result in base64.

This signature does not cover the time, so an eavesdropper can send the request again. CometMQ's clients therefore also
sign a stamp, the field ``AccessAt``, with which CometMQ's servers detect repeated requests
(:mod:`cometmq.auth.freshness`); for other servers it is just another signed field.
"""

from __future__ import annotations

import binascii
import hashlib
import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hmac import compare_digest
from operator import itemgetter
from typing import Final, NamedTuple

from cometmq.clock import SYSTEM_CLOCK
from cometmq.core import CORE
from cometmq.remoting.codes import LAST_VERSION_WITHOUT_SIGNED_QUERY_FLAG
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import HeaderError

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
STAMP: Final = "AccessAt"
"""The header field that contains a request's stamp.

Its name sorts before all other names, and its value has a fixed length. So the signed text starts with the stamp, and a
signature is valid for only one stamp.
"""
_TIME_DIGITS: Final = 13
_SIGNER_DIGITS: Final = 16
_NUMBER_DIGITS: Final = 12
_BLOCK_BYTES: Final = 64
"""Block size of SHA-1. RFC 2104 pads shorter keys and hashes longer ones."""
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""A field that some servers leave out when they check signatures: 4.9 always, and 5.x for clients up to 4.9.3."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials for an ACL account (``SessionCredentials``). Neither ``repr`` nor error messages show the
    secrets.

    :param access_key: the account's name.
    :param secret_key: the key that signs every request; it never leaves this process.
    :param security_token: the token that a token service issued together with a temporary key.
    :raises ValueError: the access key or the secret key is empty.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.access_key or not self.secret_key:
            raise ValueError("credentials need an access key and a secret key")

    @property
    def fields(self) -> dict[str, str]:
        """Return the header fields that identify the account."""
        if self.security_token is None:
            return {ACCESS_KEY: self.access_key}
        return {ACCESS_KEY: self.access_key, SECURITY_TOKEN: self.security_token}

    def signature(self, *parts: bytes | memoryview) -> str:
        """Return the signature for a text that consists of the given parts."""
        return _signer(self.secret_key).sign(b"".join(parts)).decode()

    def sign(self, request: RemotingCommand, stamp: str | None = None) -> None:
        """Add the account and the signature to a request, which must not change afterwards.

        :raises HeaderError: a text of the request contains a lone surrogate.
        """
        fields = request.ext_fields = {**request.ext_fields, **self.fields}
        if stamp is not None:
            fields[STAMP] = stamp
        fields.pop(SIGNATURE, None)
        if _UNIQUE_KEY_QUERY in fields:
            request.version = LAST_VERSION_WITHOUT_SIGNED_QUERY_FLAG
        try:
            fields[SIGNATURE] = self.signature(signed_text(fields), request.body)
        except UnicodeEncodeError as error:
            raise HeaderError.of_text(error) from error


class Stamp(NamedTuple):
    """The time of a signature, its signer, and the signer's counter value."""

    at_ms: int
    signer: str
    number: int

    @classmethod
    def parse(cls, text: str) -> Stamp | None:
        """Parse a request's stamp; return ``None`` if it is malformed."""
        if len(text) != _TIME_DIGITS + _SIGNER_DIGITS + _NUMBER_DIGITS or not text.isascii() or not text.isalnum():
            return None
        signer_end = _TIME_DIGITS + _SIGNER_DIGITS
        try:
            return cls(int(text[:_TIME_DIGITS]), text[_TIME_DIGITS:signer_end], int(text[signer_end:], 16))
        except ValueError:
            return None


class Stamps:
    """Creates stamps in the order in which requests are signed.

    :param now_ms: returns the time.
    """

    __slots__ = ("_now_ms", "_numbers", "_signer")

    def __init__(self, now_ms: Callable[[], int] = SYSTEM_CLOCK.now_ms) -> None:
        self._now_ms = now_ms
        self._signer = os.urandom(_SIGNER_DIGITS // 2).hex()
        self._numbers = itertools.count()

    def next(self) -> str:
        """Return the stamp for the next request."""
        return f"{self._now_ms():0{_TIME_DIGITS}d}{self._signer}{next(self._numbers):0{_NUMBER_DIGITS}x}"


class Signer:
    """Signs and verifies with a secret key without storing the key itself."""

    __slots__ = ("_inner", "_outer", "core_key")

    def __init__(self, secret_key: str) -> None:
        key = secret_key.encode()
        key = (hashlib.sha1(key).digest() if len(key) > _BLOCK_BYTES else key).ljust(_BLOCK_BYTES, b"\0")
        # The state of an HMAC's two hashes after the key: copying them costs a third of a new HMAC.
        self._inner = hashlib.sha1(bytes(byte ^ 0x36 for byte in key))
        self._outer = hashlib.sha1(bytes(byte ^ 0x5C for byte in key))
        self.core_key: Final = None if CORE is None else CORE.Key(secret_key)
        """The compiled core's signer for the same key."""

    def sign(self, text: bytes) -> bytes:
        """Return a text's signature in base64."""
        digest = self._inner.copy()
        digest.update(text)
        signed = self._outer.copy()
        signed.update(digest.digest())
        return binascii.b2a_base64(signed.digest(), newline=False)

    def accepts(self, fields: Mapping[str, str], body: bytes) -> bool:
        """Check a request's signature in constant time.

        The client's version determines whether ``_UNIQUE_KEY_QUERY`` is signed.
        """
        try:
            signature = fields.get(SIGNATURE, "").encode()
            # The text is joined into one piece: a second update of the hash costs more than the copy.
            if compare_digest(self.sign(signed_text(fields) + body), signature):
                return True
            if _UNIQUE_KEY_QUERY not in fields:
                return False
            return compare_digest(self.sign(_all_values(fields) + body), signature)
        except UnicodeEncodeError:
            return False


def signed_text(fields: Mapping[str, str]) -> bytes:
    """Return the part of the signed text that precedes the body, made from the header fields."""
    names = tuple(fields)
    values = _values.get(names)
    if values is None:
        order = [name for name in sorted(names) if name not in (SIGNATURE, _UNIQUE_KEY_QUERY)]
        if len(order) < _FEWEST_FIELDS or len(_values) == _MAX_ORDERS or sum(map(len, names)) > _MAX_ORDER_CHARS:
            return "".join([fields[name] for name in order]).encode()
        values = _values[names] = itemgetter(*order)
    return "".join(values(fields)).encode()


def _all_values(fields: Mapping[str, str]) -> bytes:
    return "".join(fields[name] for name in sorted(fields) if name != SIGNATURE).encode()


_values: Final[dict[tuple[str, ...], Callable[[Mapping[str, str]], tuple[str, ...]]]] = {}
"""A cache of functions that return the signed values in signing order, keyed by the received field names."""
_FEWEST_FIELDS: Final = 2
_MAX_ORDERS: Final = 256
_MAX_ORDER_CHARS: Final = 1024


@lru_cache(maxsize=64)
def _signer(secret_key: str) -> Signer:
    return Signer(secret_key)
