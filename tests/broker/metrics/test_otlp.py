"""Metrics sent to a collector: a real endpoint by gRPC and by HTTP that decodes what comes."""

from __future__ import annotations

import asyncio
import gzip
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as messages
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as service
from tests.broker.conftest import StartBroker
from tests.helpers.waiting import until

from cometmq.broker.metrics.families import FAMILIES
from cometmq.client import Message, Producer
from cometmq.metrics.otlp import exporter_of, instrument_of
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.options import ConfigError
from cometmq.testing import VirtualClock, free_port


class Collector:
    """Keeps the metrics of every request, by name, and the requests' headers."""

    def __init__(self) -> None:
        self.metrics: dict[str, Any] = {}
        self.headers: dict[str, str] = {}
        self.requests = 0

    def take(self, request: Any, headers: dict[str, str]) -> None:
        self.headers = headers
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                self.metrics |= {metric.name: metric for metric in scope.metrics}
        self.requests += 1


class _Grpc(service.MetricsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self._collector.take(request, {key: str(value) for key, value in context.invocation_metadata()})
        return messages.ExportMetricsServiceResponse()


@pytest.fixture
def by_grpc() -> Iterator[tuple[Collector, str]]:
    collector = Collector()
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        service.add_MetricsServiceServicer_to_server(_Grpc(collector), server)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield collector, f"http://127.0.0.1:{port}"
        server.stop(0).wait()


@pytest.fixture
def by_http() -> Iterator[tuple[Collector, str]]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/metrics"
            headers = {key.lower(): value for key, value in self.headers.items()}
            collector.take(messages.ExportMetricsServiceRequest.FromString(body), headers)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield collector, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("kind", ["OTLP_GRPC", "OTLP_HTTP"])
async def test_a_broker_sends_its_metrics_to_a_collector(
    kind: str,
    start_broker: StartBroker,
    clock: VirtualClock,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    collector, target = request.getfixturevalue("by_grpc" if kind == "OTLP_GRPC" else "by_http")
    nameserver = NameServer(
        NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json"))
    )
    await nameserver.start()
    broker = await start_broker(
        namesrv_addr=nameserver.address,
        metrics_exporter_type=kind,
        metrics_prom_exporter_port=0,
        metrics_grpc_exporter_target=target,
        metrics_grpc_exporter_header="x-tenant:shop",
        metrics_label="region:eu",
    )
    async with Producer("senders", nameserver.address) as producer:
        for _ in range(3):
            await producer.send(Message("Orders", b"x" * 100))
    clock.advance(60)
    await until(lambda: collector.requests)
    await nameserver.stop()
    assert collector.headers["x-tenant"] == "shop"
    [point] = [
        point
        for point in collector.metrics["rocketmq_messages_in_total"].sum.data_points
        if any(pair.value.string_value == "Orders" for pair in point.attributes)
    ]
    assert collector.metrics["rocketmq_messages_in_total"].sum.is_monotonic
    assert point.as_double == 3 or point.as_int == 3
    attributes = {pair.key: pair.value.string_value for pair in point.attributes}
    assert attributes["region"] == "eu"
    assert (attributes["cluster"], attributes["node_type"], attributes["node_id"]) == (
        *("DefaultCluster", "broker"),
        "broker-a",
    )
    sizes = collector.metrics["rocketmq_message_size"].histogram.data_points[0]
    assert sizes.count == 3
    assert sum(sizes.bucket_counts) == 3
    latency = collector.metrics["rocketmq_rpc_latency"]
    assert latency.unit == "milliseconds"
    assert collector.metrics["rocketmq_storage_size"].gauge.data_points
    assert broker.monitor is not None
    assert broker.monitor.url, "health checks stay"
    before = collector.requests
    await broker.stop()
    assert collector.requests > before, "what came last is sent at the stop"


async def test_a_nameserver_sends_its_metrics_too(by_grpc: tuple[Collector, str], tmp_path: Path) -> None:
    collector, target = by_grpc
    config = NamesrvConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        kv_config_path=str(tmp_path / "kv.json"),
        metrics_exporter_type="OTLP_GRPC",
        metrics_prom_exporter_port=0,
        metrics_grpc_exporter_target=target,
    )
    server = NameServer(config, clock=VirtualClock())
    await server.start()
    await server.stop()
    assert "cometmq_routed_topics" in collector.metrics


async def test_a_collector_that_is_away_is_told_once_and_harms_nobody(
    start_broker: StartBroker, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    broker = await start_broker(
        metrics_exporter_type="OTLP_HTTP",
        metrics_prom_exporter_port=0,
        metrics_grpc_exporter_target=f"http://127.0.0.1:{free_port()}",
        metric_grpc_exporter_time_out_in_mills=100,
    )
    for _ in range(2):
        clock.advance(60)
        await asyncio.sleep(0)
    await until(lambda: "cannot send metrics" in caplog.text)
    await broker.stop()
    assert caplog.text.count("cannot send metrics") == 1


def test_a_target_is_needed() -> None:
    with pytest.raises(ConfigError, match="needs metricsGrpcExporterTarget"):
        exporter_of(NamesrvConfig(metrics_exporter_type="OTLP_GRPC"))


def test_units_are_apart_from_names_where_apache_s_instruments_have_them() -> None:
    found = {family.name: instrument_of(family) for family in FAMILIES}
    assert found["rocketmq_consumer_lag_latency_milliseconds"] == ("rocketmq_consumer_lag_latency", "milliseconds")
    assert found["rocketmq_storage_flush_behind_bytes"] == ("rocketmq_storage_flush_behind_bytes", "bytes")
    assert found["rocketmq_delay_message_latency_seconds"] == ("rocketmq_delay_message_latency", "seconds")
    assert found["rocketmq_messages_in_total"] == ("rocketmq_messages_in_total", "")
    assert found["cometmq_turn_seconds"] == ("cometmq_turn_seconds", "seconds")
