"""Encrypted values as text: ``enc:1:`` and, in base64url, the key's id (16 bytes), nonce (12), AES-256-GCM.

What is encrypted is the JSON of the value, so that a number comes back as a number.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable
from typing import Any, Final

from cometmq.spark.mask_keys import KEY_ID_BYTES, NONCE_BYTES, DataKey

_PREFIX: Final = "enc:1:"
_TOKEN: Final = re.compile(r"enc:1:([A-Za-z0-9_-]{59,})")
"""44 bytes at least: id, nonce, and the tag of an empty text."""

KeyOf = Callable[[bytes], bytes | None]


class ErasedError(Exception):
    """The key of a value is not there any more."""


def sealed(value: Any, key: DataKey) -> str:
    """The text that stands for a value."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(NONCE_BYTES)
    secret = json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()
    raw = key.key_id + nonce + AESGCM(key.key).encrypt(nonce, secret, _PREFIX.encode() + key.key_id)
    return _PREFIX + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def opened(text: str, key_of: KeyOf) -> Any:
    """The value that a whole text stands for.

    :raises ErasedError: its key is not there, so that nobody can tell.
    :raises ValueError: it stands for none, or was changed.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    match = _TOKEN.fullmatch(text)
    if match is None:
        raise ValueError("no encrypted value")
    try:
        raw = base64.urlsafe_b64decode(match[1] + "=" * (-len(match[1]) % 4))
    except binascii.Error as error:
        raise ValueError("no encrypted value") from error
    key_id, nonce, rest = raw[:KEY_ID_BYTES], raw[KEY_ID_BYTES : KEY_ID_BYTES + NONCE_BYTES], raw[28:]
    key = key_of(key_id)
    if key is None:
        raise ErasedError
    try:
        return json.loads(AESGCM(key).decrypt(nonce, rest, _PREFIX.encode() + key_id))
    except InvalidTag as error:
        raise ValueError("an encrypted value was changed") from error


def is_sealed(value: Any) -> bool:
    """Whether a value looks like an encrypted one."""
    match = _TOKEN.fullmatch(value) if isinstance(value, str) else None
    return match is not None and len(match[1]) % 4 != 1  # so long is no base64
