"""Sends a message each 10 ms to the master that the nameserver names, and notes when each was answered.

Each send asks for the route anew and waits for no other send. So the first acknowledged send after a failure shows when
the brokers served again, whatever clients do with routes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from cometmq.remoting.bodies import BodyError, TopicRouteData, decode_body
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.errors import RemotingError
from cometmq.remoting.headers import GetRouteInfoRequestHeader, SendMessageRequestHeaderV2

EACH_S: Final = 0.01
TIMEOUT_S: Final = 3.0
"""Time limit of a send, as that of Java's producer."""
BODY: Final = b"x" * 128


@dataclass(frozen=True)
class Attempt:
    """One send; times are monotonic seconds."""

    begun: float
    ended: float
    master: str
    """Address of the broker; empty if there was no route."""
    is_acknowledged: bool
    """True for ``SEND_OK``, which no other answer stands for."""


class Prober:
    """The sends so far.

    :param topic: exists, and has a queue 0.
    """

    def __init__(self, namesrv: str, topic: str) -> None:
        self._namesrv = namesrv
        self._topic = topic
        self._attempts: list[Attempt] = []

    async def run(self, ends: asyncio.Event) -> None:
        """Send until the event is set."""
        async with RemotingClient() as client, asyncio.TaskGroup() as sends:
            next_at = time.monotonic()
            while not ends.is_set():
                sends.create_task(self._send(client))
                next_at = max(next_at + EACH_S, time.monotonic())
                await asyncio.sleep(next_at - time.monotonic())

    async def _send(self, client: RemotingClient) -> None:
        begun, master, is_acknowledged = time.monotonic(), "", False
        try:
            master = await self._master(client)
            if master:
                is_acknowledged = await self._ask(client, master)
        except (RemotingError, BodyError):
            pass
        self._attempts.append(Attempt(begun, time.monotonic(), master, is_acknowledged))

    async def _master(self, client: RemotingClient) -> str:
        header = GetRouteInfoRequestHeader(self._topic)
        answer = await client.invoke(self._namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, header, timeout_s=TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            return ""
        brokers = decode_body(TopicRouteData, answer.body).broker_datas
        return next((found for one in brokers if (found := one.broker_addrs.get(0))), "")

    async def _ask(self, client: RemotingClient, master: str) -> bool:
        header = SendMessageRequestHeaderV2("probe", self._topic, "TBW102", 4, 0, 0, time.time_ns() // 1_000_000, 0)
        answer = await client.invoke(master, RequestCode.SEND_MESSAGE_V2, header, BODY, timeout_s=TIMEOUT_S)
        return answer.code == ResponseCode.SUCCESS

    def seconds_to_first(self, since: float, old_master: str) -> float | None:
        """Seconds from a time to the first acknowledgement by another master of a send that was begun later."""
        ends = (
            one.ended
            for one in list(self._attempts)
            if one.is_acknowledged and one.begun >= since and one.master != old_master
        )
        return min((end - since for end in ends), default=None)

    def longest_gap_s(self, since: float) -> float:
        """The longest time between two acknowledgements, from the last one before a time on."""
        ends = sorted(one.ended for one in list(self._attempts) if one.is_acknowledged)
        return max((after - before for before, after in pairwise(ends) if after >= since), default=0.0)

    def failed(self, since: float) -> int:
        """The number of sends begun after a time that were not acknowledged."""
        return sum(not one.is_acknowledged for one in list(self._attempts) if one.begun >= since)


@contextmanager
def probing(namesrv: str, topic: str) -> Iterator[Prober]:
    """Send inside the block, in a thread of its own."""
    prober = Prober(namesrv, topic)
    loop, ends = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(prober.run(ends),))
    thread.start()
    try:
        yield prober
    finally:
        loop.call_soon_threadsafe(ends.set)
        thread.join()
        loop.close()
