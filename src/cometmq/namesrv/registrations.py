"""Reads broker registrations; large ones are read in a thread.

The thread reads the topics one by one, so that the event loop can run in between; the route table adds them in slices.

While a registration is being read, the server reads nothing else from the connection, so a broker's requests remain in
order.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from cometmq.loop import TaskSet, in_rounds
from cometmq.namesrv.limits import MAX_WAITING_REGISTRATION_BYTES, REGISTRATION_BESIDE_BYTES
from cometmq.namesrv.routes import BrokerIdentity, QueuesOfBroker, queues_of
from cometmq.remoting.bodies import BodyError, DataVersion
from cometmq.remoting.register_body import decode_registration
from cometmq.remoting.server_connection import ServerConnection


@dataclasses.dataclass(frozen=True, slots=True)
class ReadRegistration:
    """The body of a registration, parsed for the route table."""

    data_version: DataVersion
    queues: QueuesOfBroker
    filter_servers: list[str]


def read_registration(identity: BrokerIdentity, body: bytes, *, compressed: bool) -> ReadRegistration:
    """Decode and check the body of a registration.

    :raises BodyError: the body is malformed.
    """
    registration = decode_registration(body, compressed=compressed)
    return ReadRegistration(
        registration.data_version, queues_of(identity, registration.topics), registration.filter_servers
    )


Work = Callable[[ReadRegistration | BodyError], Generator[None, None, None]]


class RegistrationReader:
    """The thread that reads large registrations, with its queue."""

    def __init__(self) -> None:
        self._thread: Final = ThreadPoolExecutor(1, "registrations")
        self._waiting_bytes = 0
        self._reading = TaskSet()

    def needs_thread(self, body: bytes, *, compressed: bool) -> bool:
        """Return whether a registration must be read in the thread."""
        return compressed or len(body) > REGISTRATION_BESIDE_BYTES

    def has_room(self, body: bytes) -> bool:
        """Return whether one more registration may wait for the thread."""
        return self._waiting_bytes + len(body) <= MAX_WAITING_REGISTRATION_BYTES

    def read(
        self, connection: ServerConnection, identity: BrokerIdentity, body: bytes, *, compressed: bool, then: Work
    ) -> None:
        """Read a registration in the thread, then run ``then`` in slices if the connection is still open."""
        self._waiting_bytes += len(body)
        connection.wait_for_work()

        async def work() -> None:
            loop = asyncio.get_running_loop()
            try:
                outcome = await loop.run_in_executor(self._thread, _outcome, identity, body, compressed)
                if not connection.closed:
                    await in_rounds(then(outcome))
            finally:
                self._waiting_bytes -= len(body)
                connection.work_is_done()

        self._reading.start(work())

    async def stop(self) -> None:
        """Stop reading registrations."""
        await self._reading.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)


def _outcome(identity: BrokerIdentity, body: bytes, compressed: bool) -> ReadRegistration | BodyError:
    try:
        return read_registration(identity, body, compressed=compressed)
    except BodyError as error:
        # A copy without the traceback, whose frames would keep the body in memory.
        return BodyError(error.message)
