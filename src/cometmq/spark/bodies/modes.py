"""What becomes of a body that cannot be decoded, by the names of Spark's ``from_json``."""

from __future__ import annotations

from typing import Final

from cometmq.spark.errors import OptionError

PERMISSIVE: Final = "PERMISSIVE"
FAILFAST: Final = "FAILFAST"


def is_permissive(mode: str) -> bool:
    """Whether such a body gives null, instead of failing the query.

    :raises OptionError: the mode is neither PERMISSIVE nor FAILFAST.
    """
    folded = mode.upper()
    if folded == "DROPMALFORMED":
        raise OptionError(
            "mode DROPMALFORMED: a column cannot drop rows", next_step="use PERMISSIVE, and .where('… IS NOT NULL')"
        )
    if folded not in (PERMISSIVE, FAILFAST):
        raise OptionError(f"mode is {PERMISSIVE} or {FAILFAST}, not {mode!r}")
    return folded == PERMISSIVE
