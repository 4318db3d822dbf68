"""The route tables: who may enter, what they hold, and what is left when brokers go."""

from __future__ import annotations

import pytest
from tests.namesrv.registering import MASTER, SLAVE, register
from tests.namesrv.wire import topic

from cometmq.limits import MAX_NAMESRV_TOPICS
from cometmq.loop import finish
from cometmq.message.sysflag import TOPIC_UNIT, TOPIC_UNIT_SUB
from cometmq.namesrv.limits import MAX_NAMESRV_BROKERS
from cometmq.namesrv.routes import BrokerIdentity, Registered, RegistrationError, RouteTable
from cometmq.remoting.bodies import DataVersion


def addresses(table: RouteTable, name: str) -> dict[int, str]:
    route = table.route(name)
    assert route is not None
    return {broker_id: address for broker in route.broker_datas for broker_id, address in broker.broker_addrs.items()}


def test_a_slave_learns_its_master_and_appears_beside_it() -> None:
    table = RouteTable()
    assert register(table, MASTER, topic("T")) == Registered(is_new=True)
    assert register(table, MASTER, topic("T")) == Registered()
    assert register(table, SLAVE) == Registered("10.0.0.1:10911", "10.0.0.1:10911-ha", is_new=True)
    assert addresses(table, "T") == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}


def test_topics_of_a_slave_do_not_count() -> None:
    table = RouteTable()
    register(table, SLAVE, topic("T"))
    assert table.route("T") is None


def test_a_known_version_changes_nothing_but_adds_what_is_missing() -> None:
    table = RouteTable()
    register(table, MASTER, topic("T", queues=4), counter=1)
    register(table, MASTER, {**topic("T", queues=8), **topic("Missed")}, counter=1)
    route = table.route("T")
    assert route is not None
    assert route.queue_datas[0].read_queue_nums == 4
    assert table.route("Missed") is not None
    register(table, MASTER, topic("T", queues=8), counter=2)
    route = table.route("T")
    assert route is not None
    assert route.queue_datas[0].read_queue_nums == 8


def test_a_part_of_the_table_removes_nothing() -> None:
    table = RouteTable()
    register(table, MASTER, {**topic("A"), **topic("B")}, counter=1)
    register(table, MASTER, topic("C"), counter=2)
    assert set(table.topics()) == {"A", "B", "C"}


def test_an_address_holds_one_broker_id() -> None:
    table = RouteTable()
    register(table, SLAVE)
    register(table, BrokerIdentity("C", "a", 0, SLAVE.address), topic("T"))
    assert addresses(table, "T") == {0: SLAVE.address}


def test_a_broker_that_moves_to_another_cluster_leaves_the_first() -> None:
    table = RouteTable()
    register(table, MASTER, topic("T"))
    register(table, BrokerIdentity("D", "a", 0, MASTER.address))
    info = table.cluster_info()
    assert info.cluster_addr_table == {"D": ["a"]}
    assert info.broker_addr_table["a"].cluster == "D"


def test_a_broker_that_changed_its_name_is_not_known_by_the_old_one() -> None:
    table = RouteTable()
    register(table, MASTER, topic("T"))
    register(table, BrokerIdentity("C", "renamed", 0, MASTER.address), topic("T"))
    assert table.cluster_info().cluster_addr_table == {"C": ["renamed"]}
    route = table.route("T")
    assert route is not None
    assert [queue.broker_name for queue in route.queue_datas] == ["renamed"]


def test_the_last_address_takes_the_topics_with_it() -> None:
    table = RouteTable()
    register(table, MASTER, topic("T"))
    register(table, SLAVE)
    table.unregister(MASTER)
    assert addresses(table, "T") == {1: SLAVE.address}
    table.unregister(SLAVE)
    assert table.topics() == []
    assert table.cluster_info().cluster_addr_table == {}


def test_an_old_instance_cannot_unregister_the_new_one() -> None:
    table = RouteTable()
    register(table, MASTER, topic("T"))
    successor = BrokerIdentity("C", "a", 0, "10.0.0.9:10911")
    register(table, successor, topic("T"))
    table.unregister(MASTER)
    assert addresses(table, "T") == {0: successor.address}


def test_a_closed_connection_takes_out_the_brokers_that_registered_last_by_it() -> None:
    table = RouteTable()
    first, second = object(), object()
    register(table, MASTER, topic("T"), connection=first)
    register(table, MASTER, connection=second)
    assert table.brokers_of(first) == []
    assert not table.remove_if_from(MASTER, first)
    assert table.brokers_of(second) == [MASTER]
    assert table.remove_if_from(MASTER, second)
    assert table.route("T") is None


def test_an_unchanged_data_version_is_a_sign_of_life() -> None:
    table = RouteTable()
    version = DataVersion(counter=3, timestamp=1)
    assert table.query_data_version(MASTER, version, 0.0) == (True, None)
    register(table, MASTER, counter=3, now_s=0.0)
    assert table.query_data_version(MASTER, version, 100.0) == (False, version)
    assert table.query_data_version(MASTER, DataVersion(counter=4, timestamp=1), 200.0) == (True, version)
    assert table.expire(99.0) == []
    assert [live.identity for live in table.expire(101.0)] == [MASTER]


def test_topics_that_were_removed_here_count_as_changed_until_the_whole_table_comes() -> None:
    table = RouteTable()
    register(table, MASTER, {**topic("T"), **topic("U")}, counter=3)
    table.delete_topic("T")
    version = DataVersion(counter=3, timestamp=1)
    assert table.query_data_version(MASTER, version, 1.0) == (True, version)
    register(table, MASTER, topic("New"), counter=4)  # a part, after a change
    assert table.query_data_version(MASTER, DataVersion(counter=4, timestamp=1), 1.0)[0]
    register(table, MASTER, {**topic("T"), **topic("U"), **topic("New")}, counter=4)
    assert not table.query_data_version(MASTER, DataVersion(counter=4, timestamp=1), 1.0)[0]
    assert table.route("T") is not None


def test_a_broker_whose_place_another_had_registers_anew() -> None:
    table = RouteTable()
    rival = BrokerIdentity("C", "a", 0, "10.0.0.9:10911")
    register(table, MASTER, topic("T"))
    register(table, rival, topic("T"))
    version = DataVersion(counter=0, timestamp=1)
    assert table.query_data_version(MASTER, version, 1.0) == (True, version)
    table.unregister(rival)
    assert table.query_data_version(MASTER, version, 1.0) == (True, version)
    register(table, MASTER, topic("T"))
    assert table.query_data_version(MASTER, version, 1.0) == (False, version)
    assert addresses(table, "T") == {0: MASTER.address}


def test_write_permission_can_be_wiped_and_given_back() -> None:
    table = RouteTable()
    register(table, MASTER, {**topic("T"), **topic("X", perm=7)})
    assert finish(table.wipe_write_perm("a")) == 2
    route = table.route("T")
    assert route is not None
    assert route.queue_datas[0].perm == 4
    assert finish(table.add_write_perm("a")) == 2
    route = table.route("X")
    assert route is not None
    assert route.queue_datas[0].perm == 6
    assert finish(table.wipe_write_perm("nobody")) == 0


def test_a_topic_can_be_deleted_everywhere_or_in_one_cluster() -> None:
    table = RouteTable()
    other = BrokerIdentity("D", "b", 0, "10.0.0.3:10911")
    register(table, MASTER, topic("T"))
    register(table, other, topic("T"))
    table.delete_topic("T", "C")
    assert addresses(table, "T") == {0: other.address}
    assert table.topics_of_cluster("C") == []
    assert table.topics_of_cluster("D") == ["T"]
    table.delete_topic("T")
    table.delete_topic("T")
    assert table.route("T") is None


def test_unit_topics_are_found_by_their_flag() -> None:
    table = RouteTable()
    register(table, MASTER, {**topic("U", flag=1), **topic("S", flag=2), **topic("B", flag=3), **topic("N")})
    assert set(table.topics_with_flag(TOPIC_UNIT)) == {"U", "B"}
    assert set(table.topics_with_flag(TOPIC_UNIT_SUB)) == {"S", "B"}
    assert table.topics_with_flag(TOPIC_UNIT_SUB, TOPIC_UNIT) == ["S"]


@pytest.mark.parametrize(
    "identity",
    [
        BrokerIdentity("", "a", 0, "10.0.0.1:1"),
        BrokerIdentity("C", "a\x1bb", 0, "10.0.0.1:1"),
        BrokerIdentity("C", "a\u2028b", 0, "10.0.0.1:1"),
        BrokerIdentity("C", "../x", 0, "10.0.0.1:1"),
        BrokerIdentity("C", "x" * 128, 0, "10.0.0.1:1"),
        BrokerIdentity("C", "a", -1, "10.0.0.1:1"),
        BrokerIdentity("C", "a", 0, "10.0.0.1"),
        BrokerIdentity("C", "a", 0, "10.0.0.1:0"),
        BrokerIdentity("C", "a", 0, "10.0.0.1:70000"),
    ],
)
def test_impossible_identities_are_refused_and_leave_nothing(identity: BrokerIdentity) -> None:
    table = RouteTable()
    with pytest.raises(RegistrationError):
        register(table, identity, topic("T"))
    assert table.topics() == []
    assert table.cluster_info().broker_addr_table == {}


@pytest.mark.parametrize("name", ["a ", "broker-a  # the first", "broker\u2010a", "消息", '"a"', "-|:@+%"])
def test_names_that_apaches_brokers_take_are_registered(name: str) -> None:
    table = RouteTable()
    register(table, BrokerIdentity(name, name, 0, "10.0.0.1:1"), topic("T"))
    assert table.cluster_info().broker_addr_table.keys() == {name}


def test_topics_with_impossible_names_or_numbers_are_left_out_and_named() -> None:
    table = RouteTable()
    outcome = register(
        table, MASTER, {**topic("../x"), **topic("T"), **topic("N", queues=-1), **topic("H", queues=65_536)}
    )
    assert sorted(outcome.skipped_topics) == ["../x", "H", "N"]
    assert table.topics() == ["T"]


def test_numbers_of_topics_and_brokers_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_NAMESRV_TOPICS > 10_000
    assert MAX_NAMESRV_BROKERS > 100
    monkeypatch.setattr("cometmq.namesrv.routes.MAX_NAMESRV_TOPICS", 2)
    monkeypatch.setattr("cometmq.namesrv.routes.MAX_NAMESRV_BROKERS", 1)
    table = RouteTable()
    with pytest.raises(RegistrationError, match="maximum of 2 topics"):
        register(table, MASTER, {**topic("A"), **topic("B"), **topic("C")})
    register(table, MASTER, {**topic("A"), **topic("B")})
    with pytest.raises(RegistrationError, match="already has the maximum of 1 brokers"):
        register(table, SLAVE)
