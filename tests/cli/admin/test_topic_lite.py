"""cometmq topic lite: list, describe, lag, client and expire, with a broker."""

from __future__ import annotations

import pytest
from tests.cli.admin.conftest import Run

from cometmq.broker.controller import Broker
from cometmq.cli.connection import ask_cometmq_broker
from cometmq.client import Admin, LiteTopicConsumer, Message, Producer
from cometmq.client.errors import BrokerError
from cometmq.errors import CometMQError
from cometmq.namesrv.server import NameServer

LITE = ("topic", "lite")


@pytest.fixture
async def namesrv(servers: tuple[NameServer, Broker], run: Run) -> str:
    """A parent topic with messages in three lite topics, and a group."""
    address = servers[0].address
    async with Admin(address) as admin, Producer("producers", address) as producer:
        await admin.create_lite_topic("sessions", queues=1, expiration_minutes=60)
        await admin.create_lite_group("agents", "sessions")
        for name in ("job-1", "job-2", "other"):
            await producer.send(Message("sessions", b"x", lite_topic=name))
    return address


async def test_lite_topics_are_listed_by_prefix_in_pages(run: Run, namesrv: str) -> None:
    listed = (await run(*LITE, "list", "sessions", "--prefix", "job-", "-o", "json")).json()
    assert [(row["lite_topic"], row["messages"], row["subscribers"]) for row in listed] == [
        ("job-1", 1, 0),
        ("job-2", 1, 0),
    ]
    first = await run(*LITE, "list", "sessions", "--limit", "2", "-o", "json")
    assert "--page 2" in first.err
    second = await run(*LITE, "list", "sessions", "--limit", "2", "--page", "2", "-o", "json")
    assert sorted(row["lite_topic"] for row in first.json() + second.json()) == ["job-1", "job-2", "other"]
    plain = await run(*LITE, "list", "TBW102")
    assert plain.code == 1
    assert "type not match" in plain.err


async def test_what_is_read_and_lags_is_shown(run: Run, namesrv: str) -> None:
    async with LiteTopicConsumer("agents", "sessions", namesrv=namesrv) as reader:
        await reader.subscribe("job-1")
        (parent,) = (await run(*LITE, "describe", "sessions", "-o", "json")).json()
        assert (parent["expiration_minutes"], parent["groups"], parent["lite_topics"]) == (60, ["agents"], 3)
        client_id = reader.instance.client_id
        (one,) = (await run(*LITE, "describe", "sessions", "job-1", "-o", "json")).json()
        assert (one["max_offset"], one["clients"]) == (1, [f"{client_id} (agents)"])
        (row,) = (await run(*LITE, "client", "sessions", "agents", client_id, "-o", "json")).json()
        assert row["lite_topic"] == "job-1"
        lags = (await run(*LITE, "lag", "sessions", "agents", "-o", "json")).json()
        assert {row["lite_topic"]: row["lag"] for row in lags} == {"job-1": 1, "job-2": 1, "other": 1}
        (lag,) = (await run(*LITE, "lag", "sessions", "agents", "--lite", "job-2", "-o", "json")).json()
        assert lag["lag"] == 1
        kept = await run(*LITE, "expire", "sessions", "job-1", "other", "--with-unread", "--yes")
        assert "Removed 1 lite topic" in kept.err
        assert "Kept 1 lite topic that a client reads" in kept.err
    unknown = await run(*LITE, "client", "sessions", "agents", "nobody")
    assert (unknown.code, "no broker knows the client nobody" in unknown.err) == (1, True)
    missing = await run(*LITE, "describe", "sessions", "no")
    assert (missing.code, "no broker has messages" in missing.err) == (1, True)


async def test_lite_topics_are_removed_by_name_and_prefix(run: Run, namesrv: str) -> None:
    asked = await run(*LITE, "expire", "sessions", "job-1")
    assert (asked.code, "--yes" in asked.err) == (2, True)
    unread = await run(*LITE, "expire", "sessions", "--prefix", "job-", "--yes")
    assert "Kept 2 lite topics with unread messages" in unread.err
    gone = await run(*LITE, "expire", "sessions", "--prefix", "job-", "--with-unread", "--yes")
    assert "Removed 2 lite topics" in gone.err
    listed = (await run(*LITE, "list", "sessions", "-o", "json")).json()
    assert [row["lite_topic"] for row in listed] == ["other"]
    for wrong in (("sessions",), ("sessions", "a", "--prefix", "b"), ("sessions", "a$b")):
        assert (await run(*LITE, "expire", *wrong, "--yes")).code == 2


async def test_apaches_brokers_cannot_list_lite_topics() -> None:
    """An Apache broker does not know the code."""

    async def refused() -> None:
        raise BrokerError("127.0.0.1:10911", 3, " request type 30048 not supported", "listing")

    with pytest.raises(CometMQError, match="broker of topic t cannot list lite topics"):
        await ask_cometmq_broker("of topic t", refused(), "list lite topics", "use lag")
