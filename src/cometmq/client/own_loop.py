"""Binds clients to the event loop on which they were started; calls on another loop would wait forever."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

from cometmq.client.errors import ClientStateError

Method = TypeVar("Method", bound=Callable[..., Any])
_CHECKS_ITSELF: Final = "_looks_at_loop_itself"


class _OnLoop(Protocol):
    """Connections that belong to an event loop (``ClientInstance``)."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the event loop, or ``None`` before the first use and after closing."""


class OwnLoop:
    """A client whose public coroutine methods raise an error on any event loop but its own.

    Subclasses need no code for this.
    """

    instance: _OnLoop

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, method in list(vars(cls).items()):
            is_public = not name.startswith("_") or name in {"__aenter__", "__aexit__"}
            if is_public and inspect.iscoroutinefunction(method) and not hasattr(method, _CHECKS_ITSELF):
                setattr(cls, name, _on_own_loop(method))

    def _check_loop(self) -> None:
        """Check that the running event loop is the client's.

        :raises ClientStateError: the running loop is not the client's event loop.
        """
        own, running = self.instance.loop, asyncio._get_running_loop()
        if own is not None and own is not running:
            state = "is closed" if own.is_closed() else "runs elsewhere" if own.is_running() else "is not running now"
            raise ClientStateError(
                f"this {type(self).__name__} was started on the event loop {own!r}, which {state}; "
                f"it was called on {running!r}",
                next_step="create a client on each event loop, or call this client on its own loop with "
                "asyncio.run_coroutine_threadsafe",
            )


def checks_loop_itself(method: Method) -> Method:
    """Mark a method that checks the event loop itself, because it is called very often."""
    setattr(method, _CHECKS_ITSELF, True)
    return method


def _on_own_loop(method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(method)
    async def call(self: OwnLoop, /, *args: Any, **kwargs: Any) -> Any:
        self._check_loop()
        return await method(self, *args, **kwargs)

    return call
