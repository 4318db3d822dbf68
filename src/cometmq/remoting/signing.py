"""Signatures of requests: who asks, proved by HMAC-SHA1 (``AclClientRPCHook``, ``AclUtils``, ``AclSigner``).

What is signed is the values of all header fields in the order of their names, joined, and after them the body. The
fields ``AccessKey`` and, where there is one, ``SecurityToken`` are among them; ``Signature`` carries the result in
base64. A signature proves nothing about the time: whoever overhears a request may send it again, so use TLS.
"""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from cometmq.remoting.codes import LAST_VERSION_WITHOUT_SIGNED_QUERY_FLAG
from cometmq.remoting.command import RemotingCommand

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
_BLOCK_BYTES: Final = 64
"""Of SHA-1; RFC 2104 fills keys up to it, and hashes longer ones."""
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""Not signed: 4.9 leaves it out when it checks, and 5.x does so for clients of versions up to 4.9.3."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """An account of an ACL (``SessionCredentials``). Neither ``repr`` nor any error shows its secrets.

    :param access_key: the account's name.
    :param secret_key: signs every request; it never leaves this process.
    :param security_token: what a token service gave along with a key for a limited time.
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
        """The header fields that say whose request it is."""
        if self.security_token is None:
            return {ACCESS_KEY: self.access_key}
        return {ACCESS_KEY: self.access_key, SECURITY_TOKEN: self.security_token}

    def signature(self, *parts: bytes) -> str:
        """The signature of what is signed, in as many parts as it is at hand."""
        inner, outer = _keyed(self.secret_key)
        digest = inner.copy()
        for part in parts:
            digest.update(part)
        signed = outer.copy()
        signed.update(digest.digest())
        return binascii.b2a_base64(signed.digest(), newline=False).decode()

    def sign(self, request: RemotingCommand) -> None:
        """Add the account and the signature to a request; nothing of it may change after that."""
        fields = request.ext_fields = {**request.ext_fields, **self.fields}
        fields.pop(SIGNATURE, None)
        if _UNIQUE_KEY_QUERY in fields:
            request.version = LAST_VERSION_WITHOUT_SIGNED_QUERY_FLAG
        fields[SIGNATURE] = self.signature(signed_text(fields), request.body)


def signed_text(fields: Mapping[str, str]) -> bytes:
    """What of a request's fields is signed; its body follows."""
    values = [fields[name] for name in sorted(fields) if name not in (SIGNATURE, _UNIQUE_KEY_QUERY)]
    return "".join(values).encode()


@lru_cache(maxsize=64)
def _keyed(secret_key: str) -> tuple[hashlib._Hash, hashlib._Hash]:
    """The two hashes of an HMAC with the key taken in: copies of them cost a third of a new HMAC."""
    key = secret_key.encode()
    key = (hashlib.sha1(key).digest() if len(key) > _BLOCK_BYTES else key).ljust(_BLOCK_BYTES, b"\0")
    return hashlib.sha1(bytes(byte ^ 0x36 for byte in key)), hashlib.sha1(bytes(byte ^ 0x5C for byte in key))
