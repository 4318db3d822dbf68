"""Runs *machines*: generators that contain a protocol without I/O. They yield requests and receive the responses.

A machine chooses requests and servers, and reacts to answers; a failure is raised inside it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

Request = TypeVar("Request")
Answer = TypeVar("Answer")
T = TypeVar("T")


def run(machine: Generator[Request, Answer, T], send: Callable[[Request], Answer]) -> T:
    """Run a machine until it ends; ``send`` sends a request and waits for the response."""
    try:
        request = next(machine)
        while True:
            try:
                answer = send(request)
            except Exception as error:
                request = machine.throw(error)
            else:
                request = machine.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


async def run_async(machine: Generator[Request, Answer, T], send: Callable[[Request], Awaitable[Answer]]) -> T:
    """Run a machine on an event loop; :func:`run` needs none."""
    try:
        request = next(machine)
        while True:
            try:
                answer = await send(request)
            except Exception as error:
                request = machine.throw(error)
            else:
                request = machine.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
