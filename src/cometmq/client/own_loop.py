"""Clients belong to the event loop on which they were started: on another one their calls would wait for ever."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

from cometmq.client.errors import ClientStateError

Method = TypeVar("Method", bound=Callable[..., Any])
_LOOKS_ITSELF: Final = "_looks_at_loop_itself"


class _OnLoop(Protocol):
    """The event loop of connections (``ClientInstance``)."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop; ``None`` before they are used and after they are closed."""


class OwnLoop:
    """A client whose public coroutine methods raise an error on any event loop but the one of its instance.

    Subclasses need not do anything for it.
    """

    instance: _OnLoop

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, method in list(vars(cls).items()):
            is_public = not name.startswith("_") or name in {"__aenter__", "__aexit__"}
            if is_public and inspect.iscoroutinefunction(method) and not hasattr(method, _LOOKS_ITSELF):
                setattr(cls, name, _on_own_loop(method))

    def _demand_loop(self) -> None:
        """Check the running event loop.

        :raises ClientStateError: it is not the client's.
        """
        own, running = self.instance.loop, asyncio._get_running_loop()
        if own is not None and own is not running:
            state = "is closed" if own.is_closed() else "runs elsewhere" if own.is_running() else "does not run now"
            raise ClientStateError(
                f"this {type(self).__name__} was started on the event loop {own!r}, which {state}; "
                f"it is used on {running!r}",
                next_step="make a client on each event loop, or call this one on its own loop, by "
                "asyncio.run_coroutine_threadsafe",
            )


def looks_itself(method: Method) -> Method:
    """Mark a method that is called so often that it looks at the event loop at a cheaper place."""
    setattr(method, _LOOKS_ITSELF, True)
    return method


def _on_own_loop(method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(method)
    async def call(self: OwnLoop, /, *args: Any, **kwargs: Any) -> Any:
        self._demand_loop()
        return await method(self, *args, **kwargs)

    return call
