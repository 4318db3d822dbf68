"""The checks of ``cometmq doctor --cluster`` for nameservers, brokers, slaves, subscriptions and topics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

from cometmq.client.admin import Admin
from cometmq.client.admin.broker_health import (
    BrokerState,
    check_clock,
    check_disk,
    check_retention,
    check_store,
    check_versions,
)
from cometmq.client.admin.failover.sets import find_sets
from cometmq.client.admin.finding import ADVICE, OK, PROBLEM, Finding
from cometmq.client.admin.group_progress import groups_with_members, sums_of
from cometmq.client.admin.group_summary import users_groups
from cometmq.client.admin.members import Member, contradictions, subscriptions_of
from cometmq.client.admin.several import asked_masters, gathered, users_topics
from cometmq.client.errors import BrokerError, ClientError, RemotingError
from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.names import MASTER_ID
from cometmq.quantity import duration_text, quantity, size_text
from cometmq.remoting.bodies import ClusterInfo
from cometmq.remoting.tls.expiry import WARNING_DAYS, days_left, ends_at

NAMED_TOPICS_MAX: Final = 5


class Steps(Protocol):
    """Counts the completed steps of a long check."""

    def advance(self, steps: int) -> None:
        """Count completed steps."""


Watch = Callable[[str, int], AbstractContextManager[Steps]]
"""A function that returns a context manager for a long check, given its title and number of steps."""


class _Unwatched:
    def advance(self, steps: int) -> None: ...


async def examine_cluster(
    admin: Admin, nameservers: Sequence[str], watch: Watch = lambda _, __: nullcontext(_Unwatched())
) -> AsyncIterator[Finding]:
    """Run all checks from this machine."""
    for asked in await _check_nameservers(admin, nameservers):
        yield asked
    for address in nameservers:
        if (finding := _check_certificate(admin, f"nameserver {address}", address)) is not None:
            yield finding
    info = await admin.cluster_info()
    for finding in _check_names(info):
        yield finding
    places = {
        (name, broker_id): address
        for name, data in sorted(info.broker_addr_table.items())
        for broker_id, address in sorted(data.broker_addrs.items())
    }
    if not places:
        yield Finding("brokers", PROBLEM, "none registered", "start one with cometmq broker -n ADDRESS")
        return
    states = await gathered({place: _fetch_state(admin, address) for place, address in places.items()})
    for (name, broker_id), state in states.items():
        what = f"{name}" if broker_id == MASTER_ID else f"{name}, slave {broker_id}"
        yield _check_answer(what, places[name, broker_id], state)
        if isinstance(state, BrokerState):
            yield check_disk(what, state)
            yield check_clock(what, state)
            for finding in check_store(what, state):
                yield finding
            if (finding := _check_certificate(admin, what, places[name, broker_id])) is not None:
                yield finding
            config = await _fetch_config(admin, places[name, broker_id])
            if isinstance(config, dict):
                for finding in _check_identity(what, places[name, broker_id], (name, broker_id), config):
                    yield finding
            if broker_id == MASTER_ID:
                yield _check_retention(what, state, config)
    yield check_versions([state for state in states.values() if isinstance(state, BrokerState)])
    members = [places[place] for place, state in states.items() if _is_member(state)]
    for finding in await _check_sets(admin, members):
        yield finding
    masters = {name: address for (name, broker_id), address in places.items() if broker_id == MASTER_ID}
    reachable = {name: address for name, address in masters.items() if isinstance(states[name, MASTER_ID], BrokerState)}
    for name, address in reachable.items():
        if (finding := await _check_slaves(admin, name, address)) is not None:
            yield finding
    if len(reachable) == len(masters):
        yield await _check_subscriptions(admin, watch)
        yield await _check_topic_spread(admin, await users_topics(admin), masters)


def _check_names(info: ClusterInfo) -> Iterator[Finding]:
    """Yield brokers that are away, and brokers that share a name and an id."""
    for gone in info.gone_brokers or []:
        what = gone.broker_name + (f", slave {gone.broker_id}" if gone.broker_id != MASTER_ID else "")
        found = f"away for {duration_text(gone.gone_for_ms / 1000)}: {gone.reason}"
        yield Finding(
            f"{what} answers",
            PROBLEM,
            found,
            f"check that the broker is running at {gone.broker_addr}, and check its log",
        )
    for rivals in info.rival_brokers or []:
        what = f"{rivals.broker_name}, id {rivals.broker_id}"
        found = f"{' and '.join(rivals.broker_addrs)} replace each other: clients reach only one of them at a time"
        todo = "stop one of them, or give it its own brokerName or brokerId"
        yield Finding(f"{what}, is a single broker", PROBLEM, found, todo)


async def _check_nameservers(admin: Admin, addresses: Sequence[str]) -> list[Finding]:
    """Check that all nameservers respond and know the same brokers."""
    known: dict[str, list[str]] = {}
    findings = []
    for address in addresses:
        try:
            info = await admin.cluster_info(address)
        except (BrokerError, RemotingError) as error:
            todo = "check that the nameserver is running and that its port is reachable from this machine"
            findings.append(Finding(f"nameserver {address}", PROBLEM, error.message, todo))
            continue
        known[address] = sorted(one for of in info.broker_addr_table.values() for one in of.broker_addrs.values())
        findings.append(Finding(f"nameserver {address}", OK, quantity(len(known[address]), "broker")))
    for address, brokers in known.items():
        if missing := sorted(set().union(*known.values()) - set(brokers)):
            found = f"{address} does not know {', '.join(missing)}"
            findings.append(
                Finding(
                    "nameservers agree", PROBLEM, found, "configure every broker with the addresses of all nameservers"
                )
            )
    return findings


def _check_certificate(admin: Admin, what: str, address: str) -> Finding | None:
    """Return a finding about a server certificate's expiry, or ``None`` if the server does not use TLS."""
    certificate = admin.instance.remoting.certificate(address)
    if certificate is None:
        return None
    check = f"certificate of {what}"
    try:
        left = days_left(ends_at(certificate), SYSTEM_CLOCK.now_ms() / 1000)
    except ValueError:
        return Finding(
            check, ADVICE, "its expiry date is unknown", f"run openssl s_client -connect {address} to see it"
        )
    todo = "replace the server's TLS files; no restart is needed"
    if left < 0:
        return Finding(check, PROBLEM, f"expired {quantity(-left, 'day')} ago", todo)
    found = f"expires in {quantity(left, 'day')}"
    return Finding(check, ADVICE, found, todo) if left < WARNING_DAYS else Finding(check, OK, found)


async def _fetch_state(admin: Admin, address: str) -> BrokerState | str:
    """Return a broker's runtime information, or the reason why it is not available."""
    began = SYSTEM_CLOCK.now_ms()
    try:
        table = await admin.runtime_info(address)
    except (BrokerError, RemotingError) as error:
        return error.message
    return BrokerState(table, began, SYSTEM_CLOCK.now_ms())


async def _fetch_config(admin: Admin, address: str) -> dict[str, str] | str:
    """Return a broker's configuration, or the reason why it is not available."""
    try:
        return await admin.broker_config(address)
    except (BrokerError, RemotingError) as error:
        return error.message


def _check_retention(what: str, state: BrokerState, config: dict[str, str] | str) -> Finding:
    if isinstance(config, str):
        return Finding(f"retention of {what}", ADVICE, f"unknown: {config}", "try again")
    return check_retention(what, state, config)


def _check_identity(what: str, address: str, place: tuple[str, int], config: dict[str, str]) -> Iterator[Finding]:
    """Report whether another broker responds at the address that this broker advertises."""
    name, broker_id = config.get("brokerName"), config.get("brokerId")
    if name is None or broker_id is None or (name, broker_id) == (place[0], str(place[1])):
        return
    found = f"broker {name} with id {broker_id} responds at {address}"
    todo = "two brokers advertise the same address: give each its own --advertise HOST:PORT (advertisedListeners)"
    yield Finding(f"address of {what}", PROBLEM, found, todo)


def _check_answer(what: str, address: str, state: BrokerState | str) -> Finding:
    if isinstance(state, BrokerState):
        return Finding(f"{what} answers", OK, f"at {address}, {state.version}")
    todo = (
        "if the broker is running, clients on this machine need another address: start it with --advertise "
        "HOST[:PORT] instead of "
        f"{address}, or configure a nameserver listener for them"
    )
    return Finding(f"{what} answers", PROBLEM, f"not at {address}: {state}", todo)


def _is_member(state: BrokerState | str) -> bool:
    """Return whether a broker is a member of a set that elects its master."""
    return isinstance(state, BrokerState) and "failoverState" in state.table


async def _check_sets(admin: Admin, members: Sequence[str]) -> list[Finding]:
    """Check that each set has a master, and all its members in sync."""
    if not members:
        return []
    try:
        sets, _ = await find_sets(admin, servers=members)
    except (BrokerError, ClientError, RemotingError):
        return []  # they have died since; the check of their answers is next time
    findings = []
    for one in sets:
        in_sync = sum(member.in_sync and member.status is not None for member in one.members)
        found = f"{in_sync} of {quantity(len(one.members), 'member')} answer and are in sync"
        if one.master is None:
            findings.append(Finding(f"failover of {one.name}", PROBLEM, "no master", one.to_do()[0]))
        elif one.is_whole and not one.to_do():
            findings.append(Finding(f"failover of {one.name}", OK, found))
        else:
            todo = "run cometmq failover status to see why, and what to do"
            findings.append(Finding(f"failover of {one.name}", ADVICE, found, todo))
    return findings


async def _check_slaves(admin: Admin, name: str, address: str) -> Finding | None:
    try:
        slaves = (await admin.ha_status(address)).ha_connection_info
    except (BrokerError, RemotingError):
        return None  # a master of RocketMQ 4 does not report its slaves
    if not slaves:
        return None
    behind = max(slave.diff for slave in slaves)
    found = f"{quantity(len(slaves), 'slave')}, at most {size_text(max(behind, 0))} behind"
    if all(slave.in_sync or slave.learner for slave in slaves):
        return Finding(f"slaves of {name}", OK, found)
    return Finding(f"slaves of {name}", ADVICE, found, "run cometmq cluster slaves to see which slave is not in sync")


async def _check_subscriptions(admin: Admin, watch: Watch) -> Finding:
    """Check the subscriptions of groups with several members."""
    names = await users_groups(admin)
    sums = await asked_masters(admin, lambda _, address: sums_of(admin, address, names))
    shared = groups_with_members(names, [{} if found is None else found.groups for found in sums.values()], least=2)
    with watch("Checking groups", len(shared)) as steps:

        async def ask(group: str) -> list[Member]:
            found = await subscriptions_of(admin, group)
            steps.advance(1)
            return found

        members = await gathered({name: ask(name) for name in shared})
    wrong = [name for name, found in members.items() if contradictions(found)]
    if wrong:
        todo = f"run cometmq group describe {wrong[0]} to see them; all members must have the same subscriptions"
        return Finding("subscriptions", PROBLEM, f"members have different subscriptions: {', '.join(wrong)}", todo)
    return Finding("subscriptions", OK, f"{quantity(len(names), 'group')} with consistent subscriptions")


async def _check_topic_spread(admin: Admin, topics: Sequence[str], masters: Mapping[str, str]) -> Finding:
    tables = await gathered({name: admin.topic_configs(address) for name, address in masters.items()})
    few = [topic for topic in topics if not all(topic in table for table in tables.values())]
    if few:
        named = ", ".join(few[:NAMED_TOPICS_MAX]) + (", …" if len(few) > NAMED_TOPICS_MAX else "")
        todo = "run cometmq topic create with the same settings to add the missing brokers"
        return Finding("topics on all brokers", ADVICE, f"{len(few)} topics are missing on some brokers: {named}", todo)
    return Finding("topics on all brokers", OK, quantity(len(topics), "topic"))
