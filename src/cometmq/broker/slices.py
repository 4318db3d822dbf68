"""Answers about thousands of queues, worked on over many turns of the loop: others are answered in between."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Iterable, Iterator
from typing import Any, TypeVar

from cometmq.limits import QUEUES_PER_SLICE
from cometmq.remoting.bodies import encode_body
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.processors import Request, Response
from cometmq.remoting.server_connection import ServerConnection

T = TypeVar("T")

_log = logging.getLogger(__name__)

Steps = Generator[None, None, Response]
"""Work that stops after each slice, and returns its answer."""


def run_in_slices(connection: ServerConnection, request: Request[Any], steps: Steps) -> Response | None:
    """Run the first slice now; the answer, if that was all, else ``None``: the others follow, one in each turn.

    Until then the connection is not read, so that one client has one such answer under way; none is given to one
    that has closed.
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
            _log.exception("request %d of %s failed", request.code, connection.remote_address)
            remark = f"{type(error).__name__}: {error}"
            connection.respond(request, Response(ResponseCode.SYSTEM_ERROR, remark=remark))
        else:
            loop.call_soon(loop.call_soon, step)  # what has arrived meanwhile is handled in between
            return
        connection.work_is_done()

    connection.wait_for_work()
    loop.call_soon(loop.call_soon, step)
    return None


def slices(items: Iterable[T]) -> Iterator[list[T]]:
    """The items in lists of as many queues as are looked at in one turn."""
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
    """What stands between the brackets of a map or list, to be put together with that of other slices."""
    return encode_body(body)[1:-1]
