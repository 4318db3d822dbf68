"""The body of a SEND_BATCH_MESSAGE request, which contains several messages for one topic."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import msgspec

from cometmq.errors import CometMQError
from cometmq.java_values import decode_utf8
from cometmq.limits import MAX_BATCH_MESSAGES, MAX_PROPERTIES_BYTES
from cometmq.message.layout import BATCH_HEAD

_HEAD: Final = BATCH_HEAD.struct()
_SHORT: Final = struct.Struct(">h")
PIECE_OVERHEAD_BYTES: Final = _HEAD.size + _SHORT.size


class BatchError(CometMQError):
    """A batch body is malformed."""


class BatchPiece(msgspec.Struct, frozen=True, gc=False):
    """One message in a batch."""

    flag: int
    body: bytes
    properties_text: str


def encode_piece(flag: int, body: bytes, properties: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the encoded fields of one message of a batch: its head, body, properties length and properties."""
    size = len(properties)
    head = _HEAD.pack(PIECE_OVERHEAD_BYTES + len(body) + size, 0, 0, flag, len(body))
    return head, body, _SHORT.pack(size), properties


def encode_batch(pieces: Iterable[BatchPiece]) -> bytes:
    """Encode the body of a batch.

    :raises ValueError: a message has more than 32,767 bytes of properties.
    """
    out: list[bytes] = []
    for piece in pieces:
        properties = piece.properties_text.encode()
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise ValueError(f"the properties have {len(properties)} bytes; the maximum is {MAX_PROPERTIES_BYTES}")
        out += encode_piece(piece.flag, piece.body, properties)
    return b"".join(out)


def decode_batch(body: bytes, *, max_messages: int = MAX_BATCH_MESSAGES) -> list[BatchPiece]:
    """Decode a batch body. Bytes in properties that are not UTF-8 become U+FFFD, as in Java.

    :raises BatchError: the lengths do not add up, or there are too many messages.
    """
    pieces: list[BatchPiece] = []
    at, length = 0, len(body)
    head_at, short_at, head_bytes = _HEAD.unpack_from, _SHORT.unpack_from, _HEAD.size
    while at < length:
        if len(pieces) == max_messages:
            raise BatchError(f"the batch has more than {max_messages} messages")
        if length - at < PIECE_OVERHEAD_BYTES:
            raise BatchError(f"the remaining {length - at} bytes are too few for message {len(pieces)} of the batch")
        size, _, _, flag, body_length = head_at(body, at)
        body_at = at + head_bytes
        body_end = body_at + body_length
        end = at + size
        if body_length < 0 or body_end + 2 > end or end > length:
            raise BatchError(f"the lengths of message {len(pieces)} of the batch exceed the body")
        if body_end + 2 + short_at(body, body_end)[0] != end:
            raise BatchError(f"the lengths of message {len(pieces)} of the batch do not add up")
        pieces.append(BatchPiece(flag, body[body_at:body_end], decode_utf8(body[body_end + 2 : end])))
        at = end
    return pieces
