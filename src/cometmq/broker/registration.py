"""Registration: telling every nameserver where this broker is and which topics it has (``BrokerOuterAPI``).

Each nameserver has a *link* of its own, so that a dead one delays nobody. A link registers

* at the start, and again every ``registerNameServerPeriod`` (10 to 60 s), with the whole table;
* as soon as topics change, with the changed topics only, if the nameserver knows the table as it was
  before the change, else with the whole table. (Apache sends parts without looking; a nameserver that
  missed one never learns of its topics, because the next whole table has a version that it knows.)
* within a second of a change that concerns all topics, with the whole table;
* as soon as the nameserver can be reached again after it could not, or after it closed the connection.

At the stop every nameserver is told that the broker leaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from cometmq.broker.live_config import LiveConfig
from cometmq.broker.topics import READ_WRITE, TopicConfigManager
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.message.hosts import split_addresses
from cometmq.message.names import MASTER_ID
from cometmq.message.record import body_crc
from cometmq.remoting.bodies import BodyError, DataVersion, KVTable, TopicConfig, decode_body
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.client_errors import RemotingError
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
)
from cometmq.remoting.register_body import Registration, encode_registration

_log = logging.getLogger(__name__)

MIN_PERIOD_S: Final = 10.0
MAX_PERIOD_S: Final = 60.0
FIRST_WAIT_S: Final = 1.0
"""How long a starting broker waits for its first registrations; slower ones go on in the background."""
KNOWN_WAIT_S: Final = 1.0
"""How long the answer to an administrator who made a topic waits for the nameservers to know it."""
LOOK_S: Final = 1.0
"""How often a link looks whether its nameserver is still connected, and its first pause after a failure."""
UNREGISTER_TIMEOUT_S: Final = 2.0


class BrokerRegistration:
    """Keeps a broker registered at all of its nameservers.

    :param address: ``host:port`` that clients reach the broker at.
    :param ha_address: ``host:port`` that slaves replicate from.
    """

    def __init__(
        self,
        live: LiveConfig,
        topics: TopicConfigManager,
        client: RemotingClient,
        *,
        address: str,
        ha_address: str,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._live = live
        self._topics = topics
        self._client = client
        self._clock = clock
        self.address = address
        self.ha_address = ha_address
        self._links: list[_Link] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.on_answer: Callable[[RegisterBrokerResponseHeader], None] = lambda _answer: None
        """Told each answer of a nameserver that is one: where a slave's master is."""

    async def start(self) -> None:
        """Register everywhere; returns when all have answered or failed, or after :data:`FIRST_WAIT_S`."""
        addresses = split_addresses(self._live.current.namesrv_addr)
        self._links = [_Link(self, address, is_first=index == 0) for index, address in enumerate(addresses)]
        self._topics.on_change.append(self._topic_changed)
        self._tasks = [asyncio.create_task(link.run(), name=f"register at {link.address}") for link in self._links]
        tried = [asyncio.ensure_future(link.tried.wait()) for link in self._links]
        if tried:
            limit = self._clock.call_later(FIRST_WAIT_S, _set_all, [link.tried for link in self._links])
            await asyncio.gather(*tried)
            limit.cancel()

    async def stop(self) -> None:
        """Leave every nameserver; one that does not answer is not waited for long."""
        if self._topic_changed in self._topics.on_change:
            self._topics.on_change.remove(self._topic_changed)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(link.unregister() for link in self._links))
        self._tasks.clear()
        self._links.clear()

    def when_known(self, then: Callable[[], None]) -> None:
        """Call ``then`` once every nameserver that can be reached knows the topics of this moment.

        One that does not answer is waited for :data:`KNOWN_WAIT_S` at most.
        """
        waiting = [link for link in self._links if not link.failing and link.known != self.version]
        if not waiting:
            then()
            return
        left = len(waiting)

        def told() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                limit.cancel()
                then()

        def late() -> None:
            nonlocal left
            left = 0
            then()

        limit = self._clock.call_later(KNOWN_WAIT_S, late)
        for link in waiting:
            link.tell.append((self.version.counter, told))

    def _topic_changed(self, topic: str) -> None:
        for link in self._links:
            link.changed.add(topic)
            link.wake.set()

    # --- what the links send ------------------------------------------------------------------
    @property
    def version(self) -> DataVersion:
        """The version of the table of topics now."""
        return self._topics.version

    def whole_table(self) -> dict[str, TopicConfig]:
        """All topics, as nameservers shall see them."""
        return {name: self._as_registered(topic) for name, topic in self._topics.table.items()}

    def part_of_table(self, names: Iterable[str]) -> dict[str, TopicConfig]:
        """Those of these topics that exist."""
        table = self._topics.table
        return {name: self._as_registered(table[name]) for name in names if name in table}

    def _as_registered(self, topic: TopicConfig) -> TopicConfig:
        """While the broker itself may not be read or written, its topics have its permission."""
        permission = self._live.current.broker_permission
        if permission & READ_WRITE == READ_WRITE:
            return topic
        return msgspec.structs.replace(topic, perm=permission)

    @property
    def period_s(self) -> float:
        """Seconds between two registrations."""
        return min(MAX_PERIOD_S, max(MIN_PERIOD_S, self._live.current.register_name_server_period / 1000))

    async def send(self, nameserver: str, topics: Mapping[str, TopicConfig], version: DataVersion) -> KVTable | None:
        """Register these topics at one nameserver; return its table of ordered topics, if it has one.

        :raises RemotingError: it could not be reached or did not answer.
        :raises RefusedError: it answered that it does not want this broker.
        """
        config = self._live.current
        registration = Registration(version, topics)
        if config.compressed_register:  # 5 µs a topic
            body = await asyncio.to_thread(encode_registration, registration, compressed=True)
        else:
            body = encode_registration(registration)
        header = RegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=self.address,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=self.ha_address,
            broker_id=config.broker_id,
            compressed=config.compressed_register,
            body_crc32=body_crc(body),
        )
        answer = await self._client.invoke(
            nameserver,
            RequestCode.REGISTER_BROKER,
            header,
            body,
            timeout_s=config.register_broker_timeout_mills / 1000,
        )
        if answer.code != ResponseCode.SUCCESS:
            raise RefusedError(f"code {answer.code}: {answer.remark}")
        self.on_answer(answer.header(RegisterBrokerResponseHeader))
        return decode_body(KVTable, answer.body) if answer.body else None

    async def send_unregister(self, nameserver: str) -> None:
        """Tell one nameserver that the broker leaves.

        :raises RemotingError: it could not be reached or did not answer.
        """
        config = self._live.current
        header = UnRegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=self.address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )
        await self._client.invoke(nameserver, RequestCode.UNREGISTER_BROKER, header, timeout_s=UNREGISTER_TIMEOUT_S)

    def take_order_config(self, table: Mapping[str, str]) -> None:
        """Mark the topics that a nameserver's ORDER_TOPIC_CONFIG names, and only those, as ordered."""
        if self._live.current.broker_id != MASTER_ID:
            return
        for name, topic in list(self._topics.table.items()):
            if topic.order != (name in table):
                self._topics.put(msgspec.structs.replace(topic, order=name in table))

    def is_connected(self, nameserver: str) -> bool:
        """Whether the connection to a nameserver is open."""
        return self._client.live(nameserver) is not None

    def wait(self, wake: asyncio.Event, seconds: float) -> Callable[[], None]:
        """Set ``wake`` after some seconds; return what calls that off."""
        return self._clock.call_later(seconds, wake.set).cancel

    def now(self) -> float:
        """Monotonic seconds."""
        return self._clock.monotonic()


class RefusedError(Exception):
    """A nameserver answered a registration with an error."""


class _Link:
    """The registration at one nameserver."""

    def __init__(self, owner: BrokerRegistration, address: str, *, is_first: bool) -> None:
        self.address = address
        self.known: DataVersion | None = None
        """The version of the table that the nameserver has whole; ``None`` when it may miss topics."""
        self.changed: set[str] = set()
        self.wake = asyncio.Event()
        self.tried = asyncio.Event()
        self._owner = owner
        self._is_first = is_first
        self.failing = False
        """Whether the last attempt failed."""
        self.tell: list[tuple[int, Callable[[], None]]] = []
        """Who waits for the nameserver to know the table of that counter; told as well when it cannot be reached."""

    async def run(self) -> None:
        """Register again and again, until cancelled."""
        owner = self._owner
        pause_s = LOOK_S
        due_at = owner.now()
        while True:
            if owner.now() >= due_at or self.known != owner.version or not owner.is_connected(self.address):
                if await self._register():
                    pause_s = LOOK_S
                    due_at = owner.now() + owner.period_s
                else:
                    pause_s = min(pause_s * 2, owner.period_s)
                self.tried.set()
            cancel = owner.wait(self.wake, pause_s)
            await self.wake.wait()
            cancel()
            self.wake.clear()

    async def _register(self) -> bool:
        owner = self._owner
        version = owner.version
        whole = not self.changed or self.known is None or not owner.is_connected(self.address)
        changed, self.changed = self.changed, set()
        topics = owner.whole_table() if whole else owner.part_of_table(changed)
        self.known = None
        try:
            order_config = await owner.send(self.address, topics, version)
        except (RemotingError, RefusedError, BodyError) as error:
            if not self.failing:
                _log.warning("cannot register at nameserver %s: %s; it will be tried again", self.address, error)
            self.failing = True
            self._tell(owner.version.counter)
            return False
        if self.failing:
            _log.info("registered at nameserver %s again", self.address)
        self.failing = False
        self.known = version
        self._tell(version.counter)
        if order_config is not None and self._is_first:
            owner.take_order_config(order_config.table)
        return True

    def _tell(self, counter: int) -> None:
        waiting, self.tell = self.tell, []
        for wanted, told in waiting:
            if wanted <= counter:
                told()
            else:
                self.tell.append((wanted, told))

    async def unregister(self) -> None:
        """Leave this nameserver, if it can be reached."""
        if not self._owner.is_connected(self.address):
            return
        try:
            await self._owner.send_unregister(self.address)
        except RemotingError as error:
            _log.warning("cannot unregister at nameserver %s: %s", self.address, error)


def _set_all(events: Iterable[asyncio.Event]) -> None:
    for event in events:
        event.set()
