"""Changes many topics, several in parallel, and stops at the first failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from cometmq.client.admin.accounts import PartlyChangedError
from cometmq.client.admin.several import ASKED_AT_ONCE
from cometmq.errors import CometMQError
from cometmq.quantity import quantity


async def each(
    names: Sequence[str], change: Callable[[str], Awaitable[None]], done_word: str, advance: Callable[[int], None]
) -> None:
    """Change many topics, up to :data:`~cometmq.client.admin.several.ASKED_AT_ONCE` of them in parallel.

    :param done_word: past participle for the error, such as ``deleted``.
    :param advance: called with 1 after each change.
    :raises PartlyChangedError: a change failed, but others succeeded.
    :raises CometMQError: the first change failed.
    """
    waiting = iter(names)
    failures: list[CometMQError] = []
    done = 0

    async def work() -> None:
        nonlocal done
        for name in waiting:
            if failures:
                return
            try:
                await change(name)
            except CometMQError as error:
                failures.append(error)
            else:
                done += 1
                advance(1)

    await asyncio.gather(*(work() for _ in range(min(ASKED_AT_ONCE, len(names)))))
    if failures and not done:
        raise failures[0]
    if failures:
        raise PartlyChangedError(
            f"{done:,} of {quantity(len(names), 'topic')} were {done_word}: {failures[0].message}",
            next_step="repeat the command to continue with the remaining topics",
        ) from failures[0]
