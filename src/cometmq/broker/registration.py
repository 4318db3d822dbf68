"""Registers the broker's addresses and topics with every nameserver (``BrokerOuterAPI``).

Each nameserver has its own *link*, so that a dead nameserver does not delay the others. A link registers

* at the start, with the complete table;
* again every ``registerNameServerPeriod`` (10 to 60 s): it asks whether the nameserver knows this version of the table
  (QUERY_DATA_VERSION, 322) and has this broker in its routes; if not, it sends the complete table. A slave registers
  without topics, and receives the address of its master;
* as soon as topics change, with only the changed topics if the nameserver knows the previous version of the table, else
  with the complete table. (Apache sends parts without this check; a nameserver that missed a part never receives its
  topics, because it already knows the version of the next complete table.)
* within a second after a change that concerns all topics, with the complete table;
* as soon as the nameserver answers again after a failure, or after it closed the connection.

When the broker stops, it leaves every nameserver.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Protocol

import msgspec

from cometmq.broker.config import BrokerConfig, LiveConfig
from cometmq.broker.limits import TABLE_ROWS_PER_SLICE
from cometmq.broker.tables.topics import READ_WRITE, TopicConfigManager
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.limits import COMPRESSED_REGISTRATION_BYTES, MAX_FRAME_BYTES, MAX_HEADER_BYTES
from cometmq.message.hosts import split_addresses
from cometmq.message.listeners import EVERY_CLIENT, format_registered
from cometmq.message.names import MASTER_ID, ORDER_TOPIC_CONFIG
from cometmq.message.record import body_crc
from cometmq.remoting.admin_headers import (
    GetKVListByNamespaceRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
)
from cometmq.remoting.bodies import (
    BodyError,
    DataVersion,
    KVTable,
    TopicConfig,
    TopicRouteData,
    decode_body,
    encode_body,
)
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.errors import RemotingError
from cometmq.remoting.headers import GetRouteInfoRequestHeader
from cometmq.remoting.register_body import Registration, encode_registration
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

MIN_PERIOD_S: Final = 10.0
MAX_PERIOD_S: Final = 60.0
FIRST_WAIT_S: Final = 1.0
"""Maximum time in seconds that a starting broker waits for its first registrations.

Slower registrations continue in the background.
"""
KNOWN_WAIT_S: Final = 1.0
"""Maximum time in seconds that a request that creates a topic waits for the nameservers."""
LOOK_S: Final = 1.0
"""Pause in seconds between two checks of a nameserver connection, and the first pause after a failure."""
UNREGISTER_TIMEOUT_S: Final = 2.0
WARN_S: Final = 60.0
"""Pause in seconds between two warnings that a nameserver does not accept this broker."""


class RegisteredMember(Protocol):
    """The member of a set that a broker is."""

    @property
    def registered_epoch(self) -> int:
        """Return the epoch of the broker's role, which is its ``stateVersion``.

        A master that has lost its office keeps the old one: with the new one, it would replace the new master.
        """

    def epoch_seen(self, epoch: int) -> None:
        """Take note of the higher epoch of another master."""


class BrokerRegistration:
    """Keeps a broker registered with all of its nameservers.

    :param addresses: the ``host:port`` of this broker for clients, by listener; the empty name is for all other
        clients.
    :param member: the member of a set that this broker is; a nameserver ignores the master of an earlier epoch.
    """

    def __init__(
        self,
        live: LiveConfig,
        topics: TopicConfigManager,
        client: RemotingClient,
        on_answer: Callable[[RegisterBrokerResponseHeader], None] | None = None,
        *,
        addresses: Mapping[str, str],
        member: RegisteredMember | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._live = live
        self._member = member
        self._address = addresses[EVERY_CLIENT]
        self._listener_addresses = {name: address for name, address in addresses.items() if name != EVERY_CLIENT}
        self._ha_address = ""
        self._links: list[_Link] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.topics: Final = topics
        self.client: Final = client
        self.clock: Final = clock
        self.on_answer: Final = on_answer
        """Called with each successful response; a slave's response contains its master's address."""
        self.rivals: dict[str, str] = {}
        """The address of another live broker with the same name and ID, by the nameserver that reported it."""
        self._permission = live.current.broker_permission
        self._ordered: set[str] = set()
        """Topics that the nameservers list as ordered."""
        live.on_change.append(self._config_changed)

    async def start(self, ha_address: str) -> None:
        """Register with all nameservers; return when all have answered or failed, or after :data:`FIRST_WAIT_S`.

        :param ha_address: the ``host:port`` of this broker for slaves.
        """
        self._ha_address = ha_address
        addresses = split_addresses(self._live.current.namesrv_addr)
        self._links = [_Link(self, address, is_first=index == 0) for index, address in enumerate(addresses)]
        self.topics.on_change.append(self._topic_changed)
        self._ordered = {name for name, topic in self.topics.table.items() if topic.order}
        self._tasks = [asyncio.create_task(link.run(), name=f"register at {link.address}") for link in self._links]
        tried = [asyncio.ensure_future(link.tried.wait()) for link in self._links]
        if tried:
            limit = self.clock.call_later(FIRST_WAIT_S, self._first_wait_is_over)
            await asyncio.gather(*tried)
            limit.cancel()

    def _first_wait_is_over(self) -> None:
        for link in self._links:
            link.tried.set()

    async def stop(self, *, leaves: bool = True) -> None:
        """Unregister from every nameserver, and wait at most :data:`UNREGISTER_TIMEOUT_S` for the responses.

        :param leaves: False to remain registered: the next registration from this address replaces this one.
        """
        if self._topic_changed in self.topics.on_change:
            self.topics.on_change.remove(self._topic_changed)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if leaves:
            await asyncio.gather(*(link.unregister() for link in self._links))
        self._tasks.clear()
        self._links.clear()

    def when_known(self, then: Callable[[], None]) -> None:
        """Call ``then`` once every reachable nameserver knows the current topics, at the latest after
        :data:`KNOWN_WAIT_S`.
        """
        version = self.version
        waiting = [link for link in self._links if not link.failing and link.known != version]
        if not waiting:
            then()
            return
        left = len(waiting)

        def count_down() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                limit.cancel()
                then()

        def stop_waiting() -> None:
            nonlocal left
            left = 0
            then()

        limit = self.clock.call_later(KNOWN_WAIT_S, stop_waiting)
        for link in waiting:
            link.when_known.append((version.counter, count_down))

    def _topic_changed(self, topic: str) -> None:
        row = self.topics.get(topic)
        if row is not None and row.order:
            self._ordered.add(topic)
        else:
            self._ordered.discard(topic)
        for link in self._links:
            link.changed.add(topic)
            link.wake.set()

    def _config_changed(self, config: BrokerConfig) -> None:
        """Register every topic immediately if the broker's permission has changed."""
        if config.broker_permission != self._permission:
            self._permission = config.broker_permission
            for link in self._links:
                link.changed.update(self.topics.table)
                link.wake.set()

    # --- requests of the links ------------------------------------------------------------------
    @property
    def is_slave(self) -> bool:
        """Return whether the broker is a slave, whose topics no nameserver accepts."""
        return self._live.current.broker_id != MASTER_ID

    @property
    def period_s(self) -> float:
        """Return the seconds between two registrations."""
        return min(MAX_PERIOD_S, max(MIN_PERIOD_S, self._live.current.register_name_server_period / 1000))

    @property
    def version(self) -> DataVersion:
        """Return the version of the topics, with the epoch of a set's member."""
        version = self.topics.version
        if self._member is None:
            return version
        return msgspec.structs.replace(version, state_version=self._member.registered_epoch)

    async def knows(self, nameserver: str, version: DataVersion) -> bool:
        """Return whether a nameserver knows this version of the table and has this broker in its routes.

        Apache's nameserver checks only the version, even after another broker with this name and id has replaced this
        one in the routes and left. Therefore the route of the topic with the broker's name must contain this broker's
        address.

        :raises RemotingError: the nameserver does not answer.
        """
        config = self._live.current
        header = QueryDataVersionRequestHeader(
            broker_name=config.broker_name,
            broker_addr=self._address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )
        timeout_s = config.register_broker_timeout_mills / 1000
        code = RequestCode.QUERY_DATA_VERSION
        answer = await self.client.invoke(nameserver, code, header, encode_body(version), timeout_s=timeout_s)
        if answer.code != ResponseCode.SUCCESS or answer.header(QueryDataVersionResponseHeader).changed:
            return False
        asked = GetRouteInfoRequestHeader(topic=config.broker_name)
        route = await self.client.invoke(nameserver, RequestCode.GET_ROUTEINFO_BY_TOPIC, asked, timeout_s=timeout_s)
        if route.code != ResponseCode.SUCCESS:
            return False
        addresses = (self._address, *self._listener_addresses.values())
        return any(
            broker.broker_name == config.broker_name and broker.broker_addrs.get(config.broker_id) in addresses
            for broker in decode_body(TopicRouteData, route.body).broker_datas
        )

    async def order_config(self, nameserver: str) -> KVTable | None:
        """Return a nameserver's table of ordered topics, if any; raise the same errors as :meth:`send`."""
        header = GetKVListByNamespaceRequestHeader(namespace=ORDER_TOPIC_CONFIG)
        answer = await self.client.invoke(nameserver, RequestCode.GET_KVLIST_BY_NAMESPACE, header)
        return decode_body(KVTable, answer.body) if answer.code == ResponseCode.SUCCESS and answer.body else None

    async def send(self, nameserver: str, names: Iterable[str] | None, version: DataVersion) -> KVTable | None:
        """Register some or all topics; return the nameserver's table of ordered topics, if any.

        While the broker's own permission forbids reads or writes, all topics are registered with that permission.

        :raises RemotingError: the nameserver does not answer.
        :raises RegistrationError: the nameserver refuses this broker.
        """
        config = self._live.current
        timeout_s = config.register_broker_timeout_mills / 1000
        await self.client.ready(nameserver, self.client.clock.monotonic() + timeout_s)  # before the work on many topics
        table = self.topics.table
        if self.is_slave:
            names = ()
        topics = dict(table) if names is None else {name: table[name] for name in names if name in table}
        perm = None if config.broker_permission & READ_WRITE == READ_WRITE else config.broker_permission
        work = partial(_encode, version, topics, perm, compressed=config.compressed_register)
        # takes 5 µs per topic
        body, compressed = work() if len(topics) <= TABLE_ROWS_PER_SLICE else await in_thread(work)
        header = RegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=self._address,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=self._ha_address,
            broker_id=config.broker_id,
            compressed=compressed,
            body_crc32=body_crc(body),
            listener_addrs=format_registered(self._listener_addresses) or None,
        )
        answer = await self.client.invoke(nameserver, RequestCode.REGISTER_BROKER, header, body, timeout_s=timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise RegistrationError(f"code {answer.code}: {answer.remark}")
        header_of_answer = answer.header(RegisterBrokerResponseHeader)
        self.rivals[nameserver] = header_of_answer.rival_addr or ""
        if self._member is not None and header_of_answer.rival_state_version:
            self._member.epoch_seen(header_of_answer.rival_state_version)
        if self.on_answer is not None:
            self.on_answer(header_of_answer)
        return decode_body(KVTable, answer.body) if answer.body else None

    async def send_unregister(self, nameserver: str) -> None:
        """Unregister from a nameserver.

        :raises RemotingError: the nameserver does not answer.
        """
        config = self._live.current
        header = UnRegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=self._address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )
        await self.client.invoke(nameserver, RequestCode.UNREGISTER_BROKER, header, timeout_s=UNREGISTER_TIMEOUT_S)

    def mark_ordered_topics(self, table: Mapping[str, str]) -> None:
        """Mark as ordered exactly the topics in a nameserver's ORDER_TOPIC_CONFIG."""
        if self.is_slave:
            return
        for name in self._ordered ^ table.keys():
            topic = self.topics.get(name)
            if topic is not None:
                self.topics.put(msgspec.structs.replace(topic, order=name in table))


def _encode(
    version: DataVersion, topics: dict[str, TopicConfig], perm: int | None, *, compressed: bool
) -> tuple[bytes, bool]:
    """Return the body of a registration, and whether it is compressed.

    :param perm: the permission of all topics; by default each topic has its own.
    :param compressed: True to compress every body, not only large ones.
    """
    if perm is not None:
        topics = {name: msgspec.structs.replace(topic, perm=perm) for name, topic in topics.items()}
    registration = Registration(version, topics)
    body = encode_registration(registration, compressed=compressed)
    most = COMPRESSED_REGISTRATION_BYTES
    if any(topic.topic_sys_flag for topic in topics.values()):  # which the compressed form lacks
        most = MAX_FRAME_BYTES - MAX_HEADER_BYTES
    if compressed or len(body) <= most:
        return body, compressed
    return encode_registration(registration, compressed=True), True


class RegistrationError(Exception):
    """Raised when a nameserver responds to a registration with an error."""


class _Link:
    """Keeps the broker registered with one nameserver."""

    def __init__(self, owner: BrokerRegistration, address: str, *, is_first: bool) -> None:
        self.address = address
        self.known: DataVersion | None = None
        """The last version of the table that the nameserver has received completely; ``None`` if it may lack topics."""
        self.changed: set[str] = set()
        self.wake = asyncio.Event()
        self.tried = asyncio.Event()
        self.failing = False
        """True if the last attempt failed."""
        self._warned_at = 0.0
        self._failing_since = 0.0
        self._was_registered = False
        self._rival_told_at: float | None = None
        self.when_known: list[tuple[int, Callable[[], None]]] = []
        """Functions to call once the nameserver knows a version of the table or does not answer."""
        self._owner = owner
        self._is_first = is_first

    @property
    def _is_connected(self) -> bool:
        return self._owner.client.live(self.address) is not None

    async def run(self) -> None:
        """Register repeatedly until the task is cancelled."""
        owner = self._owner
        pause_s = LOOK_S
        due_at = owner.clock.monotonic()
        while True:
            now = owner.clock.monotonic()
            if now >= due_at or self.known != owner.version or not self._is_connected:
                if await self._register():
                    pause_s = LOOK_S
                    due_at = owner.clock.monotonic() + owner.period_s
                else:
                    pause_s = min(pause_s * 2, owner.period_s)
                self.tried.set()
            timer = owner.clock.call_later(pause_s, self.wake.set)
            await self.wake.wait()
            timer.cancel()
            self.wake.clear()

    async def _register(self) -> bool:
        owner = self._owner
        version = owner.version
        known, self.known = self.known if self._is_connected else None, None
        changed, self.changed = self.changed, set()
        try:
            is_same = known == version and not changed and not owner.rivals.get(self.address)
            if is_same and not owner.is_slave and await owner.knows(self.address, version):
                order_config = await owner.order_config(self.address) if self._is_first else None
            else:
                order_config = await owner.send(self.address, changed if changed and known else None, version)
        except (RemotingError, RegistrationError, BodyError) as error:
            self._warn(error)
            self.failing = True
            self._call_waiting(owner.topics.version.counter)
            return False
        if self.failing or not self._was_registered:
            _log.info("registered with nameserver %s%s", self.address, " again" if self._was_registered else "")
        self.failing = False
        self._was_registered = True
        self.known = version
        self._warn_of_rival(owner.rivals[self.address])
        self._call_waiting(version.counter)
        if order_config is not None and self._is_first:
            owner.mark_ordered_topics(order_config.table)
        return True

    def _warn(self, error: Exception) -> None:
        """Log a failure immediately, and then every minute with its duration."""
        now = self._owner.clock.monotonic()
        if not self.failing:
            self._failing_since = self._warned_at = now
            _log.warning("cannot register with nameserver %s: %s; will retry", self.address, error)
        elif now - self._warned_at >= WARN_S:
            self._warned_at = now
            _log.warning(
                "not registered with nameserver %s for %.0f s: %s; its clients cannot find this broker",
                *(self.address, now - self._failing_since, error),
            )

    def _warn_of_rival(self, address: str) -> None:
        """Warn about another live broker with this name and ID, and log when it has left."""
        now = self._owner.clock.monotonic()
        if not address:
            if self._rival_told_at is not None:
                _log.info("nameserver %s no longer knows another broker with this name and id", self.address)
            self._rival_told_at = None
        elif self._rival_told_at is None or now - self._rival_told_at >= WARN_S:
            self._rival_told_at = now
            _log.warning(
                "another live broker, at %s, has the same name and id: nameserver %s sends clients to one "
                "or the other; stop one of them, or give it a brokerName or a brokerId of its own",
                *(address, self.address),
            )

    def _call_waiting(self, counter: int) -> None:
        waiting, self.when_known = self.when_known, []
        for wanted, then in waiting:
            if wanted <= counter:
                then()
            else:
                self.when_known.append((wanted, then))

    async def unregister(self) -> None:
        """Unregister from the nameserver if a connection to it is open."""
        if not self._is_connected:
            return
        try:
            await self._owner.send_unregister(self.address)
        except RemotingError as error:
            _log.warning("cannot unregister from nameserver %s: %s", self.address, error)


def warn_of_no_nameserver() -> None:
    """Log that no nameserver is configured."""
    _log.warning("namesrvAddr is not set: clients cannot find this broker; start it with -n HOST:PORT")
