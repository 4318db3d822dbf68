"""Topics that are asked for by name and are not there are told in one way, with the names that come near them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cometmq.options import nearest
from cometmq.spark.errors import OptionError


def demand_present(
    wanted: Iterable[str],
    there: Iterable[str],
    told: str,
    *,
    next_step: str,
    known: Callable[[], Iterable[str]] | None = None,
) -> None:
    """Demand that all topics asked for are there.

    :param told: how the sentence begins that ends with the names of those that are not.
    :param next_step: for the reader, where no name comes near.
    :param known: gives all names there are, where ``there`` has only some of them; called for the error only.
    :raises OptionError: some are not.
    """
    present = set(there)
    absent = sorted(set(wanted) - present)
    if not absent:
        return
    names = present if known is None else set(known())
    near = dict.fromkeys(name for topic in absent if (name := nearest(topic, names)) is not None)
    raise OptionError(
        f"{told} {', '.join(absent)}", next_step=f"did you mean {', '.join(near)}?" if near else next_step
    )
