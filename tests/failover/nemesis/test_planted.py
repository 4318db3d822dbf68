"""The nemesis finds a broker that acknowledges before it has replicated, and nothing in one that waits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.failover.checker.findings import Finding, report
from tests.failover.checker.history import History
from tests.failover.checker.queues import check_queues, totals
from tests.failover.checker.replicas import check_replicas, read_log
from tests.failover.nemesis.load import SHORT_PAUSE_S, Load, LoadOptions, read_all, wait_for_sends
from tests.failover.nemesis.relays import Relays, Route
from tests.helpers.waiting import block_for, wait_for

from cometmq.message.hosts import parse_address
from cometmq.message.ports import HA_PORT_DISTANCE
from cometmq.testing import ProcessCluster
from cometmq.testing.cluster_keys import HOST, LINK_HOST

pytestmark = pytest.mark.crash

QUEUES = 4
PATIENCE_S = 60.0
CUT_S = 1.0
ENOUGH = 50


def run(role: str, data: Path) -> tuple[History, list[Finding]]:
    """Cut the slave off under load, kill the master, and promote the slave."""
    history = History()
    keys = {"brokerRole": role, "brokerIP2": LINK_HOST, "slaveTimeout": "2000"}
    cluster = ProcessCluster(slaves=1, data=data, broker_keys=keys)
    relays = Relays(lambda: {"slave": cluster.slaves[0, 1].pid or 0})
    options = LoadOptions(
        [cluster.namesrv_address], lambda address: address, queues=QUEUES, own_producers=0, pause_s=SHORT_PAUSE_S
    )
    with relays.running(), cluster:
        relays.open([ha_route(cluster)])
        with Load(history, options).running() as load:
            wait_for(lambda: load.acknowledged > ENOUGH, "messages are acknowledged", PATIENCE_S)
            history.note("the slave is cut off")
            relays.cut(("master", "slave"))
            if role == "SYNC_MASTER":  # it acknowledges nothing more
                block_for(CUT_S)
            else:
                before = load.acknowledged
                wait_for(lambda: load.acknowledged > before + ENOUGH, "messages that nobody copies", PATIENCE_S)
            history.note("the master is killed")
            cluster.kill_broker(0)
        cluster.promote_slave()
        relays.heal(resets=True)
        relays.open([ha_route(cluster)])
        cluster.empty_slave()
        cluster.start_slave()
        with Load(history, replace(options, prefix="again-")).running() as load:
            wait_for_sends(load, PATIENCE_S)
        for poll in read_all(cluster.broker_addresses[0], QUEUES, "promoted"):
            history.add(poll)
        cluster.kill()
    logs = {"master": read_log(cluster.store_root(0)), "slave": read_log(data / "broker-0")}
    confirmed = max(one.log_offset for one in history.sends if one.log_offset is not None) + 1
    return history, [*check_queues(history), *check_replicas(logs, confirmed)]


def ha_route(cluster: ProcessCluster) -> Route:
    """Return the way to the master's replication port."""
    port = parse_address(cluster.broker_addresses[0])[1] + HA_PORT_DISTANCE
    return Route((LINK_HOST, port), (HOST, port), "master")


def test_a_broker_that_acknowledges_before_replication_is_found(tmp_path: Path) -> None:
    history, findings = run("ASYNC_MASTER", tmp_path)
    kinds = {one.kind for one in findings}
    assert kinds & {"lost", "unseen"}, f"{totals(history)}: {report(history, findings)}"


def test_a_pair_that_waits_loses_nothing_but_has_shown_what_vanished(tmp_path: Path) -> None:
    """Without failover, consumers read what the slave may not have, as in Apache."""
    history, findings = run("SYNC_MASTER", tmp_path)
    assert {one.kind for one in findings} <= {"inconsistent offsets"}, report(history, findings)
    assert totals(history).acknowledged > ENOUGH
