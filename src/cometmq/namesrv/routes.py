"""RouteInfoManager: topics, brokers, clusters and liveness.

There are four tables, as in Apache's ``RouteInfoManager``: topic → broker name → queues, broker name → cluster and
addresses by broker ID, cluster → broker names, address → liveness. They are used only on the event loop, so they need
no locks.

Some rules are stricter than Apache's, which loses or mixes up topics and brokers:

* a master's registration with a known DataVersion still adds missing topics, since the registration of a single topic
  may have been lost;
* an unregistration removes an address only if it is still the registered address of that broker id;
* a broker name belongs to the cluster that it registered with last, and an address belongs to one broker name;
* a broker that asks whether its topics are known (request code 322) must register them again if some were removed here,
  or if another broker has replaced it in the routes.

If two live brokers have the same name and ID, the one with the higher ``stateVersion`` remains, as in 5.x, and the
other one is told that version; if the versions are equal, the one that registered last remains. ``stateVersion`` is the
epoch of a set that elects its master.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Generator, Hashable, Iterator, Mapping
from typing import Final

from cometmq.errors import CometMQError
from cometmq.limits import MAX_ADDRESS_CHARS, MAX_NAMESRV_TOPICS
from cometmq.message.hosts import parse_address
from cometmq.message.names import MASTER_ID, PERM_READ, PERM_WRITE, check_topic
from cometmq.multimap import MultiMap
from cometmq.namesrv.limits import MAX_NAMESRV_BROKERS, MAX_NAMESRV_QUEUE_DATA, MAX_REGISTERED_QUEUES
from cometmq.namesrv.topic_queues import TopicQueues
from cometmq.remoting.bodies import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    RivalBrokers,
    TopicConfig,
    TopicRouteData,
)

_NAME: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029/\\]{1,127}")
"""Pattern for broker and cluster names, which may not contain slashes, backslashes or control characters."""
_NO_VERSION: Final = DataVersion(timestamp=-1, counter=-1)
"""Placeholder for the version of a broker whose first registration is incomplete."""


class RegistrationError(CometMQError):
    """Raised when a registration violates a rule or limit; the message becomes the remark in the response."""


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The broker identified by a request header."""

    cluster: str
    name: str
    broker_id: int
    address: str

    def check(self) -> None:
        """Check the broker's names, ID and address.

        :raises RegistrationError: one of them is invalid.
        """
        for what, text in (("cluster", self.cluster), ("broker", self.name)):
            if _NAME.fullmatch(text) is None:
                raise RegistrationError(
                    f"invalid {what} name {text[:150]!r}: empty, too long, or with a slash or control character"
                )
        if self.broker_id < 0:
            raise RegistrationError(f"the broker id {self.broker_id} is negative")
        if len(self.address) > MAX_ADDRESS_CHARS:
            raise RegistrationError(f"the address has more than {MAX_ADDRESS_CHARS} characters")
        try:
            _, port = parse_address(self.address)
        except ValueError as error:
            raise RegistrationError(str(error)) from None
        if port == 0:
            raise RegistrationError(f"the address {self.address!r} has no port")


@dataclasses.dataclass(slots=True)
class LiveBroker:
    """A registered broker address (``BrokerLiveInfo``)."""

    identity: BrokerIdentity
    last_update_s: float
    data_version: DataVersion
    connection: Hashable
    ha_address: str
    filter_servers: list[str]
    listeners: Mapping[str, str]
    """Addresses for clients, by listener name."""
    lacks_topics: bool = False
    """True if topics were removed from the table after the broker had registered all of them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Registered:
    """The result of a registration; the addresses are empty for a master."""

    master_address: str = ""
    ha_address: str = ""
    is_new: bool = False
    """True if the address was not registered before."""
    skipped_topics: tuple[str, ...] = ()
    """Topics that were ignored because their names or queue numbers are invalid."""
    rival: str = ""
    """The address of another live broker with the same name and ID."""
    is_ignored: bool = False
    """True if the rival remains registered because its ``stateVersion`` is higher."""
    rival_state_version: int = 0
    """The rival's ``stateVersion``, if it remains registered."""


@dataclasses.dataclass(slots=True)
class _Broker:
    cluster: str
    addresses: dict[int, str]


def _is_usable(config: TopicConfig) -> bool:
    return (
        check_topic(config.topic_name) is None
        and 0 <= config.read_queue_nums <= MAX_REGISTERED_QUEUES
        and 0 <= config.write_queue_nums <= MAX_REGISTERED_QUEUES
    )


@dataclasses.dataclass(frozen=True, slots=True)
class QueuesOfBroker:
    """The topics in a registration, ready for the route table."""

    usable: Mapping[str, QueueData]
    skipped: tuple[str, ...] = ()
    """Topics whose names or queue numbers are invalid."""


def queues_of(identity: BrokerIdentity, topics: Mapping[str, TopicConfig]) -> QueuesOfBroker:
    """Check and convert the topics in a registration; ignore a slave's topics."""
    if identity.broker_id != MASTER_ID:
        return QueuesOfBroker({})
    usable = {
        config.topic_name: QueueData(
            broker_name=identity.name,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_sys_flag=config.topic_sys_flag,
        )
        for config in topics.values()
        if _is_usable(config)
    }
    skipped = (name for name, config in topics.items() if not _is_usable(config))
    return QueuesOfBroker(usable, tuple(skipped) if len(usable) < len(topics) else ())


@dataclasses.dataclass(frozen=True, slots=True)
class RouteRegistration:
    """A registration, ready for the route table."""

    identity: BrokerIdentity
    queues: QueuesOfBroker
    ha_address: str
    data_version: DataVersion
    filter_servers: list[str]
    connection: Hashable
    now_s: float
    """Time of the registration in monotonic seconds."""
    listeners: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Addresses for clients, by listener name."""


def _key(identity: BrokerIdentity) -> tuple[str, int]:
    return identity.name, identity.broker_id


def _state(version: DataVersion) -> int:
    """Return the ``stateVersion`` of a 5.x broker with a controller, which increases at each master election."""
    return version.state_version or 0


class RouteTable:
    """The route information of a nameserver."""

    def __init__(self) -> None:
        self._topics: Final = TopicQueues()
        self._brokers: dict[str, _Broker] = {}
        self._clusters: MultiMap[str, str] = MultiMap()
        self._live: dict[str, LiveBroker] = {}
        self._addresses_of: MultiMap[tuple[str, int], str] = MultiMap()
        """The live addresses for each broker name and ID."""

    # --- registration -------------------------------------------------------------------------
    def register(self, registration: RouteRegistration) -> Generator[None, None, Registered]:
        """Register or refresh a broker (request code 103), slice by slice.

        The topics may be the complete table or part of it; a registration never removes topics. Only a master's topics
        count, and known topics are replaced only if the DataVersion differs. The broker appears in the routes after the
        first slice; its version is recorded after the last one. If the broker leaves or registers again, the remaining
        topics are ignored.

        :raises RegistrationError: the registration is refused and changes nothing.
        """
        identity, queues, data_version = registration.identity, registration.queues, registration.data_version
        self._check(identity, queues.usable, registration.ha_address)
        previous = self._live.get(identity.address)
        holder = self._holder(identity)
        if holder is not None and _state(holder.data_version) > _state(data_version):
            if previous is not None:
                self._remove(previous.identity)
            return Registered(
                rival=holder.identity.address, is_ignored=True, rival_state_version=_state(holder.data_version)
            )
        if previous is not None and previous.identity.name != identity.name:
            self._remove(previous.identity)  # the broker at this address registers under a new name
        elif previous is not None:
            self._addresses_of.remove(_key(previous.identity), identity.address)
        self._add_to_cluster(identity)
        is_known = previous is not None and previous.data_version == data_version
        live = self._live[identity.address] = LiveBroker(
            identity,
            registration.now_s,
            _NO_VERSION if previous is None else previous.data_version,
            registration.connection,
            registration.ha_address,
            registration.filter_servers,
            registration.listeners,
            lacks_topics=previous is not None and previous.lacks_topics and not is_known,
        )
        others = self._addresses_of.of(_key(identity))
        rival = next((one for one in others if not self._is_earlier(one, data_version)), "")
        self._addresses_of.add(_key(identity), identity.address)
        master = self._live.get(self._brokers[identity.name].addresses.get(MASTER_ID, ""))
        for _ in self._topics.add(identity.name, queues.usable, replace=not is_known):
            yield
            if self._live.get(identity.address) is not live:
                break
        live.data_version = data_version
        if identity.broker_id == MASTER_ID or master is None:
            return Registered(is_new=previous is None, skipped_topics=queues.skipped, rival=rival)
        return Registered(master.identity.address, master.ha_address, is_new=previous is None, rival=rival)

    def _is_earlier(self, address: str, data_version: DataVersion) -> bool:
        """Return whether the broker at an address is an earlier master of the same set, which knows that or will."""
        return _state(self._live[address].data_version) < _state(data_version)

    def _check(self, identity: BrokerIdentity, usable: Mapping[str, QueueData], ha_address: str) -> None:
        identity.check()
        if len(ha_address) > MAX_ADDRESS_CHARS:
            raise RegistrationError(f"haServerAddr has more than {MAX_ADDRESS_CHARS} characters")
        most = min(MAX_NAMESRV_TOPICS, MAX_NAMESRV_QUEUE_DATA)
        topics, pairs = self._topics.count_with(identity.name, usable, most)
        if pairs > MAX_NAMESRV_QUEUE_DATA:
            raise RegistrationError(
                f"this nameserver would exceed the maximum of {MAX_NAMESRV_QUEUE_DATA} topic-broker pairs"
            )
        if identity.address not in self._live and len(self._live) >= MAX_NAMESRV_BROKERS:
            raise RegistrationError(f"this nameserver already has the maximum of {MAX_NAMESRV_BROKERS} brokers")
        if topics > MAX_NAMESRV_TOPICS:
            raise RegistrationError(f"this nameserver would exceed the maximum of {MAX_NAMESRV_TOPICS} topics")

    def _holder(self, identity: BrokerIdentity) -> LiveBroker | None:
        """Return the live broker with the same name and ID at a different address."""
        broker = self._brokers.get(identity.name)
        address = identity.address if broker is None else broker.addresses.get(identity.broker_id, identity.address)
        return None if address == identity.address else self._live.get(address)

    def _add_to_cluster(self, identity: BrokerIdentity) -> None:
        broker = self._brokers.get(identity.name)
        if broker is None:
            broker = self._brokers[identity.name] = _Broker(identity.cluster, {})
        elif broker.cluster != identity.cluster:
            self._clusters.remove(broker.cluster, identity.name)
            broker.cluster = identity.cluster
        self._clusters.add(identity.cluster, identity.name)
        for broker_id in [known for known, address in broker.addresses.items() if address == identity.address]:
            del broker.addresses[broker_id]  # an address has only one id: a slave may have become the master
        broker.addresses[identity.broker_id] = identity.address

    def unregister(self, identity: BrokerIdentity) -> bool:
        """Remove a broker (request code 104); return False if it was not registered."""
        live = self._live.get(identity.address)
        self._remove(identity)
        return live is not None and live.identity == identity

    def brokers_of(self, connection: Hashable) -> list[BrokerIdentity]:
        """Return the brokers that last registered over ``connection``."""
        return [live.identity for live in self._live.values() if live.connection is connection]

    def remove_if_from(self, identity: BrokerIdentity, connection: Hashable) -> bool:
        """Remove a broker if it last registered over ``connection``; return whether it was removed."""
        live = self._live.get(identity.address)
        if live is None or live.identity != identity or live.connection is not connection:
            return False
        self._remove(identity)
        return True

    def expire(self, older_than_s: float) -> list[LiveBroker]:
        """Remove and return the brokers that last registered before ``older_than_s``."""
        gone = [live for live in self._live.values() if live.last_update_s < older_than_s]
        for live in gone:
            self._remove(live.identity)
        return gone

    def _remove(self, identity: BrokerIdentity) -> None:
        live = self._live.pop(identity.address, None)
        if live is not None:
            self._addresses_of.remove(_key(live.identity), identity.address)
        broker = self._brokers.get(identity.name)
        if broker is None or broker.addresses.get(identity.broker_id) != identity.address:
            return
        del broker.addresses[identity.broker_id]
        if broker.addresses:
            return
        del self._brokers[identity.name]
        self._clusters.remove(broker.cluster, identity.name)
        self._topics.remove_broker(identity.name)
        next(self.sweep(), None)  # most brokers' topics fit into one slice

    def sweep(self) -> Iterator[None]:
        """Drop the topics of removed brokers, slice by slice."""
        return self._topics.sweep()

    # --- data versions -------------------------------------------------------------------------
    def query_data_version(
        self, identity: BrokerIdentity, data_version: DataVersion, now_s: float
    ) -> tuple[bool, DataVersion | None]:
        """Return whether a broker's topics have changed, and the known version of its topics (request code 322).

        An unchanged version also renews the broker's liveness. It counts as a change if topics were removed from the
        table, or if a rival has replaced the broker.
        """
        live = self._live.get(identity.address)
        if live is None:
            return True, None
        broker = self._brokers.get(identity.name)
        is_routed = broker is not None and broker.addresses.get(identity.broker_id) == identity.address
        if live.data_version != data_version or live.lacks_topics or not is_routed:
            return True, live.data_version
        live.last_update_s = now_s
        return False, live.data_version

    # --- routes -------------------------------------------------------------------------------
    def route(self, topic: str, listener: str = "") -> TopicRouteData | None:
        """Return a topic's route, or ``None`` if no registered broker has the topic (request code 105).

        The addresses are those for the given listener; if a broker has none, its general addresses are used.
        """
        queues = self._topics.of(topic)
        brokers = [self._broker_data(name, listener) for name in queues if name in self._brokers]
        if not brokers:
            return None
        filters = {
            address: live.filter_servers
            for broker in brokers
            for address in broker.broker_addrs.values()
            if (live := self._live.get(address)) and live.filter_servers
        }
        return TopicRouteData(queue_datas=list(queues.values()), broker_datas=brokers, filter_server_table=filters)

    def _broker_data(self, name: str, listener: str) -> BrokerData:
        broker = self._brokers[name]
        addresses = {
            broker_id: self._address_for(listener, address) for broker_id, address in sorted(broker.addresses.items())
        }
        return BrokerData(cluster=broker.cluster, broker_name=name, broker_addrs=addresses)

    def _address_for(self, listener: str, address: str) -> str:
        live = self._live.get(address) if listener else None
        return address if live is None else live.listeners.get(listener, address)

    # --- counts -------------------------------------------------------------------------------
    def broker_counts(self) -> Counter[str]:
        """Return the number of registered brokers by cluster."""
        return Counter(live.identity.cluster for live in self._live.values())

    @property
    def topic_count(self) -> int:
        """Return the number of topics."""
        return len(self._topics)

    # --- tables for tools ---------------------------------------------------------------------
    def cluster_info(self, listener: str = "") -> ClusterInfo:
        """Return every broker and cluster (request code 106), with addresses as in :meth:`route`."""
        return ClusterInfo(
            broker_addr_table={name: self._broker_data(name, listener) for name in self._brokers},
            cluster_addr_table={cluster: list(names) for cluster, names in self._clusters.items()},
            rival_brokers=self.rivals() or None,
        )

    def rivals(self) -> list[RivalBrokers]:
        """Return the live brokers that share their name and ID with other brokers."""
        found = []
        for (name, broker_id), addresses in sorted(self._addresses_of.items()):
            newest = max(_state(self._live[address].data_version) for address in addresses)
            live = sorted(one for one in addresses if _state(self._live[one].data_version) == newest)
            if len(live) > 1:
                found.append(RivalBrokers(broker_name=name, broker_id=broker_id, broker_addrs=live))
        return found

    def topics(self) -> list[str]:
        """Return every topic (request code 206)."""
        return self._topics.names()

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics on a cluster's brokers (request code 224)."""
        names = self._clusters.get(cluster, {})
        return [topic for topic, queues in self._topics.items() if not names.keys().isdisjoint(queues)]

    def system_topics(self, listener: str = "") -> tuple[list[str], str]:
        """Return the names of clusters and brokers, and the address of one broker (request code 304)."""
        addresses = (address for broker in self._brokers.values() for address in broker.addresses.values())
        return [*self._clusters, *self._brokers], self._address_for(listener, next(addresses, ""))

    def topics_with_flag(self, wanted: int, unwanted: int = 0) -> list[str]:
        """Return the topics whose topicSysFlag has all ``wanted`` bits and none of the ``unwanted`` bits (request codes
        311 to 313).
        """
        return [
            topic
            for topic, queues in self._topics.items()
            if (flag := next(iter(queues.values())).topic_sys_flag) & wanted == wanted and not flag & unwanted
        ]

    # --- changes by tools ---------------------------------------------------------------------
    def wipe_write_perm(self, broker_name: str) -> Generator[None, None, int]:
        """Remove write permission from a broker's queues in slices; return the number of topics (request code 205)."""
        return self._topics.set_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> Generator[None, None, int]:
        """Make a broker's queues readable and writable in slices; return the number of topics (request code 327)."""
        return self._topics.set_perm(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def delete_topic(self, topic: str, cluster: str = "") -> None:
        """Remove a topic (request code 216), or, if a cluster is given, only from that cluster's brokers."""
        for broker_name in self._clusters.of(cluster) if cluster else list(self._topics.of(topic)):
            if self._topics.drop(topic, broker_name):
                master = self._live.get(self._brokers[broker_name].addresses.get(MASTER_ID, ""))
                if master is not None:
                    master.lacks_topics = True
