"""Binds clients to the process that created them, because they hold sockets, tasks and threads."""

from __future__ import annotations

from typing import NoReturn


def refuse_copies(client: object, _protocol: object) -> NoReturn:
    """Raise an error because clients cannot be copied or pickled; used as ``__reduce_ex__``.

    :raises TypeError: always, since sockets cannot be copied or pickled either.
    """
    raise TypeError(
        f"a {type(client).__name__} has open connections and cannot be copied or pickled: create one in each process "
        "with the same arguments"
    )
