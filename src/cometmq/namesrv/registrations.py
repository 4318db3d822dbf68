"""Registrations read beside the event loop: those of brokers with many topics take long.

While one is read its connection is not: what a broker asks stays in order, and one connection has one registration
in memory.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from cometmq.limits import MAX_WAITING_REGISTRATION_BYTES, REGISTRATION_BESIDE_BYTES
from cometmq.namesrv.routes import BrokerIdentity, QueuesOfBroker, queues_of
from cometmq.remoting.bodies import BodyError, DataVersion
from cometmq.remoting.register_body import decode_registration
from cometmq.remoting.server_connection import ServerConnection


@dataclasses.dataclass(frozen=True, slots=True)
class ReadRegistration:
    """A registration's body, ready for the route table."""

    data_version: DataVersion
    queues: QueuesOfBroker
    filter_servers: list[str]


def read_registration(identity: BrokerIdentity, body: bytes, *, compressed: bool) -> ReadRegistration:
    """Decode and check a registration.

    :raises BodyError: as ``decode_registration``.
    """
    registration = decode_registration(body, compressed=compressed)
    return ReadRegistration(
        registration.data_version, queues_of(identity, registration.topics), registration.filter_servers
    )


class RegistrationReader:
    """The thread that reads large registrations, and what waits for it."""

    def __init__(self) -> None:
        self._thread: Final = ThreadPoolExecutor(1, "registrations")
        self._waiting_bytes = 0
        self._reading: set[asyncio.Task[None]] = set()

    def takes(self, body: bytes) -> bool:
        """Whether a body is so large that it is read here."""
        return len(body) > REGISTRATION_BESIDE_BYTES

    def has_room(self, body: bytes) -> bool:
        """Whether one more may wait."""
        return self._waiting_bytes + len(body) <= MAX_WAITING_REGISTRATION_BYTES

    def read(
        self,
        connection: ServerConnection,
        identity: BrokerIdentity,
        body: bytes,
        *,
        compressed: bool,
        then: Callable[[ReadRegistration | BodyError], None],
    ) -> None:
        """Read a body and call ``then``, unless the connection has closed meanwhile; it goes on afterwards."""
        self._waiting_bytes += len(body)
        connection.wait_for_work()
        task = asyncio.get_running_loop().create_task(self._read(connection, identity, body, compressed, then))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _read(
        self,
        connection: ServerConnection,
        identity: BrokerIdentity,
        body: bytes,
        compressed: bool,
        then: Callable[[ReadRegistration | BodyError], None],
    ) -> None:
        try:
            outcome = await asyncio.get_running_loop().run_in_executor(
                self._thread, _outcome, identity, body, compressed
            )
            if not connection.closed:
                then(outcome)
        finally:
            self._waiting_bytes -= len(body)
            connection.work_is_done()

    async def stop(self) -> None:
        """Read no more."""
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)


def _outcome(identity: BrokerIdentity, body: bytes, compressed: bool) -> ReadRegistration | BodyError:
    try:
        return read_registration(identity, body, compressed=compressed)
    except BodyError as error:
        # Without its traceback, whose frames would hold the body until the garbage collector comes.
        return BodyError(error.message)
