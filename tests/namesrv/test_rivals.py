"""Two live brokers with one name and id: the nameserver says so, and heeds the stateVersion of brokers of 5.x."""

from __future__ import annotations

import logging

import pytest
from tests.helpers.waiting import until
from tests.namesrv.registering import MASTER, SLAVE, register
from tests.namesrv.wire import Connect, topic

from cometmq.namesrv.routes import BrokerIdentity, RouteTable
from cometmq.namesrv.server import NameServer
from cometmq.remoting.bodies import ClusterInfo, decode_body
from cometmq.remoting.codes import RequestCode
from cometmq.testing import VirtualClock

RIVAL = BrokerIdentity("C", "a", 0, "10.0.0.9:10911")


def master_of(table: RouteTable) -> str:
    return table.cluster_info().broker_addr_table["a"].broker_addrs[0]


def test_both_are_told_of_each_other_until_one_is_gone() -> None:
    table = RouteTable()
    assert register(table, MASTER).rival == ""
    assert register(table, SLAVE).rival == ""
    assert table.rivals() == []
    assert register(table, RIVAL).rival == MASTER.address
    assert register(table, MASTER).rival == RIVAL.address
    assert [(rivals.broker_name, rivals.broker_id, rivals.broker_addrs) for rivals in table.rivals()] == [
        ("a", 0, [MASTER.address, RIVAL.address])
    ]
    table.unregister(RIVAL)
    assert table.rivals() == []
    assert register(table, MASTER).rival == ""


def test_a_broker_that_changes_its_id_or_its_name_is_no_rival_of_itself() -> None:
    table = RouteTable()
    register(table, MASTER)
    for identity in (BrokerIdentity("C", "a", 1, MASTER.address), BrokerIdentity("C", "b", 1, MASTER.address), MASTER):
        assert register(table, identity).rival == ""
    assert register(table, SLAVE).rival == ""
    assert table.expire(1.0)
    assert table.rivals() == []


def test_of_two_the_one_with_the_higher_state_version_stays() -> None:
    """As ``RouteInfoManager.registerBroker`` of 5.x."""
    table = RouteTable()
    register(table, MASTER, topic("Old"), state=2)
    ignored = register(table, RIVAL, topic("New"), state=1)
    assert (ignored.is_ignored, ignored.rival, ignored.is_new) == (True, MASTER.address, False)
    assert ignored.rival_state_version == 2
    assert master_of(table) == MASTER.address
    assert table.route("New") is None
    assert table.rivals() == []
    assert not register(table, RIVAL, topic("New"), state=2).is_ignored
    assert master_of(table) == RIVAL.address
    assert not register(table, MASTER, state=3).is_ignored
    assert master_of(table) == MASTER.address
    assert register(table, RIVAL, state=None).is_ignored
    table.unregister(MASTER)
    assert not register(table, RIVAL, state=1).is_ignored, "the other is not live any more"


def test_the_next_master_of_a_set_replaces_the_last_one_without_a_warning() -> None:
    table = RouteTable()
    register(table, MASTER, state=2)
    replaced = register(table, RIVAL, topic("New"), state=3)
    assert (replaced.is_ignored, replaced.rival, replaced.rival_state_version) == (False, "", 0)
    assert master_of(table) == RIVAL.address
    assert table.rivals() == []
    register(table, BrokerIdentity("C", "a", 1, MASTER.address), state=3)
    assert table.cluster_info().broker_addr_table["a"].broker_addrs == {0: RIVAL.address, 1: MASTER.address}


async def test_a_broker_that_is_ignored_learns_the_version_of_the_other(connect: Connect) -> None:
    first, second = await connect(), await connect()
    await first.register(state=7)
    answer = await second.register(address="127.0.0.1:20911", state=6)
    assert (answer.ext_fields["rivalAddr"], answer.ext_fields["rivalStateVersion"]) == ("127.0.0.1:10911", "7")


async def test_the_log_warns_every_minute_and_tools_see_them(
    server: NameServer, connect: Connect, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = await connect(), await connect()

    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]

    assert "rivalAddr" not in (await first.register()).ext_fields
    plain = (await first.call(RequestCode.GET_BROKER_CLUSTER_INFO)).body
    assert b"rivalBrokers" not in plain, "Apache's own answer while there are none"
    answer = await second.register(address="127.0.0.1:20911")
    assert answer.ext_fields["rivalAddr"] == "127.0.0.1:10911"
    assert (await first.register()).ext_fields["rivalAddr"] == "127.0.0.1:20911"
    (warning,) = warnings()
    assert "at 127.0.0.1:20911 and 127.0.0.1:10911, have the name broker-a and the id 0" in warning
    clock.advance(61)
    await first.register()
    assert len(warnings()) == 2
    info = decode_body(ClusterInfo, (await first.call(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
    assert [rivals.broker_addrs for rivals in info.rival_brokers or []] == [["127.0.0.1:10911", "127.0.0.1:20911"]]
    await second.close()
    await until(lambda: not server.routes.rivals())
    assert "rivalAddr" not in (await first.register()).ext_fields
