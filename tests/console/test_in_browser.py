"""The console in a real browser: every page in both languages, on phones and desktops, light and dark."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from tests.helpers.consoles import console_of
from tests.helpers.member_brokers import broker_set

from cometmq.archive.commits import BodyColumn, QueueTotals
from cometmq.auth.policies import EntryInfo, PolicyInfo
from cometmq.auth.user_admin import UserInfo
from cometmq.broker.failover import events as e
from cometmq.client import LiteTopicConsumer, ProducerConfig, PushConfig
from cometmq.client.admin import Admin
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.sync import SyncProducer
from cometmq.console.server import ConsoleServer
from cometmq.message.message import Message, MessageExt
from cometmq.remoting.admin_headers import PutQuotaRequestHeader
from cometmq.remoting.security import Security
from cometmq.remoting.signing import Credentials
from cometmq.spark.jobs.table.report import TableReport
from cometmq.testing.cluster import Cluster
from cometmq.testing.sync import SyncCluster

PICTURES: Final = Path(__file__).parents[2] / "docs" / "images"
PAGES: Final = (
    "/",
    "/brokers/broker-0/0",
    "/topics",
    "/topics/new",
    "/topics/orders",
    "/topics/orders/alter",
    "/producers",
    "/groups",
    "/groups/new",
    "/groups/billing",
    "/groups/billing/alter",
    "/groups/billing/reset",
    "/groups/billing/clone",
    "/messages",
    "/messages?topic=orders",
    "/messages?topic=empty",
    "/messages/orders/broker-0/0/0",
    "/messages/orders/broker-0/0/0?as=hex",
    "/messages/send?topic=orders",
    "/messages/tail?topic=orders",
    "/topics/nowhere",
    "/configuration",
    "/configuration/broker/diskMaxUsedSpaceRatio",
    "/dead-letters",
    "/dead-letters/billing",
    "/delayed",
    "/transactions",
    "/access",
    "/access/users/new",
    "/access/policies/new",
    "/access/quotas/new",
    "/pipeline",
    "/pipeline/archive.json",
    "/pipeline/table.json",
    "/changes",
    "/keys",
    "/login",
)
LOOK: Final = """() => {
  const light = color => {
    const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255).map(
      v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = it => {
    const color = getComputedStyle(it).backgroundColor;
    return color.endsWith(', 0)') && it.parentElement ? behind(it.parentElement) : color;
  };
  const contrast = it => {
    const [a, b] = [light(getComputedStyle(it).color), light(behind(it))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), it.outerHTML.slice(0, 80)];
  };
  const rows = it => {
    const range = document.createRange();
    range.selectNodeContents(it);
    return range.getBoundingClientRect().height / parseFloat(getComputedStyle(it).lineHeight);
  };
  const all = [...document.querySelectorAll('body *')].filter(it => it.checkVisibility() && !it.closest('.u-wrap'));
  const texts = all.filter(it => [...it.childNodes].some(child => child.nodeType === 3 && child.data.trim()));
  return {
    overflows: all.filter(it => !it.closest('.scroll, pre, .skip') && it.getBoundingClientRect().right > innerWidth + 1)
      .map(it => it.outerHTML.slice(0, 120)),
    width: document.documentElement.scrollWidth,
    contrast: texts.filter(it => !it.closest('script, svg')).map(contrast).sort((a, b) => a[0] - b[0])[0],
    unnamed: [...document.querySelectorAll('input, select, textarea, button, a')].filter(it => it.type !== 'hidden'
      && !it.textContent.trim() && !it.ariaLabel && !(it.labels && it.labels.length)).map(it => it.outerHTML),
    heads: document.querySelectorAll('h1').length,
    broken: [...document.querySelectorAll('.scroll td, .scroll tbody th')].filter(it => !it.closest('.pairs')
      && /^[\\w.:#@]{1,20}$/.test(it.textContent.trim()) && rows(it) > 1.6).map(it => it.outerHTML),
  };
}"""
"""Elements beyond the edge, the width, the least contrast, controls without a name, the number of titles, and words
in tables that are broken in two."""

NEXT_FRAME: Final = "new Promise(done => requestAnimationFrame(() => done()))"


@pytest.fixture(scope="module")
def cluster() -> Iterator[SyncCluster]:
    with SyncCluster(3, slaves=1, broker_keys={"enablePropertyFilter": "true", "traceTopicEnable": "true"}) as running:
        for topic in ("orders", "payments", "shipping-events", "empty"):
            running.create_topic(topic, 2)
        with SyncProducer("shop", running.namesrv_address, config=ProducerConfig(enable_msg_trace=True)) as producer:
            for number in range(90):
                body = f'{{"order": {number}, "total": {number * 7.5}, "items": [{{"sku": "A-17", "n": 2}}]}}'.encode()
                topic = ("orders", "payments", "shipping-events")[number % 3]
                keys = [f"order-{number}"]
                producer.send(Message(topic, body, tags="paid", keys=keys, properties={"region": "eu"}))
        running.call(answer_sessions(running.cluster))
        yield running


async def answer_sessions(running: Cluster) -> None:
    """A parent topic with answers for some sessions, and its group."""
    async with Admin(instance=running.client_instance()) as admin:
        await admin.create_lite_topic("answers", queues=1, expiration_minutes=60)
        await admin.create_lite_group("sessions", "answers")
    for number in range(24):
        for _ in range(1 + number % 4):
            await running.send(Message("answers", b"yes", lite_topic=f"session-{number * 7919 % 10_000:04d}"))


@pytest.fixture(scope="module")
def members(cluster: SyncCluster) -> Iterator[None]:
    """Two members of a group that agree, and two of another that do not."""
    consumers: list[PushConsumer] = []

    async def listen(messages: Sequence[MessageExt]) -> None:
        return None

    async def start(running: Cluster) -> None:
        wishes = (("billing", "*"), ("billing", "*"), ("warehouse", "paid"), ("warehouse", "*"))
        for group, expression in wishes:
            config = PushConfig(enable_msg_trace=True)
            consumer = PushConsumer(group, listen, config=config, instance=running.client_instance())
            await consumer.subscribe("orders", expression)
            await consumer.start()
            consumers.append(consumer)

    async def stop() -> None:
        for consumer in consumers:
            await consumer.close()

    cluster.call(start(cluster.cluster))
    yield
    cluster.call(stop())


@pytest.fixture(scope="module")
def console(cluster: SyncCluster, members: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleServer]:
    reports = tmp_path_factory.mktemp("reports")
    queues = [{"topic": "orders-everywhere", "broker": "broker-0", "queue": at, "rows": 10**at} for at in range(9)]
    report = {"directory": "/lake/" + "orders" * 20, "rows": 10**9, "queues": queues, "warnings": ["a" * 200]}
    (reports / "archive.json").write_text(json.dumps({**report, "exit_code": 3}))
    columns = [BodyColumn(f"column{at}", "array<struct<sku:string,count:bigint>>" * (1 + at % 3)) for at in range(9)]
    totals = [QueueTotals("orders", "broker-0", at, 0, 10**at, 10**at) for at in range(4)]
    table = TableReport(
        *("iceberg://prod/shop.orders", 12_345, 6_789_000, 48, 60, 3600.0),
        finished=True,
        warnings=(),
        queues=tuple(totals),
        columns=tuple(columns),
        table_files=48,
        table_bytes=57_000_000,
        committed_behind=12,
        seconds_behind=41.5,
        running=True,
    )
    (reports / "table.json").write_text(json.dumps(table.to_dict() | {"exit_code": table.exit_code}))
    with console_of(cluster, tmp_path_factory.mktemp("console"), allow_changes=True, reports=reports) as server:
        yield server


@pytest.fixture
def tab(browser: Any, console: ConsoleServer) -> Iterator[Any]:
    """A new visitor's page; nothing on it may fail."""
    context = browser.new_context(
        base_url=console.url, locale="en-GB", timezone_id="Asia/Shanghai", viewport={"width": 1280, "height": 900}
    )
    shown = context.new_page()
    failures: list[str] = []
    shown.on("pageerror", lambda error: failures.append(str(error)))
    shown.on("console", lambda message: failures.append(message.text) if message.type == "error" else None)
    shown.failures = failures
    yield shown
    context.close()
    assert [failure for failure in failures if "404" not in failure] == []


def test_every_page_fits_the_screen_in_both_languages_and_can_be_read(tab: Any, console: ConsoleServer) -> None:
    """On phones and desktops, in both colour schemes."""
    look_at(tab, console.url, PAGES)


def test_pages_about_users_fit_the_screen_and_can_be_read(tab: Any, tmp_path: Path) -> None:
    """With users, a policy, a quota, and a plan that asks for a password."""
    root = Credentials("root", "secret-of-root")
    keys = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": '{"username":"root","password":"secret-of-root"}',
        "innerClientAuthenticationCredentials": '{"accessKey":"servers","secretKey":"secret-of-servers"}',
        "auditLogEnable": "true",
    }
    with SyncCluster(broker_keys=keys, data=tmp_path / "data") as cluster:

        async def fill() -> None:
            async with Admin(cluster.namesrv_address, security=Security(root)) as admin:
                await admin.create_user(UserInfo("alice", "secret-of-alice", "Normal"))
                entry = EntryInfo("Topic:Orders-of-*", ["Pub", "Sub", "Get", "List"], ["10.0.0.0/8"], "Allow")
                await admin.put_policies("alice", [PolicyInfo("Custom", [entry])])
                await admin.put_quota(PutQuotaRequestHeader("account:alice", 500))

        cluster.call(fill())
        logs = (tmp_path / "data",)
        with console_of(cluster, tmp_path / "console", security=Security(root), audit_logs=logs) as server:
            tab.goto(f"{server.url}/login")
            tab.fill("input[name=name]", "root")
            tab.fill("input[name=password]", "secret-of-root")
            tab.keyboard.press("Enter")
            tab.wait_for_url(f"{server.url}/")
            test = "/access?user=alice&action=Pub&resource=Topic:Orders"
            policy = "/access/policies/new?user=alice&resource=Topic:Orders-of-*&kind=Custom"
            look_at(tab, server.url, [test, policy, "/access/users/alice", "/changes/brokers"])
            assert tab.query_selector("tbody tr") is not None, "the audit log has lines"
            tab.goto(f"{server.url}/access/users/new")
            tab.fill("input[name=name]", "bob")
            tab.keyboard.press("Enter")
            tab.fill("input[name=password]", "secret-of-bob")
            tab.fill("input[name=again]", "secret-of-bob")
            tab.keyboard.press("Enter")
            tab.wait_for_selector("th:has-text('bob')")


def test_sets_that_elect_their_master_fit_the_screen_and_can_be_read(tab: Any, tmp_path: Path) -> None:
    """Also with a dead member and with one that waits for a person."""
    members = ("eu-central-1a-10.0.0.1-10911", "b", "c")
    with SyncCluster() as cluster, broker_set(cluster, tmp_path / "set", "orders-of-the-shop", members) as brokers:
        brokers.members[members[0]].append(123_456_789)
        with console_of(cluster, tmp_path / "console") as server:
            for state in ("whole", "halted"):
                if state == "halted":
                    brokers.kill("c")
                    brokers.members["b"].give(e.DocumentRead(10**6, None, "", {}))
                tab.context.clear_cookies()
                tab.goto(f"{server.url}/")
                tab.wait_for_selector(f"td:has-text('{'halted' if state == 'halted' else 'follower'}')", timeout=30_000)
                look_at(tab, server.url, ["/"])


def test_pages_about_lite_topics_fit_the_screen_and_can_be_read(
    tab: Any, console: ConsoleServer, cluster: SyncCluster
) -> None:
    """Also with long names, and the preview of a removal, to which one comes by clicks from the topic."""
    name = "session-of-a-customer-with-a-long-name-0123456789-0123456789-01"

    async def read(running: Cluster) -> LiteTopicConsumer:
        async with Admin(instance=running.client_instance()) as admin:
            await admin.create_lite_topic("sessions", queues=1, expiration_minutes=60)
            await admin.create_lite_group("agents", "sessions")
        for lite_topic in (name, *(f"session-{number}" for number in range(60))):
            await running.send(Message("sessions", b"x", lite_topic=lite_topic))
        consumer = LiteTopicConsumer("agents", "sessions", instance=running.client_instance())
        await consumer.start()
        await consumer.subscribe(name)
        return consumer

    consumer = cluster.call(read(cluster.cluster))
    tab.goto("/topics/sessions")
    tab.click("text=Lite topics")
    tab.wait_for_url("**/topics/sessions/lite")
    tab.keyboard.press("/")
    tab.keyboard.type("session-of")
    tab.wait_for_selector("#rows tbody tr:nth-child(3):last-child")  # its subscriber is at each broker
    tab.click(f"tr:first-child >> text={name}")
    pages = [tab.url.removeprefix(console.url), "/topics/sessions/lite", "/topics/sessions/lite?q=nothing"]
    for link in ("agents", consumer.instance.client_id):
        tab.click(f"th a:text-is('{link}')" if link == "agents" else f"tbody th a:has-text('{link}')")
        pages.append(tab.url.removeprefix(console.url))
    look_at(tab, console.url, [*pages, "/topics/sessions"])
    tab.context.clear_cookies()
    tab.goto(pages[0])
    tab.click("text=Remove this lite topic")
    tab.wait_for_selector("text=Clients subscribe to it (1)")
    tab.set_viewport_size({"width": 390, "height": 800})
    look = tab.evaluate(LOOK)
    assert (look["overflows"], look["width"] <= 390, look["unnamed"], look["broken"]) == ([], True, [], [])
    cluster.call(consumer.close())
    tab.fill("input[name=typed]", name)
    tab.click("button:has-text('Remove it')")
    tab.wait_for_selector(f"text=Lite topic {name} is removed.")


def look_at(tab: Any, url: str, pages: Sequence[str]) -> None:
    """Check each page in two languages, two widths and two colour schemes."""
    for path in pages:
        for language, looks in (("en", ((1280, "light"), (390, "dark"))), ("zh", ((390, "light"), (1280, "dark")))):
            tab.context.add_cookies([{"name": "language", "value": language, "url": url}])
            tab.goto(url + path, wait_until="domcontentloaded")
            assert tab.evaluate("document.documentElement.lang") == {"en": "en", "zh": "zh-CN"}[language]
            for width, scheme in looks:
                tab.set_viewport_size({"width": width, "height": 900})
                tab.emulate_media(color_scheme=scheme)
                look = tab.evaluate(LOOK)
                for _ in range(60 if look["overflows"] else 0):  # plots follow the width some frames later
                    tab.evaluate(NEXT_FRAME)
                    look = tab.evaluate(LOOK)
                    if not look["overflows"]:
                        break
                where = f"{path}, {language}, {width} pixels, {scheme}"
                assert (look["overflows"], look["width"] <= width) == ([], True), where
                assert look["contrast"][0] >= 4.5, (where, look["contrast"])
                assert look["unnamed"] == [], where
                assert look["heads"] == 1, where
                assert look["broken"] == [], where


def test_a_topic_is_created_and_deleted_by_clicks_and_the_keyboard(tab: Any) -> None:
    tab.goto("/")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip", "the first stop leads past the navigation"
    tab.keyboard.press("g")
    tab.keyboard.press("t")
    tab.wait_for_url("**/topics")
    tab.click("text=Create a topic")
    tab.fill("input[name=topic]", "by-hand")
    tab.fill("input[name=queues]", "2")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("text=The topic is created on each of these brokers")
    tab.click("text=Create it")
    tab.wait_for_url("**/topics/by-hand")
    assert tab.inner_text("[role=status]") == "Topic by-hand is created."
    tab.reload()
    assert tab.query_selector("[role=status]") is None, "a notice is shown once"
    tab.click("text=Delete this topic")
    tab.fill("input[name=typed]", "by-hands")
    tab.click("button:has-text('Delete it')")
    tab.wait_for_selector("text=The name does not match")
    tab.fill("input[name=typed]", "by-hand")
    tab.click("button:has-text('Delete it')")
    tab.wait_for_url("**/topics")
    tab.wait_for_selector("text=Topic by-hand is deleted.")


def test_the_list_of_topics_is_searched_while_one_types_and_the_address_says_what(tab: Any) -> None:
    tab.goto("/topics")
    tab.keyboard.press("/")
    tab.keyboard.type("ship")
    tab.wait_for_url("**/topics?q=ship&kind=")
    tab.wait_for_selector("#rows tbody tr:only-child")
    tab.reload()
    assert tab.inner_text("#rows tbody th") == "shipping-events"


def test_the_topics_of_a_group_are_searched_and_a_refresh_keeps_the_search(tab: Any, cluster: SyncCluster) -> None:
    async def commit(running: Cluster) -> None:
        assert running.broker(0).groups.find("wide") is not None
        for number in range(60):
            await running.create_topic(f"wide-{number:02d}", 1)
            assert running.broker(0).offsets.commit("wide", f"wide-{number:02d}", 0, 0)

    cluster.call(commit(cluster.cluster))
    tab.goto("/groups/wide")
    tab.wait_for_selector("text=1 to 50 of 60")
    tab.fill("input[name=q]", "wide-57")
    tab.wait_for_selector("text=1 to 50 of 60", state="detached")
    with tab.expect_response(lambda answer: "/groups/wide?" in answer.url and "q=wide-57" in answer.url):
        assert tab.inner_text("#state h2 a") == "wide-57"
    tab.wait_for_timeout(200)
    assert tab.inner_text("#state h2 a") == "wide-57"
    assert tab.input_value("input[name=q]") == "wide-57"


def test_times_are_in_the_zone_of_the_reader_from_the_first_page_on(tab: Any) -> None:
    tab.goto("/topics/orders")
    first = tab.inner_text(".figures time")
    moment = tab.get_attribute(".figures time", "datetime")
    assert tab.inner_text("[data-zone-name]") == "Asia/Shanghai"
    assert int(first[11:13]) == (int(moment[11:13]) + 8) % 24
    tab.reload()
    assert tab.inner_text(".figures time") == first, "the server writes the same as the script"


def test_light_and_dark_stay_as_chosen(tab: Any) -> None:
    tab.goto("/")
    before = tab.evaluate("getComputedStyle(document.body.parentElement).backgroundColor")
    tab.click("#theme")
    after = tab.evaluate("getComputedStyle(document.body.parentElement).backgroundColor")
    assert before != after
    tab.goto("/topics")
    assert tab.evaluate("getComputedStyle(document.body.parentElement).backgroundColor") == after


def test_new_messages_appear_in_the_tail_as_text(tab: Any, cluster: SyncCluster) -> None:
    tab.goto("/messages/tail?topic=orders")
    tab.wait_for_selector("#tail-state:has-text('New messages')")
    cluster.send(Message("orders", b"<img src=x onerror=alert(1)> new one", tags="<b>"))
    tab.wait_for_selector("#tail tbody tr")
    assert tab.inner_text("#tail tbody code") == "<img src=x onerror=alert(1)> new one"
    assert tab.query_selector("#tail img") is None
    tab.click("#tail tbody a")
    tab.wait_for_url("**/messages/orders/**")
    assert "<img src=x onerror=alert(1)> new one" in tab.inner_text("pre")


def test_figures_are_live_and_a_broker_that_dies_is_named_while_one_looks(
    tab: Any, console: ConsoleServer, cluster: SyncCluster
) -> None:
    tab.goto("/")
    tab.wait_for_selector(".plot canvas")
    assert tab.evaluate("document.querySelectorAll('.plot canvas').length") == 3
    cluster.kill_broker(2)
    tab.wait_for_selector("#state .bad:has-text('broker-2')")
    assert "broker-0" in tab.inner_text("#state"), "the others are shown on"
    tab.goto("/topics/orders")
    assert tab.inner_text("h1") == "orders", "half of the cluster is enough for the page"
    cluster.start_broker(2)


PICTURED: Final = {
    "console-cluster": ("/", "en", 1280, "light"),
    "console-message": ("/messages/orders/broker-0/0/0", "en", 1280, "dark"),
    "console-group": ("/groups/warehouse", "en", 1280, "light"),
    "console-lite-topics": ("/topics/answers/lite", "en", 1280, "light"),
    "console-phone": ("/topics", "zh", 390, "light"),
}


@pytest.mark.parametrize("name", PICTURED)
def test_pictures_of_the_documentation_are_of_this_console(tab: Any, console: ConsoleServer, name: str) -> None:
    """``COMETMQ_PICTURES=1`` writes them anew; otherwise this proves that the pages can be pictured."""
    path, language, width, scheme = PICTURED[name]
    tab.context.add_cookies([{"name": "language", "value": language, "url": console.url}])
    tab.emulate_media(color_scheme=scheme)
    tab.set_viewport_size({"width": width, "height": 800})
    tab.goto(path, wait_until="load")
    if "COMETMQ_PICTURES" in os.environ:
        if path == "/":
            tab.wait_for_selector("#state .findings")
        tab.wait_for_timeout(1_000)
        tab.screenshot(path=PICTURES / f"{name}.png")
    assert PICTURES.joinpath(f"{name}.png").is_file(), "COMETMQ_PICTURES=1 makes it"
