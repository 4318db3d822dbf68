"""Starts services in order and stops them in the opposite order, with a clear word when a port is taken."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from cometmq.errors import CometMQError


class Service(Protocol):
    """A nameserver or a broker."""

    async def start(self) -> None:
        """Listen and serve."""

    async def stop(self) -> None:
        """Stop cleanly."""


class PortInUseError(CometMQError):
    """Something else listens on the port that a service was told to use."""


@asynccontextmanager
async def stopped_at_the_end(service: Service, *, what: str, port: int, option: str = "-p") -> AsyncIterator[None]:
    """Start a service for the length of the block.

    :raises PortInUseError: when its port is taken, naming the port and the option that changes it.
    """
    try:
        await service.start()
    except OSError as error:
        await service.stop()
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"port {port} for the {what} is in use",
                next_step=f"stop the program that listens there, which ss -ltnp | grep {port} names, "
                f"or choose another port with {option}",
            ) from None
        raise
    try:
        yield
    finally:
        await service.stop()
