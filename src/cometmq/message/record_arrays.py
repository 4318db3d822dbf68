"""NumPy types for the layouts, and field offsets for many records at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cometmq.message.layout import HOSTS_V6, Layout

_KINDS: Final = {"i": ">i4", "q": ">i8"}
_SHIFT: Final = (HOSTS_V6 & -HOSTS_V6).bit_length() - 1
"""The number of zero bits below the two host bits in a sysFlag."""


def dtype_of(layout: Layout, *names: str) -> np.dtype[np.void]:
    """Return the NumPy type for the given fields (by default all) at their offsets in the layout; hosts are bytes."""
    chosen = names or tuple(layout.formats)
    return np.dtype(
        {
            "names": chosen,
            "formats": [_KINDS.get(layout.formats[name]) or f"V{layout.formats[name][:-1]}" for name in chosen],
            "offsets": [layout.offsets[name] for name in chosen],
            "itemsize": layout.size,
        }
    )


def offsets_of(offsets: Mapping[int, int], sys_flags: npt.NDArray[Any]) -> npt.NDArray[np.int_]:
    """Return a field's offset in each record.

    :param offsets: the field's offsets by the bits :data:`~cometmq.message.layout.HOSTS_V6` of the sysFlag.
    """
    table = np.array([offsets[number << _SHIFT] for number in range(len(offsets))], np.int64)
    found: npt.NDArray[np.int_] = table[(sys_flags & HOSTS_V6) >> _SHIFT]
    return found
