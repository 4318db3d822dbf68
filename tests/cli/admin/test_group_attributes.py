"""cometmq group create and alter --attribute: the attributes of RocketMQ 5."""

from __future__ import annotations

from tests.cli.admin.conftest import Run

from cometmq.broker.controller import Broker
from cometmq.namesrv.server import NameServer


async def test_attributes_are_set_changed_and_removed(run: Run, servers: tuple[NameServer, Broker]) -> None:
    given = ("--attribute", "priority.factor=50", "--attribute", "lite.bind.topic=sessions")
    made = await run("group", "create", "agents", *given)
    assert made.code == 0, made.err

    def attributes() -> object:
        return servers[1].groups.table["agents"].attributes

    assert attributes() == {"priority.factor": "50", "lite.bind.topic": "sessions"}
    again = await run("group", "create", "agents", *given)
    assert (again.code, "already exists with these settings" in again.err) == (0, True)
    assert (await run("group", "create", "agents")).code == 0
    other = await run("group", "create", "agents", "--attribute", "priority.factor=60")
    assert (other.code, "priority.factor 50" in other.err) == (1, True)
    shown = await run("group", "alter", "agents", "--attribute", "lite.sub.model=Exclusive", "--dry-run")
    assert (shown.code, "lite.sub.model" in shown.out) == (0, True)
    changed = await run(
        *("group", "alter", "agents", "--attribute", "lite.sub.model=Exclusive"),
        *("--attribute", "priority.factor=", "--max-retries", "3", "--yes"),
    )
    assert changed.code == 0, changed.err
    assert attributes() == {"lite.bind.topic": "sessions", "lite.sub.model": "Exclusive"}
    assert (await run("group", "alter", "agents", "--max-retries", "4", "--yes")).code == 0
    assert attributes() == {"lite.bind.topic": "sessions", "lite.sub.model": "Exclusive"}


async def test_attributes_are_described(run: Run, servers: tuple[NameServer, Broker]) -> None:
    given = ("--attribute", "priority.factor=50", "--attribute", "lite.bind.topic=sessions")
    assert (await run("group", "create", "agents", *given, "--max-retries", "3")).code == 0
    shown = await run("group", "describe", "agents")
    assert "Attributes on broker-a: lite.bind.topic=sessions, priority.factor=50." in shown.err
    assert (await run("group", "describe", "agents", "-o", "json")).json() == []
    (row,) = (await run("group", "describe", "agents", "--settings", "-o", "json")).json()
    assert row == {
        "broker": "broker-a",
        "max_retries": 3,
        "retry_queues": 1,
        "consume": True,
        "attributes": {"lite.bind.topic": "sessions", "priority.factor": "50"},
    }
    table = await run("group", "describe", "agents", "--settings")
    assert "lite.bind.topic=sessions" in table.out
    assert (await run("group", "create", "plain")).code == 0
    assert "Attributes" not in (await run("group", "describe", "plain")).err
    missing = await run("group", "describe", "no-such", "--settings")
    assert (missing.code, "group no-such does not exist" in missing.err) == (1, True)


async def test_wrong_attributes_are_refused(run: Run) -> None:
    wrong = await run("group", "create", "agents", "--attribute", "priority.factor")
    assert (wrong.code, "write it as KEY=VALUE" in wrong.err) == (2, True)
    refused = await run("group", "create", "agents", "--attribute", "priority.factor=101")
    assert (refused.code, "value is not in range(0, 100)" in refused.err) == (1, True)
    unknown = await run("group", "create", "agents", "--attribute", "no.such=1")
    assert (unknown.code, "unsupported key: no.such" in unknown.err) == (1, True)
