"""Formats stored hosts as ``ip:port``, each distinct host only once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cometmq.message.hosts import decode_host, format_address
from cometmq.spark.records.slices import constant


def host_text(stored: bytes) -> str:
    """Format one stored host."""
    return format_address(*decode_host(stored))


def host_texts(raw: npt.NDArray[np.uint64]) -> Any:
    """Format IPv4 hosts, whose stored bytes are numbers in native order: only equality matters."""
    if (raw == raw[:1]).all():
        return constant(host_text(raw[:1].tobytes()) if len(raw) else "", len(raw))
    found = pa.array(np.ascontiguousarray(raw)).dictionary_encode()
    names = [host_text(host.tobytes()) for host in found.dictionary.to_numpy()]
    return pa.array(names, pa.string()).take(found.indices)
