"""Asks followers to copy the tables, and answers changes of tables once the in-sync set has them.

A change of a topic or a group is not in the log. So a master answers it only once each member that counts has copied
the tables after the change; then the next master has it. A follower also copies the tables once before its reports
count, because a member with an old table must not join the in-sync set.

Each change has a number. A connection has at most one question at a time, so that an answer belongs to the newest
question: the follower has everything up to the number that the question had.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from cometmq.broker.failover.document import Member
from cometmq.broker.limits import TABLE_COPY_LOOK_SECONDS, TABLE_COPY_SECONDS
from cometmq.broker.replication.ha_connection import HAConnection
from cometmq.broker.replication.members import MasterSide
from cometmq.broker.tables.table_writer import NotCopiedError, OnWritten
from cometmq.clock import Clock
from cometmq.periodic import Alarm

_NOT_MASTER: Final = NotCopiedError("this member is not the master any more", next_step="repeat the request")


class _Waiter(NamedTuple):
    number: int
    callback: OnWritten
    ends_at: float
    only: Member | None


class TableNews:
    """The changes of tables for which answers wait.

    :param connections: the followers' connections by the name of the replica.
    """

    def __init__(self, side: MasterSide, clock: Clock, connections: Mapping[str, HAConnection]) -> None:
        self._side = side
        self._clock = clock
        self._connections: Final = connections
        self._number = 0
        self._waiting: deque[_Waiter] = deque()
        self._alarm = Alarm(self._look, clock=clock)
        self._is_stopped = False

    def wait(self, callback: OnWritten, *, only: Member | None = None, limit_s: float = TABLE_COPY_SECONDS) -> None:
        """Call a function once the members that count have copied all changes made so far, or with the reason why not.

        :param only: wait for this member, and for no other.
        """
        if self._is_stopped:
            callback(_NOT_MASTER)
            return
        self._number += 1
        self._waiting.append(_Waiter(self._number, callback, self._clock.monotonic() + limit_s, only))
        for slave in list(self._connections.values()):
            self._ask(slave)
        self._settle()
        self._look_later()

    def began(self, slave: HAConnection) -> None:
        """Ask a follower that has connected."""
        self._ask(slave)

    def copied(self, slave: HAConnection) -> None:
        """Handle a follower's answer."""
        if slave.tables_asked is None:
            return
        slave.tables_copied, slave.tables_asked = slave.tables_asked, None
        if slave.tables_copied < self._number and self._waiting:
            self._ask(slave)
        self._settle()

    def stop(self) -> None:
        """Wait for nobody any more: this member is not the master any more."""
        self._is_stopped = True
        self._alarm.close()
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            waiter.callback(_NOT_MASTER)

    def _ask(self, slave: HAConnection) -> None:
        if slave.tables_asked is None:
            slave.tables_asked = self._number
            slave.ask_for_tables()

    def _lacking(self, waiter: _Waiter) -> list[str]:
        members = self._side.counted_others if waiter.only is None else frozenset({waiter.only})
        return [member.name for member in members if not self._has(member, waiter.number)]

    def _has(self, member: Member, number: int) -> bool:
        slave = self._connections.get(member.name)
        is_same = slave is not None and slave.follower is not None and slave.follower.member == member
        return is_same and slave is not None and slave.tables_copied >= number

    def _settle(self) -> None:
        """Answer what the members have, and what takes too long."""
        now = self._clock.monotonic()
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            lacking = self._lacking(waiter)
            if not lacking:
                waiter.callback(None)
            elif now >= waiter.ends_at:
                waiter.callback(
                    NotCopiedError(
                        f"the change is made at this master, but not yet at {', '.join(sorted(lacking))}",
                        next_step="repeat the request",
                    )
                )
            else:
                self._waiting.append(waiter)

    def _look_later(self) -> None:
        if self._waiting and not self._alarm.is_set:
            self._alarm.after(TABLE_COPY_LOOK_SECONDS)

    def _look(self) -> None:
        self._settle()
        self._look_later()
