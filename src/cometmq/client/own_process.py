"""Binds clients to the process that created them: they hold sockets, tasks and threads."""

from __future__ import annotations

from typing import NoReturn


def refuse_copies(client: object, _protocol: object) -> NoReturn:
    """Replace a client's ``__reduce_ex__``, which ``pickle`` and ``copy`` call.

    :raises TypeError: always, since sockets cannot be copied or pickled either.
    """
    raise TypeError(
        f"a {type(client).__name__} has connections and cannot be copied or pickled: create one in each process "
        "with the same arguments"
    )
