"""Decodes pieces of records as they arrive, in batches of about ``BATCH_BYTES``.

Theory of operation. A reader receives every piece into the same buffer, which stays in the processor's cache. The
compiled core decodes a piece there, so each byte of a body is read from the cache and written to memory once. It takes
only plain records: those that need no second look once the buffer has other bytes. The first record that is not plain
ends the batch. It and the following pieces are kept until they fill a batch, which :mod:`cometmq.spark.records.decode`
decodes; then the core is tried again. So a topic of compressed messages is read in as large batches as a plain one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from cometmq.core import CORE
from cometmq.spark.records.decode import OnBadBody, Records, decode, refuse_bad_body
from cometmq.spark.records.one_pass import OF_RECORDS, OnePass, Room
from cometmq.spark.records.slices import constant

BATCH_BYTES: Final = 8 * 1024 * 1024
"""Number of bytes of records in a batch. At this size, a batch's fixed cost is a tenth of its total time, and larger
batches are not faster.
"""


def decode_pieces(
    pieces: Iterable[memoryview],
    schema: Any,
    *,
    broker_name: str = "",
    on_bad_body: OnBadBody = refuse_bad_body,
    tags: frozenset[str] = frozenset(),
) -> Iterator[Any]:
    """Yield Arrow record batches with ``schema``, in order. A piece consists of complete records; its bytes may be
    overwritten when the next piece is requested.

    :param on_bad_body: see :func:`cometmq.spark.records.decode.decode`.
    :param tags: return only records with one of these tags, if there are any.
    """
    plain = _plain_batches(schema, broker_name) if not tags else None
    kept = bytearray()

    def decode_kept() -> Iterator[Any]:
        records = Records(memoryview(kept))
        chosen = records.tagged(tags) if tags else records
        return decode(chosen, schema, broker_name=broker_name, on_bad_body=on_bad_body)

    for piece in pieces:
        while plain is not None and not kept and len(piece):
            piece = piece[plain.take(piece) :]
            if len(piece) and not plain.size:
                break
            if len(piece) or plain.size >= BATCH_BYTES:
                yield from plain.finish()
        kept += piece
        if len(kept) >= BATCH_BYTES:
            yield from decode_kept()
            kept = bytearray()
    if plain is not None:
        yield from plain.finish()
    if kept:
        yield from decode_kept()


class _PlainBatches:
    """Gathers plain records for batches."""

    def __init__(self, schema: Any, broker_name: str) -> None:
        self._schema = schema
        self._broker_name = broker_name
        self._one_pass = OnePass(schema, only_plain=True)
        self._room: Room = None
        self.size = 0
        """Number of bytes of the records that were taken for the next batch."""

    def take(self, data: memoryview) -> int:
        """Take the plain records at the beginning of ``data``, as many as the batch has room for. Return their number
        of bytes.
        """
        if self._room is None and self._one_pass.has_bodies:
            self._room = np.empty(BATCH_BYTES, np.uint8)
        taken = self._one_pass.take(data, self._room)
        self.size += taken
        return taken

    def finish(self) -> Iterator[Any]:
        """Yield the batch of the records that were taken, if there are any."""
        if not self.size:
            return
        columns, count = self._one_pass.finish(self._room)
        self._room, self.size = None, 0
        columns["brokerName"] = constant(self._broker_name, count)
        columns["storedBody"] = pa.nulls(count, pa.binary())
        yield pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)


_OF_BATCHES: Final = OF_RECORDS | {"brokerName", "storedBody"}


def _plain_batches(schema: Any, broker_name: str) -> _PlainBatches | None:
    """Return a gatherer, or None if Python must look at all records for a column of ``schema``."""
    return None if CORE is None or not _OF_BATCHES.issuperset(schema.names) else _PlainBatches(schema, broker_name)
