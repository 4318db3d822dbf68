"""Answers about thousands of queues, made over many turns of the loop, so that others are answered in between."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Iterator
from typing import Any, TypeVar

from cometmq.broker.limits import QUEUES_PER_SLICE
from cometmq.remoting.bodies import encode_body
from cometmq.remoting.processors import Request, Response, failed
from cometmq.remoting.server_connection import ServerConnection

T = TypeVar("T")

Steps = Generator[None, None, Response]
"""Work that yields after each slice, and returns its answer."""


def run_in_slices(connection: ServerConnection, request: Request[Any], steps: Steps) -> Response | None:
    """Run the first slice now and return the answer if that was all, else ``None``: the others follow, one a turn.

    Until the answer the connection is not read, so that one client has one such answer under way. The work ends when
    the connection closes.
    """
    try:
        next(steps)
    except StopIteration as done:
        answer: Response = done.value
        return answer
    loop = asyncio.get_running_loop()

    def step() -> None:
        if connection.closed:
            steps.close()
            return
        try:
            next(steps)
        except StopIteration as done:
            connection.respond(request, done.value)
        except Exception as error:
            connection.respond(request, failed(connection.remote_address, request, error))
        else:
            loop.call_soon(loop.call_soon, step)  # what has arrived meanwhile is handled in between
            return
        connection.work_is_done()

    connection.wait_for_work()
    loop.call_soon(loop.call_soon, step)
    return None


def slices(items: Iterable[T]) -> Iterator[list[T]]:
    """The items in lists of as many queues as one turn looks at."""
    return batches(items, QUEUES_PER_SLICE)


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of a size."""
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def members(body: dict[Any, Any] | list[Any]) -> bytes:
    """The JSON between the brackets of a map or list, to be joined with that of other slices."""
    return encode_body(body)[1:-1]
