"""The consumer offsets that a master gives out (43), read row by row: all at once would hold the loop for seconds.

The body is ``{"offsetTable":{"topic@group":{0:5,1:7},…}}``, with numbers as keys, which no JSON decoder takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from cometmq.fastjson import quote_keys
from cometmq.limits import MAX_FRAME_BYTES
from cometmq.remoting.bodies import BodyError, ConsumerOffsetSerializeWrapper, decode_body

_HEAD: Final = re.compile(rb'\s*\{\s*(?:"dataVersion"\s*:\s*\{[^{}]*+\}\s*,\s*)?"offsetTable"\s*:\s*\{\s*')
_ROW: Final = re.compile(rb'("(?:[^"\\]++|\\.)*+")\s*:\s*(\{[^{}]*+\})\s*(,?)\s*')
_TAIL: Final = re.compile(rb"\}\s*\}\s*")
_offsets: Final = msgspec.json.Decoder(dict[int, int])
_name: Final = msgspec.json.Decoder(str)


def offset_rows(body: bytes) -> Iterator[tuple[str, dict[int, int]]]:
    """Yield ``topic@group`` and the offsets of its queues.

    A body of another form (one with more fields) is read at once, if it is no larger than a frame of Apache's.

    :raises BodyError: it cannot be read; what was yielded until then is sound.
    """
    head = _HEAD.match(body)
    if head is None:
        if len(body) > MAX_FRAME_BYTES:
            raise BodyError(f"consumer offsets of {len(body)} bytes do not begin with their offsetTable")
        yield from decode_body(ConsumerOffsetSerializeWrapper, body).offset_table.items()
        return
    at = head.end()
    is_first = is_more = True
    while is_more and (row := _ROW.match(body, at)) is not None:
        try:
            yield _name.decode(row[1]), _offsets.decode(quote_keys(row[2]))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BodyError(f"the consumer offsets cannot be read at byte {at}: {error}") from error
        at = row.end()
        is_first, is_more = False, bool(row[3])
    if (is_more and not is_first) or _TAIL.fullmatch(body, at) is None:
        raise BodyError(f"the consumer offsets cannot be read at byte {at}: {body[at : at + 40]!r}")
