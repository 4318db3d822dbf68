"""The pages about lite topics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote, urlencode

import pytest
from tests.helpers.consoles import Page, Surfer

import cometmq.client.admin.lite.requests as requests
import cometmq.console.pages.lite_topics as module
from cometmq.client import Admin, LiteTopicConsumer
from cometmq.client.errors import BrokerError
from cometmq.message.message import Message
from cometmq.remoting.codes import ResponseCode
from cometmq.testing import Cluster
from cometmq.testing.sync import SyncCluster

MARKUP = "<img src=x onerror=alert(1)>"
LITE = "/topics/sessions/lite"


def send(cluster: SyncCluster, names: Sequence[str], topic: str = "sessions") -> None:
    for name in names:
        cluster.send(Message(topic, b"x", lite_topic=name))


@pytest.fixture(scope="module")
def cluster() -> Iterator[SyncCluster]:
    """Two brokers with a parent topic that two groups read."""

    async def fill(running: Cluster) -> None:
        async with Admin(instance=running.client_instance()) as admin:
            await admin.create_lite_topic("sessions", queues=1, expiration_minutes=90)
            await admin.create_lite_topic("unread", queues=1)
            await admin.create_lite_group("agents", "sessions")
            await admin.create_lite_group("auditors", "sessions")
            await running.create_topic("plain", 1)

    with SyncCluster(2) as running:
        running.call(fill(running.cluster))
        send(running, ["job-1", "job-1", "job-2", "other", MARKUP])
        yield running


@pytest.fixture
def client(cluster: SyncCluster) -> Iterator[LiteTopicConsumer]:
    """A client of the group ``agents`` that subscribes to ``job-1`` and has read nothing."""

    async def start(running: Cluster) -> LiteTopicConsumer:
        consumer = LiteTopicConsumer("agents", "sessions", instance=running.client_instance())
        await consumer.start()
        await consumer.subscribe("job-1")
        return consumer

    consumer = cluster.call(start(cluster.cluster))
    yield consumer
    cluster.call(consumer.close())


def rows(page: Page) -> list[str]:
    """The names in the list of lite topics."""
    return [re.sub("<[^>]+>", "", row) for row in re.findall(r'<th scope="row">(<a [^>]*/topic\?.*?)</th>', page.text)]


def at(part: str, **values: str) -> str:
    return f"{LITE}/{part}?{urlencode(values)}"


def test_a_topic_of_the_type_lite_leads_to_its_lite_topics(surfer: Surfer) -> None:
    assert f'href="{LITE}"' in surfer.get("/topics/sessions").text
    assert "/lite" not in surfer.get("/topics/plain").text
    page = surfer.get("/topics/plain/lite")
    assert (page.status, "topic plain has no lite topics" in page.words) == (404, True)
    assert surfer.get("/topics/nowhere/lite").status == 404


def test_a_parent_topic_shows_its_number_expiration_and_groups(surfer: Surfer) -> None:
    page = surfer.get(LITE)
    assert "Expire without messages after 90 min" in page.words
    assert re.search(r"agents 5 \d{4}-", page.words), "the sum of its lags on all brokers"
    assert "auditors 5" in page.words
    assert re.search(r"Lite topics of sessions Lite topics [4-8] Expire", page.words), "each broker counts its own"
    page = surfer.get("/topics/unread/lite")
    assert "after never" in page.words
    assert "No group is bound to this topic yet." in page.words
    assert "There is no lite topic yet." in page.words


def test_lite_topics_are_searched_by_the_beginning_of_their_names(surfer: Surfer) -> None:
    assert sorted(set(rows(surfer.get(f"{LITE}?q=job-")))) == ["job-1", "job-2"]
    part = surfer.get(f"{LITE}?q=othe", HX_Request="true")
    assert (rows(part), "<html" in part.text) == (["other"], False)
    assert "No lite topic begins with this text." in surfer.get(f"{LITE}?q=ob-1").words
    assert surfer.get(f"{LITE}?q={'x' * 600}").status == 400


def test_a_long_list_has_pages_that_show_each_lite_topic_once(surfer: Surfer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_ROWS", 2)
    page, seen, pages = surfer.get(LITE), [], 0
    while True:
        names = rows(page)
        assert len(names) <= 2
        seen += names
        pages += 1
        following = re.search(r'rel="next" href="([^"]+)"', page.text)
        if following is None:
            break
        page = surfer.get(following[1].replace("&amp;", "&"))
    assert 'rel="first"' in page.text
    assert {"job-1", "job-2", "other"} < set(seen)
    assert len(seen) == len(set(seen))
    assert pages >= 2


def test_a_search_without_matches_sends_a_limited_number_of_requests_for_one_page(
    surfer: Surfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_REQUESTS_OF_PAGE", 1)
    page = surfer.get(f"{LITE}?q=nothing-like-this")
    assert "more follow" in page.words
    assert 'rel="next"' in page.text


def test_one_lite_topic_shows_its_offsets_expiry_lags_and_clients(surfer: Surfer, client: LiteTopicConsumer) -> None:
    page = surfer.get(at("topic", name="job-1"))
    client_id = client.instance.client_id
    assert f"{client_id} agents" in page.words
    assert re.search(r"broker-\d 2 0 2 \d{4}", page.words)
    last, expires = re.findall(r'<time datetime="([^"]+)"', page.text)[:2]
    assert expires > last
    assert re.search(r"agents broker-\d 0 2 \d{4}", page.words)
    assert re.search(r"auditors broker-\d 0 2 \d{4}", page.words)
    assert surfer.get(at("topic", name="no-such")).status == 404
    assert surfer.get(at("topic", name="a$b")).status == 400
    assert surfer.get(f"{LITE}/topic").status == 400


def test_a_group_shows_where_it_lags_and_its_clients_their_subscriptions(
    surfer: Surfer, client: LiteTopicConsumer
) -> None:
    page = surfer.get(at("group", group="agents"))
    client_id = client.instance.client_id
    assert page.words.index("job-1") < page.words.index("job-2"), "the largest lag first"
    assert client_id in page.words
    page = surfer.get(at("client", group="agents", client=client_id))
    assert re.search(r"Subscriptions .* job-1", page.words)
    assert "job-2" not in page.words
    page = surfer.get("/groups/agents")
    assert "lite.bind.topic sessions broker-0, broker-1" in page.words
    assert "Its lag in the lite topics of sessions" in page.words
    assert f'href="{LITE}/group?group=agents"' in page.text
    assert surfer.get(at("client", group="agents", client="nobody")).status == 404
    assert surfer.get(at("client", group="nobody", client="x")).status == 404
    assert surfer.get(at("group", group="nobody")).status == 404
    page = surfer.get("/topics/unread/lite/group?group=agents")
    assert (page.status, "reads no lite topics of this topic" in page.words) == (404, True)


def test_a_lite_topic_is_removed_after_a_preview_and_its_name(surfer: Surfer, cluster: SyncCluster) -> None:
    send(cluster, ["done with", "done with"])
    plan = surfer.post(f"{LITE}/expire", name="done with")
    assert "Groups have not read all of its messages." in plan.words
    assert 'name="typed"' in plan.text
    refused = surfer.confirm(f"{LITE}/expire", name="done with", typed="done")
    assert "Nothing was changed" in refused.words
    assert surfer.get(at("topic", name="done with")).status == 200
    page = surfer.change(f"{LITE}/expire", name="done with", typed="done with")
    assert "Lite topic done with is removed." in page.words
    assert surfer.get(at("topic", name="done with")).status == 404
    (line,) = surfer.audit("lite_topic.expire", "sessions done with")
    assert (line["outcome"], line["details"]["messages"], line["details"]["unread"]) == ("done", "2", "4")


def test_a_lite_topic_that_a_client_reads_is_kept_and_the_log_says_so(
    surfer: Surfer, client: LiteTopicConsumer
) -> None:
    plan = surfer.post(f"{LITE}/expire", name="job-1")
    assert "Clients subscribe to it (1)." in plan.words
    kept = surfer.confirm(f"{LITE}/expire", name="job-1", typed="job-1")
    assert (kept.status, "was kept: a client reads it" in kept.words) == (400, True)
    (line,) = surfer.audit("lite_topic.expire", "sessions job-1")
    assert line["outcome"].startswith("failed: lite topic job-1 was kept")
    assert surfer.get(at("topic", name="job-1")).status == 200


def test_a_visitor_who_may_only_read_is_offered_no_removal(reader: Surfer) -> None:
    page = reader.get(at("topic", name="other"))
    assert (page.status, "lite/expire" in page.text) == (200, False)
    assert reader.post(f"{LITE}/expire", name="other").status == 403


def test_names_are_never_markup(surfer: Surfer) -> None:
    for path in (LITE, f"{LITE}?q={quote(MARKUP)}", at("topic", name=MARKUP), at("group", group="agents")):
        page = surfer.get(path)
        assert (page.status, "<img src=x" in page.text) == (200, False), path
    plan = surfer.post(f"{LITE}/expire", name=MARKUP)
    assert (plan.status, "<img src=x" in plan.text) == (200, False)
    hidden = surfer.get(f"{LITE}?q={quote(chr(0x202E) + chr(27))}")
    assert (chr(0x202E) in hidden.text, chr(27) in hidden.text) == (False, False)


def test_brokers_that_cannot_list_are_asked_for_one_by_its_name(
    surfer: Surfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache's brokers do not know the code of the list."""

    async def refused(*_: object, **__: object) -> None:
        raise BrokerError("127.0.0.1:10911", ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported", "listing")

    monkeypatch.setattr(Admin, "lite_page", refused)
    page = surfer.get(f"{LITE}?q=job-1")
    assert "These brokers cannot list lite topics" in page.words
    assert f'href="{LITE}/topic?name=job-1"' in page.text
    assert "agents" in page.words
