"""Finds the members of sets, and combines what they say: who is the master, who is in sync, what a person must do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from cometmq.client.admin import Admin
from cometmq.client.admin.several import gathered
from cometmq.client.errors import BrokerError, ClientError, RemotingError
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.failover.bodies import (
    FailoverChange,
    FailoverDocument,
    FailoverPresence,
    FailoverProgress,
    FailoverStatus,
)

MASTER: Final = "master"
HALTED: Final = "halted"
_LEADING: Final = frozenset({MASTER, "doubting", "handing over"})
_CAN_STAND: Final = frozenset({"follower", "frozen", "standing", "elected", "starting"})
CHANGES_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class SetMember:
    """One member of a set: its own words, or the reason why it does not answer."""

    name: str
    address: str
    status: FailoverStatus | None = None
    problem: str = ""
    """The reason why it does not answer."""
    in_sync: bool = False
    """True if the newest document has it in the in-sync set, in its present generation."""
    reported: FailoverProgress | None = None
    """Its progress in the master's eyes."""

    @property
    def end(self) -> int | None:
        """The end of its log: its own word, or what it has reported to the master; ``None`` if nobody knows."""
        if self.status is not None:
            return self.status.end
        return self.reported.end if self.reported is not None and self.reported.end else None

    @property
    def generation(self) -> int | None:
        """Its generation, which rises when it may have lost bytes."""
        name = self.status.member if self.status is not None else self.reported.member if self.reported else ""
        number = name.rpartition("#")[2]
        return int(number) if number.isdecimal() else None

    @property
    def rank(self) -> tuple[int, int]:
        """The order of logs: the last epoch, then the end."""
        return (-1, -1) if self.status is None else (self.status.log_epoch, self.status.end)


@dataclass(frozen=True, slots=True)
class BrokerSet:
    """A set as its members describe it."""

    cluster: str
    name: str
    members: Sequence[SetMember]
    document: FailoverDocument | None = None
    """The newest document that a member has read."""
    changes: Sequence[FailoverChange] = field(default_factory=tuple)
    """The last changes that any member has seen, the newest first."""

    @property
    def master(self) -> SetMember | None:
        """The member that serves the document's epoch; ``None`` while there is none."""
        epoch = 0 if self.document is None else self.document.epoch
        for member in self.members:
            if member.status is not None and member.status.state in _LEADING and member.status.epoch == epoch:
                return member
        return None

    @property
    def longest(self) -> SetMember | None:
        """The member with the longest log among those that answer and can stand for election."""
        standing = [one for one in self.members if one.status is not None and one.status.state in _CAN_STAND]
        return max(standing, key=lambda one: one.rank, default=None)

    def member(self, name: str) -> SetMember | None:
        """Return a member by its name; of two with one name, the one that has not halted."""
        named = [one for one in self.members if one.name == name]
        return min(named, key=lambda one: one.status is None or one.status.state == HALTED, default=None)

    def behind(self, member: SetMember) -> int | None:
        """Return the number of bytes that a member lacks of the master's log, or of the longest known log."""
        ends = [one.end for one in self.members if one.end is not None]
        whole = self.master.end if self.master is not None else max(ends, default=None)
        return None if whole is None or member.end is None else max(whole - member.end, 0)

    @property
    def unconfirmed(self) -> int | None:
        """The number of bytes that the master has not confirmed yet; ``None`` without a master."""
        said = None if self.master is None else self.master.status
        return None if said is None else max(said.end - said.confirmed, 0)

    @property
    def min_in_sync(self) -> int | None:
        """The number of members that must be in sync before the set accepts messages."""
        said = self.master or next((one for one in self.members if one.status is not None), None)
        return None if said is None or said.status is None else said.status.min_in_sync

    @property
    def engine(self) -> str:
        """The kind of engine that keeps the document."""
        return next((one.status.engine for one in self.members if one.status is not None), "")

    @property
    def engine_trouble(self) -> str:
        """The reason why the engine answers no member, or not the master; empty if it does."""
        asked = [self.master] if self.master is not None else self.members
        said = [one.status.engine_trouble for one in asked if one is not None and one.status is not None]
        return said[0] if said and all(said) else ""

    @property
    def is_whole(self) -> bool:
        """Return whether the set has a master, and all its members answer, work and are in sync."""
        works = (one.in_sync and _state(one) not in ("", HALTED) for one in self.members)
        return self.master is not None and all(works)

    def to_do(self) -> list[str]:
        """Return what a person must do, or should know, the most urgent first."""
        found = [
            f"{one.name} has halted: {one.status.reason} ({one.status.next_step})"
            for one in self.members
            if one.status is not None and one.status.state == HALTED
        ]
        if self.master is None:
            found.insert(0, self._without_master())
        else:
            status = self.master.status
            assert status is not None
            if status.refusal:
                found.append(f"{self.master.name} refuses messages: {status.refusal}")
            if self.engine_trouble:
                found.append(
                    f"the engine does not answer ({self.engine_trouble}): the set goes on, but cannot replace a member "
                    f"that dies (repair {status.engine})"
                )
        alive = self._alive()
        for one in self.members:
            if one.status is not None and one.status.trouble and one.status.state != HALTED:
                found.append(f"{one.name}: {one.status.trouble}")
            if one.problem:
                there = alive.get(one.name)
                step = "start it" if there is None else "it was alive a moment ago: look again, then start it"
                if there is not None and there.trouble:
                    step = f"it is alive, and says: {there.trouble}"
                found.append(f"{one.name} does not answer: {one.problem} ({step})")
        return found

    def _without_master(self) -> str:
        """Say why no member is the master, and what to do."""
        if self.document is None:
            return f"{self.name} has no master: no member has read the set's document (see why below)"
        elected = self.document.master.rpartition("#")[0]
        there = self._alive().get(elected)
        if there is not None and there.serves == self.document.epoch and self.member(elected) is not None:
            return f"{self.name} has no master at the moment: {elected} takes office, or has just died (look again)"
        here = {one.status.member: one for one in self.members if one.status is not None}
        electable = [name for name in self.document.in_sync if name in here and _state(here[name]) in _CAN_STAND]
        if electable and self.engine_trouble:
            return f"{self.name} has no master: the engine does not answer ({self.engine_trouble}); repair it"
        if electable:
            return f"{self.name} has no master at the moment: {', '.join(electable)} can be elected, within seconds"
        lost = [name for name in self.document.in_sync if name not in here]
        if not lost:
            return f"{self.name} has no master, and waits for a person: {', '.join(self.document.in_sync)} have halted"
        why = "; ".join(self._whereabouts(name) for name in lost)
        longest = self.longest
        step = f"start {' or '.join(name.rpartition('#')[0] for name in lost)}"
        if longest is not None:
            step += (
                f". If that is impossible, accept the loss of messages: cometmq failover force -b {self.name} "
                f"--member {longest.name}, which has the longest log ({longest.end} bytes, epoch "
                f"{longest.rank[0]})"
            )
        return f"{self.name} has no master, and nobody may be elected: {why} ({step})"

    def _alive(self) -> dict[str, FailoverPresence]:
        """Return the presences of the members whose leases the engine still has, by name."""
        newest = max(
            (one.status for one in self.members if one.status is not None), key=lambda one: one.epoch, default=None
        )
        return {} if newest is None else {one.member.rpartition("#")[0]: one for one in newest.presences}

    def _whereabouts(self, name: str) -> str:
        plain = name.rpartition("#")[0]
        now = self.member(plain)
        if now is not None and now.status is not None:
            return f"{plain} lost its power with unflushed bytes, or its disk: it is {now.status.member}, not {name}"
        return f"{name} does not answer"


def _state(member: SetMember) -> str:
    return "" if member.status is None else member.status.state


async def find_sets(
    admin: Admin, broker: str | None = None, servers: Sequence[str] = (), *, timeout_s: float | None = None
) -> tuple[list[BrokerSet], dict[str, str]]:
    """Ask all members of all sets, or of one set, for their status.

    Members are found by the nameserver and, as soon as one has answered, by the set's document.

    :param servers: ``host:port`` of members to ask instead of those that the nameserver knows.
    :param timeout_s: seconds for each member; by default those of all requests.
    :return: the sets, and the reasons for brokers that did not answer and belong to no known set, by broker name.
    :raises ClientError: no broker with failover answers.
    """
    known = dict.fromkeys(servers, broker or "") if servers else await _registered(admin, broker)
    answers: dict[str, FailoverStatus | str] = {}
    asked = set(known)
    while asked:
        found = await gathered({address: _ask(admin, address, timeout_s) for address in asked})
        answers |= {address: answer for address, answer in found.items() if answer is not None}
        statuses = [one for one in found.values() if isinstance(one, FailoverStatus)]
        asked = _addresses(statuses) - answers.keys() - asked
    views = [one for one in answers.values() if isinstance(one, FailoverStatus) and broker in (None, one.broker_name)]
    names = sorted({(one.cluster, one.broker_name) for one in views})
    sets = [_combined(cluster, name, answers, known) for cluster, name in names]
    mute = {
        known[address] or address: answer
        for address, answer in answers.items()
        if isinstance(answer, str) and known.get(address, "") not in {name for _, name in names} and address in known
    }
    if not sets:
        raise _nobody(broker, mute)
    return sets, mute


def _nobody(broker: str | None, mute: Mapping[str, str]) -> ClientError:
    if mute:
        name, reason = next(iter(mute.items()))
        return ClientError(
            f"no member of {broker or 'a set'} answers: {name}: {reason}",
            next_step="start a member, or name one with --server HOST:PORT",
        )
    return ClientError(
        f"{broker or 'no broker'} has {'no ' if broker else ''}failover",
        next_step="set failover=etcd or failover=kubernetes in broker.conf of its members, or name a member with "
        "--server HOST:PORT",
    )


async def _registered(admin: Admin, broker: str | None) -> dict[str, str]:
    """Return the broker name by address, also of those that have recently gone."""
    info = await admin.cluster_info()
    found = {address: name for name, data in info.broker_addr_table.items() for address in data.broker_addrs.values()}
    found |= {gone.broker_addr: gone.broker_name for gone in info.gone_brokers or [] if gone.broker_addr}
    chosen = {address: name for address, name in found.items() if broker in (None, name)}
    if not chosen and broker is not None:
        names = ", ".join(sorted(info.broker_addr_table)) or "none"
        raise ClientError(
            f"the nameserver does not know broker {broker}, it knows {names}",
            next_step="name a member of the set with --server HOST:PORT",
        )
    return chosen


async def _ask(admin: Admin, address: str, timeout_s: float | None) -> FailoverStatus | str | None:
    """Return a member's status, the reason why it does not answer, or ``None`` for a broker without failover."""
    try:
        return await admin.failover_status(address, timeout_s=timeout_s)
    except BrokerError as error:
        return None if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED else error.message
    except RemotingError as error:
        return error.message


def _addresses(statuses: Iterable[FailoverStatus]) -> set[str]:
    found = {one.address for status in statuses for one in status.presences}
    return found | {one.address for status in statuses if status.document for one in status.document.replicas}


def _combined(
    cluster: str, name: str, answers: Mapping[str, FailoverStatus | str], known: Mapping[str, str]
) -> BrokerSet:
    statuses = {
        address: one
        for address, one in answers.items()
        if isinstance(one, FailoverStatus) and (one.cluster, one.broker_name) == (cluster, name)
    }
    documents = [one.document for one in statuses.values() if one.document is not None]
    document = max(documents, key=lambda one: (one.epoch, one.serial), default=None)
    members = [SetMember(one.member.rpartition("#")[0], address, one) for address, one in statuses.items()]
    shown = {one.name for one in members}
    for replica in document.replicas if document is not None else []:
        if replica.name not in shown:
            reason = answers.get(replica.address)
            problem = reason if isinstance(reason, str) else "another broker answers at its address"
            members.append(SetMember(replica.name, replica.address, problem=problem))
    places = {one.address for one in members}
    members += [
        SetMember(address, address, problem=answer)
        for address, answer in answers.items()
        if isinstance(answer, str) and known.get(address) == name and address not in places
    ]
    in_sync = set() if document is None else set(document.in_sync)
    combined = BrokerSet(cluster, name, tuple(members), document, _changes(statuses.values()))
    reports = [] if combined.master is None or combined.master.status is None else combined.master.status.progress
    reported = {one.member.rpartition("#")[0]: one for one in reports}
    filled = [
        replace(
            one,
            in_sync=(one.status.member in in_sync)
            if one.status is not None
            else any(entry.rpartition("#")[0] == one.name for entry in in_sync),
            reported=reported.get(one.name),
        )
        for one in members
    ]
    return replace(combined, members=tuple(sorted(filled, key=lambda one: (one.status is None, one.name))))


def _changes(statuses: Iterable[FailoverStatus]) -> tuple[FailoverChange, ...]:
    found = {(change.epoch, change.serial): change for status in statuses for change in status.changes}
    return tuple(found[order] for order in sorted(found, reverse=True)[:CHANGES_SHOWN])
