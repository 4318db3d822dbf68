"""The metrics of a broker: Apache's families with Apache's labels, and values that are true."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cometmq.broker.limits import TIMER_COUNT_SECONDS
from cometmq.broker.monitor.families import FAMILIES
from cometmq.client import (
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    MessageExt,
    Producer,
    PushConfig,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from cometmq.metrics.family import Kind
from cometmq.testing import Cluster, VirtualClock, settle

APACHE = Path(__file__).with_name("apache-5.5.0-metrics.txt")
"""Written by Apache's broker 5.5.0 after a load like the one here: of each family the first sample."""
OF_POP = re.compile("rocketmq_pop_(?!revive_lag|revive_latency)")
"""Buffers and scans of Apache's POP, which have nothing like them here."""
OTHERS_OF_APACHE = {"target_info"}
KEYS = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}
FIRST = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, max_reconsume_times=1)

Shape = tuple[str, frozenset[str], frozenset[str]]


def shapes(text: str) -> dict[str, Shape]:
    """Of each family its kind, labels and bounds."""
    found = {}
    for family in text_string_to_metric_families(text):
        labels = {name for sample in family.samples for name in sample.labels}
        bounds = {sample.labels["le"] for sample in family.samples if "le" in sample.labels}
        found[family.name] = family.type, frozenset(labels - {"otel_scope_name"}), frozenset(bounds)
    return found


class Scrape:
    """One answer of a broker."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The sum over all samples with these labels."""
        return sum(
            sample.value for sample in self._samples if sample.name == name and labels.items() <= sample.labels.items()
        )


async def scrape(cluster: Cluster) -> Scrape:
    monitor = cluster.broker(0).monitor
    assert monitor is not None

    def read(url: str) -> str:
        with urllib.request.urlopen(url) as answer:
            text: str = answer.read().decode()
            return text

    return Scrape(await asyncio.to_thread(read, monitor.url))


async def load(cluster: Cluster, clock: VirtualClock) -> None:
    """Messages of every kind, two groups of which one fails, transactions in three states."""

    async def take(messages: Sequence[MessageExt]) -> None:
        pass

    async def fail(messages: Sequence[MessageExt]) -> ConsumeResult:
        return ConsumeResult.RECONSUME_LATER

    await cluster.create_topic("Normal")
    async with Producer("pg", instance=cluster.client_instance()) as producer:
        for _ in range(5):
            await producer.send(Message("Normal", b"x" * 100))
        await producer.send(Message("Normal", b"x" * 3_000))
        await producer.send(Message("Normal", b"f", properties={"__SHARDINGKEY": "s"}))
        await producer.send(Message("Normal", b"level", delay_level=1))
        await producer.send(Message("Normal", b"soon", delay=timedelta(seconds=2)))
        await producer.send(Message("Normal", b"late", delay=timedelta(hours=2)))
    states = {b"1": TransactionState.COMMIT, b"2": TransactionState.ROLLBACK, b"3": TransactionState.UNKNOWN}
    transactions = TransactionProducer(
        "tg",
        lambda message, arg, transaction_id: states[message.body],
        lambda message: TransactionState.UNKNOWN,
        instance=cluster.client_instance(),
    )
    async with transactions:
        for body in states:
            await transactions.send_in_transaction(Message("Tran", body))
    instance = cluster.client_instance()
    good = PushConsumer("good", take, instance=instance, config=FIRST)
    bad = PushConsumer("bad", fail, instance=instance, config=FIRST)
    await good.subscribe("Normal")
    await bad.subscribe("Normal")
    async with good, bad:
        await clock.run_for(30 + TIMER_COUNT_SECONDS)
        await settle()


@pytest.fixture
async def loaded(clock: VirtualClock) -> Scrape:
    async with Cluster(clock=clock, broker_keys=KEYS) as cluster:
        await load(cluster, clock)
        return await scrape(cluster)


async def test_the_families_are_those_of_apache(loaded: Scrape) -> None:
    apache, ours = shapes(APACHE.read_text()), shapes(loaded.text)
    wanted = {name: shape for name, shape in apache.items() if not OF_POP.match(name)}
    for name in OTHERS_OF_APACHE:
        del wanted[name]
    differing = {name: (shape, ours.get(name)) for name, shape in wanted.items() if ours.get(name) != shape}
    gone_with_their_clients = {"rocketmq_producer_connections", "rocketmq_consumer_connections"}
    assert differing.keys() <= gone_with_their_clients
    named = {family.name.removesuffix("_total") for family in FAMILIES}
    assert {name for name in ours if name.startswith("rocketmq_")} <= apache.keys() | gone_with_their_clients
    assert ours.keys() <= named


async def test_messages_count_by_topic_and_type(loaded: Scrape) -> None:
    counts = {
        kind: loaded.value("rocketmq_messages_in_total", topic="Normal", message_type=kind)
        for kind in ("normal", "fifo", "delay")
    }
    assert counts == {"normal": 6, "fifo": 1, "delay": 2}
    assert loaded.value("rocketmq_messages_in_total", topic="Tran", message_type="transaction") == 1
    assert loaded.value("rocketmq_message_size_bucket", topic="Normal", message_type="normal", le="1024.0") == 5
    assert loaded.value("rocketmq_message_size_bucket", topic="Normal", message_type="normal", le="4096.0") == 6
    sizes = loaded.value("rocketmq_message_size_sum", topic="Normal")
    assert sizes == loaded.value("rocketmq_throughput_in_total", topic="Normal") > 3_000
    assert loaded.value("rocketmq_messages_out_total", topic="Normal", consumer_group="good") == 9
    assert loaded.value("rocketmq_send_to_dlq_messages_total", topic="Normal", consumer_group="bad") == 9


async def test_transactions_and_timers_count(loaded: Scrape) -> None:
    assert loaded.value("rocketmq_commit_messages_total", topic="Tran") == 1
    assert loaded.value("rocketmq_rollback_messages_total", topic="Tran") == 1
    assert loaded.value("rocketmq_half_messages", topic="Tran") == loaded.value("rocketmq_half_messages") == 1
    assert loaded.value("rocketmq_timer_enqueue_total", topic="Normal") == 2
    assert loaded.value("rocketmq_timer_dequeue_total", topic="Normal") == 1
    assert loaded.value("rocketmq_timing_messages", topic="Normal") == 1
    assert loaded.value("rocketmq_timer_message_snapshot", timer_bound_s="3600") == 0
    assert loaded.value("rocketmq_timer_message_snapshot", timer_bound_s="14400") == 1


async def test_requests_count_with_their_answers(loaded: Scrape) -> None:
    name = "rocketmq_rpc_latency_milliseconds_count"
    assert loaded.value(name, request_code="send_message_v2", response_code="success") == 13
    assert loaded.value(name, request_code="end_transaction", response_code="success") >= 2
    assert loaded.value(name, request_code="pull_message", is_long_polling="true", response_code="pull_not_found") > 0
    assert loaded.value("rocketmq_rpc_latency_milliseconds_sum", is_long_polling="true") > 15_000


async def test_lag_is_what_is_not_consumed_and_inflight_what_is_on_its_way(clock: VirtualClock) -> None:
    held = asyncio.Event()

    async def hold(messages: Sequence[MessageExt]) -> None:
        await held.wait()

    keys = KEYS | {"metricsPerQueue": "true"}
    async with Cluster(clock=clock, broker_keys=keys) as cluster:
        await cluster.create_topic("Slow", 1)
        slow = PushConsumer("slow", hold, instance=cluster.client_instance(), config=FIRST)
        await slow.subscribe("Slow")
        async with slow:
            await cluster.send(Message("Slow", b"1"))
            await clock.run_for(10)
            for body in (b"2", b"3"):
                await cluster.send(Message("Slow", body))
            await clock.run_for(10)
            labels = {"topic": "Slow", "consumer_group": "slow"}
            found = await scrape(cluster)
            assert found.value("rocketmq_consumer_lag_messages", **labels) == 3
            assert found.value("rocketmq_consumer_inflight_messages", **labels) == 3
            assert found.value("rocketmq_consumer_ready_messages", **labels) == 0
            assert found.value("cometmq_consumer_queue_lag_messages", **labels, queue_id="0") == 3
            assert found.value("rocketmq_consumer_lag_latency_milliseconds", **labels) == pytest.approx(
                20_000, abs=1_000
            )
            assert found.value("rocketmq_consumer_connections", consumer_group="slow", language="python") == 1
            held.set()
            await clock.run_for(10)
            found = await scrape(cluster)
            assert found.value("rocketmq_consumer_lag_messages", **labels) == 0
            assert found.value("rocketmq_consumer_lag_latency_milliseconds", **labels) == 0


async def test_what_is_deleted_is_told_no_more(clock: VirtualClock) -> None:
    async with Cluster(clock=clock, broker_keys=KEYS) as cluster:
        await cluster.create_topic("Gone")
        await cluster.send(Message("Gone", b"1"))
        assert (await scrape(cluster)).value("rocketmq_messages_in_total", topic="Gone") == 1
        cluster.broker(0).topics.delete("Gone")
        assert 'topic="Gone"' not in (await scrape(cluster)).text


async def test_a_port_that_is_taken_costs_the_metrics_only(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with Cluster(clock=clock, broker_keys=KEYS) as first:
        monitor = first.broker(0).monitor
        assert monitor is not None
        taken = KEYS | {"metricsPromExporterPort": str(monitor.server.port)}
        async with Cluster(clock=clock, broker_keys=taken) as second:
            await second.send(Message("T", b"1"))
    assert "metrics are not served" in caplog.text
    assert "metricsPromExporterPort" in caplog.text


def test_families_are_named_as_prometheus_wants() -> None:
    for family in FAMILIES:
        assert (family.kind is Kind.COUNTER) == family.name.endswith("_total"), family.name
        assert (family.kind is Kind.HISTOGRAM) == bool(family.bounds), family.name
        assert family.help.endswith("."), family.name
