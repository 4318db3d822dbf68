"""The check that a cluster is used on the event loop that started it."""

from __future__ import annotations

import asyncio

from cometmq.errors import CometMQError


class OtherLoopError(CometMQError):
    """A cluster was used on an event loop other than the one that started it."""


def demand_own_loop(loop: asyncio.AbstractEventLoop | None) -> None:
    """Check that the running loop is the one that started a cluster; ``None`` if nothing has started it.

    :raises OtherLoopError: it is another loop.
    """
    if loop is not None and loop is not asyncio.get_running_loop():
        raise OtherLoopError(
            "this cluster belongs to another event loop" + (", which is closed" if loop.is_closed() else ""),
            next_step="use and stop it on the loop that started it; with pytest-asyncio give fixtures "
            "the loop scope of the tests (asyncio_default_fixture_loop_scope)",
        )
