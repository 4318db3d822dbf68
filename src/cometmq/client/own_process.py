"""Clients belong to the process that made them: they hold sockets, tasks and threads."""

from __future__ import annotations

from typing import NoReturn


def refuse_copies(client: object, _protocol: object) -> NoReturn:
    """Stand for ``__reduce_ex__`` of a client, which ``pickle`` and ``copy`` call.

    :raises TypeError: always, as for sockets.
    """
    raise TypeError(
        f"a {type(client).__name__} has connections and cannot be copied or pickled: make one in each process, "
        "from the same arguments"
    )
