"""The metrics of a broker: Apache's families with Apache's labels, and values that are true."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.broker.metrics.metric_load import FIRST, POP_GROUP, Target, loaded, read, shapes
from tests.broker.replication.following import bodies
from tests.helpers.calls import calls_of_longest

from cometmq.broker.limits import MAX_TOPIC_QUEUES, TIMER_COUNT_SECONDS
from cometmq.broker.metrics import group_lags
from cometmq.broker.metrics.families import FAMILIES
from cometmq.client import Message, MessageExt, PushConsumer, TransactionProducer, TransactionState
from cometmq.client.admin import Admin
from cometmq.client.errors import BrokerError
from cometmq.metrics.family import Kind
from cometmq.remoting.bodies import SubscriptionGroupConfig
from cometmq.testing import Cluster, VirtualClock, settle

APACHE = Path(__file__).with_name("apache-5.5.0-metrics.txt")
"""Written by Apache's broker 5.5.0 after the load of these tests: of each family a sample with each set of labels."""
KEYS = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}


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
    return Scrape(await read(monitor.url))


@pytest.fixture
async def scraped(clock: VirtualClock) -> Scrape:
    """The metrics after the load, and after the messages with any delay were counted."""
    async with Cluster(clock=clock, broker_keys=KEYS) as cluster:
        target = Target(cluster.client_instance, cluster.broker(0).address, clock, clock.run_for)
        async with loaded(target):
            await clock.run_for(TIMER_COUNT_SECONDS)
            await settle()
            return await scrape(cluster)


async def test_the_families_are_the_45_of_apache(scraped: Scrape) -> None:
    apache, ours = shapes(APACHE.read_text()), shapes(scraped.text)
    del apache["target_info"]  # of Apache's library for metrics
    assert len(apache) == 45
    assert {name: ours.get(name) for name in apache} == apache
    named = {family.name.removesuffix("_total") for family in FAMILIES}
    assert {name for name in ours if name.startswith("rocketmq_")} == apache.keys()
    assert ours.keys() <= named


async def test_messages_count_by_topic_and_type(scraped: Scrape) -> None:
    counts = {
        kind: scraped.value("rocketmq_messages_in_total", topic="Normal", message_type=kind)
        for kind in ("normal", "fifo", "delay")
    }
    assert counts == {"normal": 6, "fifo": 1, "delay": 2}
    assert scraped.value("rocketmq_messages_in_total", topic="Tran", message_type="transaction") == 1
    assert scraped.value("rocketmq_message_size_bucket", topic="Normal", message_type="normal", le="1024.0") == 5
    assert scraped.value("rocketmq_message_size_bucket", topic="Normal", message_type="normal", le="4096.0") == 6
    sizes = scraped.value("rocketmq_message_size_sum", topic="Normal")
    assert sizes == scraped.value("rocketmq_throughput_in_total", topic="Normal") > 3_000
    assert scraped.value("rocketmq_messages_out_total", topic="Normal", consumer_group="good") == 9
    assert scraped.value("rocketmq_send_to_dlq_messages_total", topic="Normal", consumer_group="bad") == 9


async def test_transactions_and_timers_count(scraped: Scrape) -> None:
    assert scraped.value("rocketmq_commit_messages_total", topic="Tran") == 1
    assert scraped.value("rocketmq_rollback_messages_total", topic="Tran") == 1
    assert scraped.value("rocketmq_half_messages", topic="Tran") == scraped.value("rocketmq_half_messages") == 1
    assert scraped.value("rocketmq_timer_enqueue_total", topic="Normal") == 2
    assert scraped.value("rocketmq_timer_dequeue_total", topic="Normal") == 1
    assert scraped.value("rocketmq_timing_messages", topic="Normal") == 1
    assert scraped.value("rocketmq_timer_message_snapshot", timer_bound_s="3600") == 0
    assert scraped.value("rocketmq_timer_message_snapshot", timer_bound_s="14400") == 1


async def test_pops_count_what_apache_counts(scraped: Scrape) -> None:
    of_topic = {"consumer_group": POP_GROUP, "topic": "Popped"}
    again = {"consumer_group": POP_GROUP, "topic": f"%RETRY%{POP_GROUP}_Popped"}
    put = "rocketmq_pop_revive_in_message_total"
    stored = {"put_status": "PUT_OK"}
    assert scraped.value(put, revive_message_type="CK", **of_topic, **stored) == 2
    assert scraped.value(put, revive_message_type="ACK", **of_topic, **stored) == 2
    assert scraped.value(put, revive_message_type="CK", **again, **stored) == 1
    assert scraped.value(put, revive_message_type="ACK", **again, **stored) == 2
    assert scraped.value("rocketmq_pop_revive_out_message_total", queue_id="0") == scraped.value(put) == 7
    assert scraped.value("rocketmq_pop_revive_retry_messages_total", **of_topic, **stored) == 2
    assert scraped.value("rocketmq_pop_buffer_scan_time_consume_milliseconds_count") > 0
    assert scraped.value("rocketmq_pop_checkpoint_buffer_size") == 0


async def test_messages_that_are_given_again_are_told_by_their_label(scraped: Scrape) -> None:
    popped = {"consumer_group": POP_GROUP, "topic": "Popped"}
    assert scraped.value("rocketmq_messages_out_total", is_retry="false", **popped) == 3
    assert scraped.value("rocketmq_messages_out_total", is_retry="true", **popped) == 2
    sizes = {
        text: scraped.value("rocketmq_throughput_out_total", is_retry=text, **popped) for text in ("false", "true")
    }
    assert sizes["false"] > sizes["true"] > 0
    pulled = {"consumer_group": "bad", "is_retry": "true"}
    assert scraped.value("rocketmq_messages_out_total", topic="%RETRY%bad", **pulled) == 9
    assert scraped.value("rocketmq_messages_out_total", topic="Normal", **pulled) == 0


async def test_the_time_to_make_topics_and_groups_is_told_with_the_outcome(clock: VirtualClock) -> None:
    async with Cluster(clock=clock, broker_keys=KEYS) as cluster, Admin(instance=cluster.client_instance()) as admin:
        address = cluster.broker(0).address
        for name, queues in (("One", 4), ("Two", 4), ("rmq_sys_wheel_timer", 4), ("TooMany", MAX_TOPIC_QUEUES + 1)):
            with suppress(BrokerError):
                await admin.create_topic(name, queues=queues, broker_address=address)
        for queues in (1, MAX_TOPIC_QUEUES + 1):
            config = SubscriptionGroupConfig(group_name="g", retry_queue_nums=queues)
            with suppress(BrokerError):
                await admin.create_group(config, broker_address=address)
        found = await scrape(cluster)
    topics, groups = (f"rocketmq_{kind}_create_execution_time_milliseconds" for kind in ("topic", "consumer_group"))
    counts = {
        (labels["invocation_status"], labels["is_system"]): found.value(f"{topics}_count", **labels)
        for status in ("success", "failure")
        for labels in ({"invocation_status": status, "is_system": text} for text in ("false", "true"))
    }
    assert counts == {("success", "false"): 2, ("failure", "true"): 1, ("failure", "false"): 1, ("success", "true"): 0}
    assert found.value(f"{groups}_count", invocation_status="success") == 1
    assert found.value(f"{groups}_count", invocation_status="failure") == 1


async def test_delayed_messages_and_transactions_show_at_once_and_when_they_are_over(clock: VirtualClock) -> None:
    async with Cluster(clock=clock, broker_keys=KEYS) as cluster:
        await clock.run_for(TIMER_COUNT_SECONDS)
        await cluster.create_topic("T")
        await cluster.send(Message("T", b"late", delay=timedelta(seconds=30)))
        waiting = {"topic": "T", "storage_type": "local", "storage_medium": "disk"}
        assert (await scrape(cluster)).value("rocketmq_timing_messages", **waiting) == 1
        producer = TransactionProducer(
            "tg",
            lambda message, arg, transaction_id: TransactionState.COMMIT,
            lambda message: TransactionState.COMMIT,
            instance=cluster.client_instance(),
        )
        async with producer:
            await producer.send_in_transaction(Message("Tran", b"1"))
        await clock.run_for(40)
        await settle()
        text = (await scrape(cluster)).text
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    for name, topic in (("rocketmq_timing_messages", "T"), ("rocketmq_half_messages", "Tran")):
        assert [(sample.labels["topic"], sample.value) for sample in families[name]] == [(topic, 0)]


async def test_requests_count_with_their_answers(scraped: Scrape) -> None:
    name = "rocketmq_rpc_latency_milliseconds_count"
    assert scraped.value(name, request_code="send_message_v2", response_code="success") == 16
    assert scraped.value(name, request_code="end_transaction", response_code="success") >= 2
    assert scraped.value(name, request_code="pull_message", is_long_polling="true", response_code="pull_not_found") > 0
    assert scraped.value("rocketmq_rpc_latency_milliseconds_sum", is_long_polling="true") > 15_000


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


async def test_with_more_topics_than_series_the_rest_counts_together(clock: VirtualClock) -> None:
    keys = KEYS | {"metricsOtelCardinalityLimit": "3"}
    async with Cluster(clock=clock, broker_keys=keys) as cluster:
        for number in range(8):
            await cluster.create_topic(f"T{number}", 1)
            for _ in range(2):
                await cluster.send(Message(f"T{number}", b"12345"))
        found = await scrape(cluster)
        assert found.value("rocketmq_messages_in_total") == 16
        assert found.value("rocketmq_messages_in_total", otel_metric_overflow="true") == 10
        assert found.value("rocketmq_throughput_in_total") == found.value("rocketmq_message_size_sum")
        assert found.value("rocketmq_message_size_bucket", otel_metric_overflow="true", le="1024.0") == 10
        assert found.text.count("\nrocketmq_messages_in_total{") == 4


async def test_the_groups_that_are_furthest_behind_have_series_of_their_own(clock: VirtualClock) -> None:
    keys = KEYS | {"metricsOtelCardinalityLimit": "3", "metricsPerQueue": "true"}
    async with Cluster(clock=clock, broker_keys=keys) as cluster:
        broker = cluster.broker(0)
        await cluster.create_topic("T", 1)
        for _ in range(100):
            await cluster.send(Message("T", b"x"))
        for number in range(10):
            assert broker.offsets.commit(f"g{number}", "T", 0, 100 - number)
        found = await scrape(cluster)
        lag = "rocketmq_consumer_lag_messages"
        assert [found.value(lag, consumer_group=f"g{number}") for number in (6, 7, 8, 9)] == [0, 7, 8, 9]
        assert found.value(lag, otel_metric_overflow="true") == sum(range(7))
        broker.offsets.commit("g2", "T", 0, 10)  # falls behind, and takes the place of g7
        broker.offsets.commit("g9", "T", 0, 100)  # is behind no more, and keeps its place until another needs it
        broker.offsets.commit("g7", "T", 0, 95)
        found = await scrape(cluster)
        assert [found.value(lag, consumer_group=f"g{number}") for number in (2, 8)] == [90, 8]
        assert found.value(lag) == sum(range(10)) + 90 - 2 - 9 - 2
        assert found.value("cometmq_consumer_queue_lag_messages") == found.value(lag)
        for family in (lag, "cometmq_consumer_queue_lag_messages", "rocketmq_consumer_lag_latency_milliseconds"):
            assert found.text.count(f"\n{family}{{") <= 4
        assert found.value("rocketmq_consumer_lag_latency_milliseconds", otel_metric_overflow="true") == 0


async def test_a_round_over_the_groups_may_take_several_answers(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work of an answer does not grow with the number of offsets."""
    monkeypatch.setattr(group_lags, "LAGS_PER_ANSWER", 20)
    async with Cluster(clock=clock, broker_keys=KEYS | {"metricsOtelCardinalityLimit": "2"}) as cluster:
        await cluster.create_topic("T", 1)
        await cluster.send(Message("T", b"x"))
        for number in range(40):
            assert cluster.broker(0).offsets.commit(f"g{number}", "T", 0, 0)
        lags = [(await scrape(cluster)).value("rocketmq_consumer_lag_messages") for _ in range(8)]
        assert lags[0] == 10
        assert lags[3:] == [40] * 5


async def test_pairs_of_a_removed_topic_are_passed_over_in_short_steps(clock: VirtualClock) -> None:
    """Until the table is tidied, its groups still have them."""
    async with Cluster(clock=clock, broker_keys=KEYS) as cluster:
        broker = cluster.broker(0)
        for number in range(10_000):
            broker.offsets.commit(f"g{number}", "T", 0, 0)
        broker.offsets.forget(topic="T")
        assert broker.monitor is not None
        assert calls_of_longest(broker.monitor._lags.steps(10)) < 8_000


async def test_an_answer_looks_up_few_messages_for_their_ages_and_none_twice(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_lags, "AGES_PER_ANSWER", 3)
    async with Cluster(clock=clock, broker_keys=KEYS) as cluster:
        broker = cluster.broker(0)
        for number in range(8):
            await cluster.create_topic(f"T{number}", 1)
            await cluster.send(Message(f"T{number}", b"x"))
            for group in ("g", "h", "i"):
                assert broker.offsets.commit(group, f"T{number}", 0, 0)
        await clock.run_for(5)
        looked_up: list[str] = []
        store_time = broker.store.store_time

        def noted(topic: str, queue_id: int, offset: int) -> int:
            looked_up.append(topic)
            return store_time(topic, queue_id, offset)

        monkeypatch.setattr(broker.store, "store_time", noted)
        latency = "rocketmq_consumer_lag_latency_milliseconds"
        told = []
        for _ in range(4):
            found = await scrape(cluster)
            assert found.value("rocketmq_consumer_lag_messages") == 24
            told.append(found.text.count(f"\n{latency}{{"))
        assert told == [9, 18, 24, 24]
        assert sorted(looked_up) == [f"T{number}" for number in range(8)]
        assert found.value(latency, topic="T7", consumer_group="i") >= 5_000


async def test_what_is_deleted_is_told_no_more(clock: VirtualClock) -> None:
    async with Cluster(clock=clock, broker_keys=KEYS) as cluster:
        await cluster.create_topic("Gone")
        await cluster.send(Message("Gone", b"1"))
        await cluster.send(Message("Gone", b"late", delay=timedelta(hours=1)))
        await clock.run_for(TIMER_COUNT_SECONDS)
        await settle()
        found = await scrape(cluster)
        assert found.value("rocketmq_messages_in_total", topic="Gone", message_type="normal") == 1
        assert found.value("rocketmq_timing_messages", topic="Gone") == 1
        cluster.broker(0).topics.delete("Gone")
        assert 'topic="Gone"' not in (await scrape(cluster)).text


async def test_queue_entries_that_lead_to_no_message_count_once_they_are_read(clock: VirtualClock) -> None:
    async with Cluster(clock=clock, broker_keys=KEYS) as cluster:
        await cluster.create_topic("T", queues=1)
        for body in (b"a", b"b", b"c"):
            await cluster.send(Message("T", body))
        offset, size, _ = cluster.broker(0).store.queue("T", 0).unit(1) or (0, 0, 0)
        await cluster.stop_broker(0)
        for path, at, data in (("consumequeue/T/0", 20, bytes(20)), ("commitlog", offset, bytes([255]) * size)):
            with (cluster.store_root(0) / path / f"{0:020}").open("r+b") as file:
                file.seek(at)
                file.write(data)
        await cluster.start_broker(0)
        assert "cometmq_missing_queue_entries{" in (await scrape(cluster)).text
        assert (await scrape(cluster)).value("cometmq_missing_queue_entries") == 0
        assert set(await bodies(cluster.broker(0), "T")) == {b"a", b"c"}
        assert (await scrape(cluster)).value("cometmq_missing_queue_entries") == 1


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
