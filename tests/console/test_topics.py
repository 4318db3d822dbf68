"""The pages about topics."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.consoles import Surfer, console_of
from tests.helpers.pace import is_in_time

from cometmq.client.admin import Admin
from cometmq.message.message import Message
from cometmq.remoting.bodies import TopicConfig
from cometmq.testing.sync import SyncCluster


def test_a_topic_is_created_changed_and_deleted_each_after_a_preview_and_with_a_line_of_audit(surfer: Surfer) -> None:
    plan = surfer.post("/topics/create", topic="made-here", queues=3, permission="rw")
    assert "broker-0 3 rw no" in plan.words
    assert surfer.get("/topics/made-here").status == 404, "the preview changes nothing"
    page = surfer.change("/topics/create", topic="made-here", queues=3, permission="rw")
    assert "Topic made-here is created." in page.words
    assert surfer.audit("topic.create", "made-here")[0]["outcome"] == "done"

    plan = surfer.post("/topics/made-here/alter", write_queues=5)
    assert "broker-1 write queues 3 5" in plan.words
    page = surfer.change("/topics/made-here/alter", write_queues=5)
    assert "broker-0 3 5 rw" in page.words

    plan = surfer.post("/topics/made-here/delete")
    wrong = surfer.post("/topics/made-here/delete", plan, confirmed="yes", typed="made-there")
    assert "The name does not match" in wrong.words
    assert surfer.get("/topics/made-here").status == 200
    page = surfer.change("/topics/made-here/delete", typed="made-here")
    assert "Topic made-here is deleted." in page.words
    assert surfer.get("/topics/made-here").status == 404
    line = surfer.audit("topic.delete", "made-here")[0]
    assert (line["by"], line["from"], line["outcome"]) == ("(no login)", "127.0.0.1", "done")


def test_the_type_of_a_topic_is_chosen_shown_and_changed(surfer: Surfer, cluster: SyncCluster) -> None:
    plan = surfer.post("/topics/create", topic="levels", queues=4, type="PRIORITY")
    assert "broker-0 4 rw no PRIORITY" in plan.words
    surfer.change("/topics/create", topic="levels", queues=4, type="PRIORITY")
    assert "broker-1 4 4 rw PRIORITY" in surfer.get("/topics/levels").words
    plan = surfer.post("/topics/levels/alter", type="FIFO")
    assert "broker-1 message type PRIORITY FIFO" in plan.words
    assert surfer.post("/topics/create", topic="other", type="URGENT").status == 400
    fields: dict[str, Any] = {"topic": "levels", "body": "hello", "priority": 9}
    assert "9" in surfer.post("/messages/send", **fields).words
    surfer.change("/messages/send", **fields)
    sent = next(
        f"/messages/levels/broker-{number}/3/0"
        for number in range(2)
        if surfer.get(f"/messages/levels/broker-{number}/3/0").status == 200
    )
    assert "Priority 9" in surfer.get(sent).words
    assert surfer.post("/messages/send", **(fields | {"priority": -1})).status == 400


def test_no_topic_that_exists_is_changed_by_creating_it(surfer: Surfer, cluster: SyncCluster) -> None:
    cluster.create_topic("there", 2)
    page = surfer.post("/topics/create", topic="there", queues=7)
    assert page.status == 400
    assert "there already exists on broker-0 with 2 queues" in page.words


@pytest.mark.parametrize("name", ["", "a b", "x" * 128, "<b>"])
def test_a_name_that_no_broker_allows_is_refused_with_the_reason(surfer: Surfer, name: str) -> None:
    page = surfer.post("/topics/create", topic=name)
    assert page.status == 400
    assert "<b>" not in page.text.replace("<b></b>", "")


def test_fewer_read_queues_that_hide_messages_are_a_warning_and_need_the_name(
    surfer: Surfer, cluster: SyncCluster
) -> None:
    cluster.create_topic("narrow", 4)
    for number in range(16):
        cluster.send(Message("narrow", b"x", keys=[str(number)]))
    plan = surfer.post("/topics/narrow/alter", read_queues=1)
    assert "would become unreadable" in plan.words
    assert 'name="typed"' in plan.text
    plan = surfer.post("/topics/narrow/alter", read_queues=1, write_queues=1)
    assert "Messages waiting for the queues broker-0/1-3, broker-1/1-3 go to other queues." in plan.words


def test_a_reader_is_offered_no_change_and_gets_none(reader: Surfer, cluster: SyncCluster) -> None:
    cluster.create_topic("kept", 1)
    page = reader.get("/topics/kept")
    assert "read-only" in page.words
    assert "Delete" not in page.words
    token = reader.token
    refused = reader.ask(
        "POST",
        "/topics/kept/delete",
        f"token={token}&confirmed=yes&typed=kept".encode(),
        Content_Type="application/x-www-form-urlencoded",
    )
    assert refused.status == 403
    assert "read-only for you" in refused.words
    assert reader.get("/topics/kept").status == 200


def test_the_page_of_a_topic_has_its_queues_and_who_consumes_it(surfer: Surfer, cluster: SyncCluster) -> None:
    cluster.create_topic("seen", 1)
    for _ in range(4):
        cluster.send(Message("seen", b"x"))
    with cluster.inbox("seen", group="seen-readers") as inbox:
        inbox.expect(4)
    page = surfer.get("/topics/seen")
    assert "Messages 4" in page.words
    assert "seen-readers" in page.words


@pytest.mark.parametrize("path", ["/nowhere", "/topics/x/delete"], ids=["unknown", "of a form"])
def test_an_address_without_a_page_leads_to_those_that_there_are(surfer: Surfer, path: str) -> None:
    page = surfer.get(path)
    assert page.status == 404
    assert "there is no page at this address" in page.words
    assert 'href="/topics"' in page.text


def test_ten_thousand_topics_are_listed_searched_and_paged_quickly(tmp_path: Path) -> None:
    topics = {f"many-{number:05}": {"topicName": f"many-{number:05}", "readQueueNums": 1} for number in range(10_000)}
    config = tmp_path / "broker-0" / "config"
    config.mkdir(parents=True)
    config.joinpath("topics.json").write_text(json.dumps({"topicConfigTable": topics, "dataVersion": {}}))
    with SyncCluster(data=tmp_path) as cluster, console_of(cluster, tmp_path) as server:
        surfer = Surfer(server.url)
        began = time.monotonic()
        page = surfer.get("/topics?q=many&page=200")
        took = time.monotonic() - began
        assert "9,951 to 10,000 of 10,000" in page.words
        assert "many-09999" in page.words
        assert is_in_time(took, 3.0), "a third of a second on a machine that does nothing else"
        part = surfer.get("/topics?q=00777", HX_Request="true")
        assert part.words.count("many-") == 1
        assert "<html" not in part.text


def test_attributes_of_a_topic_are_shown_where_it_has_some(surfer: Surfer, cluster: SyncCluster) -> None:
    async def make() -> None:
        async with Admin(instance=cluster.cluster.client_instance()) as admin:
            for address in (await admin.masters()).values():
                await admin.put_topic(TopicConfig(topic_name="reserved"), address, attribute_change="+reserve.time=72")

    cluster.call(make())
    assert "Type Attributes" in surfer.get("/topics/reserved").words
    assert "NORMAL reserve.time 72" in surfer.get("/topics/reserved").words
    cluster.create_topic("without", 1)
    assert "Attributes" not in surfer.get("/topics/without").words


def test_the_topic_of_a_queue_is_shown_and_found_in_the_queue_s_own_spelling(surfer: Surfer) -> None:
    surfer.change("/topics/create", topic="mails%2Eurgent", queues=1, permission="rw")
    for search in ("mails.urg", "mails%252Eurg"):
        assert "mails.urgent" in surfer.get(f"/topics?q={search}").words
    assert "mails.urgent" in surfer.get("/topics/mails%252Eurgent").words


def test_pages_of_groups_and_messages_have_the_queue_s_own_spelling(cluster: SyncCluster, surfer: Surfer) -> None:
    cluster.create_topic("news%2Edaily", 1)
    cluster.send(Message("news%2Edaily", b"first"))
    with cluster.inbox("news%2Edaily", group="readers-of-news") as inbox:
        inbox.expect(1)
        assert "news.daily" in surfer.get("/groups/readers-of-news").words
    assert "news.daily" in surfer.get("/groups?q=readers-of-news").words
    for topic in ("news.daily", "news%252Edaily"):
        page = surfer.get(f"/messages?topic={topic}")
        assert "first" in page.words
        assert 'value="news.daily"' in page.text
