"""Quotas go over to the members of a set."""

from __future__ import annotations

from tests.broker.conftest import ConnectTo
from tests.broker.replication.members.conftest import Follower, Master
from tests.broker.replication.members.test_pair import follow, has_all

from cometmq.auth.quota.model import Limits, Subject
from cometmq.auth.quota.table import QuotaTable
from cometmq.remoting.admin_headers import DeleteQuotaRequestHeader, PutQuotaRequestHeader
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.testing import VirtualClock, wait_until

WITHIN_S = 12
"""The quotas are copied every ten seconds."""


def quotas(one: Master | Follower) -> QuotaTable:
    return one.broker._context.limiter.table


async def test_changes_of_quotas_go_over_also_those_that_a_member_has_missed(
    master: Master, follower: Follower, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    quotas(follower).use({Subject.parse("group:gone"): Limits(topics=1)})
    wire = await connect_to(master.broker)
    put = PutQuotaRequestHeader(subject="group:g", connections=5)
    assert (await wire.call(RequestCode.PUT_QUOTA, put)).code == ResponseCode.SUCCESS
    follow(follower, master)
    await has_all(follower, master, clock)

    def is_same() -> bool:
        return quotas(follower).limits == quotas(master).limits

    assert await wait_until(clock, is_same, WITHIN_S), follower.broker.slave.tables.trouble
    assert quotas(follower).limits == {Subject.parse("group:g"): Limits(connections=5)}
    assert QuotaTable(quotas(follower).path).limits == quotas(master).limits, "in the file, too"
    version = quotas(follower).version
    await clock.run_for(WITHIN_S)
    assert quotas(follower).version == version, "nothing is written while nothing changes"
    gone = DeleteQuotaRequestHeader(subject="group:g")
    assert (await wire.call(RequestCode.DELETE_QUOTA, gone)).code == ResponseCode.SUCCESS
    assert await wait_until(clock, lambda: not quotas(follower).limits, WITHIN_S)
    assert follower.broker.slave.tables.trouble == ""
