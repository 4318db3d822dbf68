"""The checks of ``cometmq doctor --cluster``: brokers, disks, versions, slaves, subscriptions, topics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from cometmq.cli.admin.finding import ADVICE, OK, PROBLEM, Finding
from cometmq.cli.admin.members import contradictions, subscriptions_of
from cometmq.cli.connection import gathered, users_topics
from cometmq.client.admin import Admin
from cometmq.client.errors import BrokerError, RemotingError
from cometmq.message.names import MASTER_ID, SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS
from cometmq.quantity import quantity, size_text

DISK_FULL_RATIO: Final = 0.9
"""Brokers refuse messages above this."""
DISK_HIGH_RATIO: Final = 0.75
"""Brokers delete old messages early above this."""
NAMED_TOPICS_MAX: Final = 5

State = dict[str, str]


async def examine_cluster(admin: Admin) -> AsyncIterator[Finding]:
    """Run every check, from this machine."""
    info = await admin.cluster_info()
    places = {
        (name, broker_id): address
        for name, data in sorted(info.broker_addr_table.items())
        for broker_id, address in sorted(data.broker_addrs.items())
    }
    if not places:
        yield Finding("brokers", PROBLEM, "none", "start one with cometmq broker -n ADDRESS")
        return
    states = await gathered({place: _state(admin, address) for place, address in places.items()})
    for (name, broker_id), state in states.items():
        what = f"{name}" if broker_id == MASTER_ID else f"{name}, slave {broker_id}"
        yield _answer(what, places[name, broker_id], state)
        if isinstance(state, dict):
            yield _disk(what, state)
    yield _versions([state for state in states.values() if isinstance(state, dict)])
    masters = {name: address for (name, broker_id), address in places.items() if broker_id == MASTER_ID}
    reachable = {name: address for name, address in masters.items() if isinstance(states[name, MASTER_ID], dict)}
    for name, address in reachable.items():
        if (finding := await _slaves(admin, name, address)) is not None:
            yield finding
    if len(reachable) == len(masters):
        yield await _subscriptions(admin)
        yield await _spread(admin, len(masters))


async def _state(admin: Admin, address: str) -> State | str:
    """Return the runtime information of a broker, or why there is none."""
    try:
        return await admin.runtime_info(address)
    except (BrokerError, RemotingError) as error:
        return error.message


def _answer(what: str, address: str, state: State | str) -> Finding:
    if isinstance(state, dict):
        return Finding(f"{what} answers", OK, f"at {address}, {state.get('brokerVersionDesc', 'unknown version')}")
    todo = "see whether it runs, and whether its brokerIP1 can be reached from here"
    return Finding(f"{what} answers", PROBLEM, f"not at {address}: {state}", todo)


def _disk(what: str, state: State) -> Finding:
    try:
        ratio = float(state.get("commitLogDiskRatio", ""))
    except ValueError:
        return Finding(f"disk of {what}", ADVICE, "not known", "look at the machine itself")
    found = f"{ratio:.0%} used"
    if ratio >= DISK_FULL_RATIO:
        return Finding(f"disk of {what}", PROBLEM, found, "free some room: the broker refuses messages")
    if ratio >= DISK_HIGH_RATIO:
        return Finding(f"disk of {what}", ADVICE, found, "free some room: old messages are deleted early")
    return Finding(f"disk of {what}", OK, found)


def _versions(states: list[State]) -> Finding:
    versions = sorted({state.get("brokerVersionDesc", "unknown") for state in states})
    if len(versions) > 1:
        return Finding("versions", ADVICE, ", ".join(versions), "upgrade the older brokers")
    return Finding("versions", OK, ", ".join(versions) or "none")


async def _slaves(admin: Admin, name: str, address: str) -> Finding | None:
    try:
        slaves = (await admin.ha_status(address)).ha_connection_info
    except (BrokerError, RemotingError):
        return None  # a master of RocketMQ 4 does not tell
    if not slaves:
        return None
    behind = max(slave.diff for slave in slaves)
    found = f"{quantity(len(slaves), 'slave')}, at most {size_text(max(behind, 0))} behind"
    if all(slave.in_sync for slave in slaves):
        return Finding(f"slaves of {name}", OK, found)
    return Finding(f"slaves of {name}", ADVICE, found, "cometmq cluster slaves shows which one is far behind")


async def _subscriptions(admin: Admin) -> Finding:
    names = [
        name for name in await admin.groups() if name not in SYSTEM_GROUPS and not name.startswith(SYSTEM_GROUP_PREFIX)
    ]
    members = await gathered({name: subscriptions_of(admin, name) for name in names})
    wrong = [name for name, found in members.items() if contradictions(found)]
    if wrong:
        todo = f"cometmq group describe {wrong[0]} shows which; all members need the same subscriptions"
        return Finding("subscriptions", PROBLEM, f"members contradict each other: {', '.join(wrong)}", todo)
    return Finding("subscriptions", OK, f"{quantity(len(names), 'group')} without contradictions")


async def _spread(admin: Admin, masters: int) -> Finding:
    routes = await gathered({name: admin.topic_route(name) for name in await users_topics(admin)})
    few = [name for name, route in routes.items() if len(route.queue_datas) < masters]
    if few:
        named = ", ".join(few[:NAMED_TOPICS_MAX]) + (", …" if len(few) > NAMED_TOPICS_MAX else "")
        todo = "cometmq topic create with the same settings adds the missing brokers"
        return Finding("topics on all brokers", ADVICE, f"{len(few)} are not: {named}", todo)
    return Finding("topics on all brokers", OK, quantity(len(routes), "topic"))
