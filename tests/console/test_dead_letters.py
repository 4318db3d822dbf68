"""The pages about dead letters."""

from __future__ import annotations

import re

import pytest
from tests.helpers.consoles import Surfer
from tests.helpers.waiting import wait_for

from cometmq.client.consumer.listener import Retry
from cometmq.message.message import Message
from cometmq.testing.sync import SyncCluster


@pytest.fixture(scope="module")
def group(cluster: SyncCluster, surfer: Surfer) -> str:
    """A group that gave up four messages: two of ``bills``, two of ``orders``, one with markup in its body."""
    for topic in ("orders", "bills"):
        cluster.create_topic(topic, 1)
    with cluster.inbox("orders", "bills", group="workers", answer=Retry(delay_level=-1)) as inbox:
        cluster.send(Message("orders", b"<script>alert(1)</script>", tags="a", keys=["k1"]))
        cluster.send(Message("orders", b"two", tags="b", keys=["k2"]))
        cluster.send(Message("bills", b"three"))
        cluster.send(Message("bills", b"four"))
        inbox.expect(4)
        wait_for(lambda: "4 dead letters" in surfer.get("/dead-letters/workers").words, "all are given up")
    return "workers"


def places(surfer: Surfer, query: str = "") -> list[str]:
    return re.findall(r'name="letter" value="([^"]+)"', surfer.get(f"/dead-letters/workers{query}").text)


def test_groups_with_dead_letters_are_listed_with_number_and_times(surfer: Surfer, group: str) -> None:
    assert re.search(rf"{group} 4 \d{{4}}-", surfer.get("/dead-letters").words)
    assert "No group with dead letters has this" in surfer.get("/dead-letters?q=nobody").words


def test_a_dead_letter_says_why_and_when_and_from_where(surfer: Surfer, group: str) -> None:
    page = surfer.get(f"/dead-letters/{group}?tag=a")
    assert "rejected by its consumer at delivery 1 orders a k1" in page.words
    assert "<script>alert" not in page.text
    assert "1 dead letters" in page.words
    assert "2 dead letters" in surfer.get(f"/dead-letters/{group}?topic=bills").words
    assert "No dead letter of this group matches" in surfer.get(f"/dead-letters/{group}?begin=2200-01-01T00:00").words


def test_marked_ones_are_sent_again_once_and_the_rest_by_the_filter(
    surfer: Surfer, cluster: SyncCluster, group: str
) -> None:
    address = f"/dead-letters/{group}/resend"
    (marked,) = places(surfer, "?tag=b")
    plan = surfer.post(address, letter=marked)
    assert "1 dead letters are sent to their topics" in plan.words
    assert "orders 1" in plan.words
    with cluster.inbox("orders", "bills", group="repaired") as inbox:
        inbox.expect(4)
        page = surfer.change(address, letter=marked)
        assert "1 dead letters were sent again." in page.words
        assert page.text.count(">sent again<") == 1
        again = inbox.expect(1)
        assert again[0].body == b"two"
        assert surfer.audit("dead-letters.resend", group)[0]["outcome"] == "done"

        plan = surfer.post(address, which="all")
        assert "1 of them were already resent" in plan.words
        assert "3 dead letters are sent" in plan.words
        page = surfer.change(address, which="all")
        assert "3 dead letters were sent again." in page.words
        page = surfer.change(address, which="all")
        assert "0 dead letters were sent again." in page.words
        assert sorted(one.body for one in inbox.expect(3)) == [b"<script>alert(1)</script>", b"four", b"three"]


@pytest.mark.parametrize("place", ["broker-0/0/99999", "../x", "", "127.0.0.1:1/0/0"])
def test_what_is_no_dead_letter_of_the_group_is_not_sent(surfer: Surfer, group: str, place: str) -> None:
    page = surfer.post(f"/dead-letters/{group}/resend", letter=place)
    assert page.status == 400
    assert "confirmed" not in page.text


def test_a_reader_can_mark_nothing(reader: Surfer, group: str) -> None:
    page = reader.get(f"/dead-letters/{group}")
    assert "4 dead letters" in page.words
    assert 'type="checkbox"' not in page.text


def test_a_group_without_dead_letters_says_so(surfer: Surfer) -> None:
    assert "No dead letter of this group matches" in surfer.get("/dead-letters/nobody").words
    assert surfer.get("/dead-letters/a%20b").status == 400
