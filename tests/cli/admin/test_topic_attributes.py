"""cometmq topic create, alter and describe: the attributes of RocketMQ 5."""

from __future__ import annotations

import pytest
from tests.cli.admin.conftest import Run

from cometmq.broker.controller import Broker
from cometmq.namesrv.server import NameServer

ALTER = ("topic", "alter", "t")


async def test_attributes_are_set_changed_and_removed(run: Run, servers: tuple[NameServer, Broker]) -> None:
    given = ("--attribute", "lite.topic.expiration=60", "--attribute", "reserve.time=72", "--type", "LITE")
    made = await run("topic", "create", "t", *given)
    assert made.code == 0, made.err

    def attributes() -> object:
        return servers[1].topics.table["t"].attributes

    assert attributes() == {"lite.topic.expiration": "60", "reserve.time": "72", "message.type": "LITE"}
    again = await run("topic", "create", "t", "--attribute", "reserve.time=72")
    assert (again.code, "already exists with these settings" in again.err) == (0, True)
    other = await run("topic", "create", "t", "--attribute", "reserve.time=48")
    assert (other.code, "reserve.time 72" in other.err) == (1, True)
    shown = await run(*ALTER, "--attribute", "lite.topic.expiration=90", "--attribute", "reserve.time=", "--dry-run")
    assert shown.code == 0
    lines = [line.split()[1:] for line in shown.out.splitlines()]
    assert ["lite.topic.expiration", "60", "90"] in lines
    assert ["reserve.time", "72", "–"] in lines
    assert attributes() == {"lite.topic.expiration": "60", "reserve.time": "72", "message.type": "LITE"}
    changed = await run(*ALTER, "--attribute", "lite.topic.expiration=90", "--attribute", "reserve.time=", "--yes")
    assert changed.code == 0, changed.err
    assert attributes() == {"lite.topic.expiration": "90", "message.type": "LITE"}
    assert (await run(*ALTER, "--queues", "3", "--yes")).code == 0
    assert attributes() == {"lite.topic.expiration": "90", "message.type": "LITE"}
    emptied = await run(*ALTER, "--attribute", "lite.topic.expiration=", "--attribute", "message.type=", "--yes")
    assert emptied.code == 0, emptied.err
    assert not attributes()


async def test_attributes_are_described(run: Run) -> None:
    assert (await run("topic", "create", "t", "--attribute", "reserve.time=72")).code == 0
    (row,) = (await run("topic", "describe", "t", "-o", "json")).json()
    assert (row["type"], row["attributes"]) == ("NORMAL", {"reserve.time": "72"})
    assert "reserve.time=72" in (await run("topic", "describe", "t")).out
    assert (await run("topic", "create", "plain")).code == 0
    assert "Attributes" not in (await run("topic", "describe", "plain")).out


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ("reserve.time=x", 'For input string: "x"'),
        ("reserve.time=-2", "value is not in range(-1, 9223372036854775807)"),
        ("message.type=LIGHT", "value is not in set: [UNSPECIFIED, MIXED, TRANSACTION, PRIORITY, FIFO, DELAY, LITE"),
        ("queue.type=BatchCQ", "value is not in set: [SimpleCQ]"),
        ("cleanup.policy=COMPACTION", "an archive with a key index keeps and finds a key's messages"),
        ("lite.topic.expiration=43201", "value is not in range(-1, 43200)"),
        ("no.such=1", "unsupported key: no.such"),
    ],
)
async def test_a_broker_refuses_an_attribute_with_apaches_words(run: Run, attribute: str, words: str) -> None:
    refused = await run("topic", "create", "t", "--attribute", attribute)
    assert (refused.code, words in refused.err) == (1, True), refused.err
    assert (await run("topic", "create", "t")).code == 0, "nothing was created"
    refused = await run(*ALTER, "--attribute", attribute, "--yes")
    unchangeable = attribute.startswith("queue.type")
    assert (refused.code, ("unchangeable attribute" if unchangeable else words) in refused.err) == (1, True)


async def test_wrong_uses_of_the_option_are_named(run: Run) -> None:
    wrong = await run("topic", "create", "t", "--attribute", "reserve.time")
    assert (wrong.code, "write it as KEY=VALUE" in wrong.err) == (2, True)
    twice = await run("topic", "create", "t", "--type", "FIFO", "--attribute", "message.type=LITE")
    assert (twice.code, "message.type already has the value LITE" in twice.err) == (2, True)
