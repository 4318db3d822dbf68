"""Pushes metrics to an OpenTelemetry collector at intervals (OTLP), like Apache's broker with ``OTLP_GRPC``.

The families are those of ``/metrics``, under the names of Apache's instruments: without the unit, which is a separate
field. They are collected on the event loop in slices, and a thread sends them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Protocol

from cometmq import __version__
from cometmq.clock import Clock
from cometmq.errors import pip_install
from cometmq.metrics.family import OVERFLOW, Family, Histogram, Kind, Steps
from cometmq.metrics.options import OTLP_GRPC, MetricsOptions
from cometmq.options import ConfigError
from cometmq.periodic import Periodic
from cometmq.threads import in_thread

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricsData

_log = logging.getLogger(__name__)

_UNITS: Final = ("milliseconds", "seconds", "bytes")
_NAMES_WITH_UNIT: Final = ("rocketmq_storage_flush_behind_bytes", "rocketmq_storage_dispatch_behind_bytes")
"""Apache's instruments whose names end with the unit."""
_OVERFLOW_ATTRIBUTE: Final = "otel.metric.overflow"
_BATCH_POINTS: Final = 5_000
"""Maximum number of values in an export request; collectors accept 4 MB."""

Snapshot = tuple[Family, tuple[str, ...], float | tuple[tuple[int, ...], float]]
"""An immutable copy of a sample; a histogram is copied as its counts and sum."""


class Exporter(Protocol):
    """The methods of the OpenTelemetry SDK's exporters that CometMQ uses."""

    def export(self, metrics_data: MetricsData, timeout_millis: float) -> Any:
        """Send data; return whether it was accepted."""

    def shutdown(self, timeout_millis: float = 30_000) -> None:
        """Close the connection."""


class OtlpSender:
    """Collects and sends metrics every ``metricGrpcExporterIntervalInMills`` milliseconds, and once more when stopped.

    :param steps: yields the current samples.
    :raises ConfigError: the target or a package is missing.
    """

    def __init__(self, options: MetricsOptions, steps: Callable[[], Steps], *, clock: Clock) -> None:
        self._options = options
        self._steps = steps
        self._clock = clock
        self._exporter = exporter_of(options)
        self._common: Mapping[str, str] = {}
        self._began_ns = clock.now_ms() * 1_000_000
        interval_s = options.metric_grpc_exporter_interval_in_mills / 1000
        self._sends = Periodic("sending metrics", interval_s, self._send, clock=clock)
        self._is_failing = False

    def start(self, common: Mapping[str, str]) -> None:
        """Start sending.

        :param common: labels that every sample has.
        """
        self._common = common
        self._sends.start()

    async def stop(self) -> None:
        """Send the latest metrics and stop."""
        await self._sends.stop(cancels=True)
        await self._send()
        await in_thread(self._exporter.shutdown)

    async def _send(self) -> None:
        samples = await self._collected()
        now_ns = self._clock.now_ms() * 1_000_000
        try:
            was_taken = await in_thread(self._export, samples, now_ns)
        except Exception:
            _log.exception("sending metrics failed")
            was_taken = False
        target = self._options.metrics_grpc_exporter_target
        if was_taken and self._is_failing:
            _log.info("sending metrics to %s works again", target)
        elif not was_taken and not self._is_failing:
            _log.warning("cannot send metrics to %s; retrying", target)
        self._is_failing = not was_taken

    async def _collected(self) -> list[Snapshot]:
        found: list[Snapshot] = []
        for samples in self._steps():
            for family, labels, value in samples:
                kept = (tuple(value.counts), value.sum) if isinstance(value, Histogram) else value
                found.append((family, labels, kept))
            await asyncio.sleep(0)
        return found

    def _export(self, samples: list[Snapshot], now_ns: int) -> bool:
        timeout_ms = self._options.metric_grpc_exporter_time_out_in_mills
        data = metrics_data(samples, self._common, self._began_ns, now_ns)
        return bool(self._exporter.export(data, timeout_millis=timeout_ms).name == "SUCCESS")


def exporter_of(options: MetricsOptions) -> Exporter:
    """Create the OpenTelemetry SDK exporter for these options.

    :raises ConfigError: the target or a package is missing.
    """
    kind, target = options.metrics_exporter_type, options.metrics_grpc_exporter_target
    if not target:
        raise ConfigError(
            f"metricsExporterType={kind} needs metricsGrpcExporterTarget",
            next_step="set it to the collector's address, for example http://127.0.0.1:4317 (4318 with OTLP_HTTP)",
        )
    package = "grpc" if kind == OTLP_GRPC else "http"
    try:
        module = import_module(f"opentelemetry.exporter.otlp.proto.{package}.metric_exporter")
    except ImportError:
        raise ConfigError(
            f"metricsExporterType={kind} needs packages that are not installed", next_step=pip_install("otlp")
        ) from None
    address = target if target.startswith(("http://", "https://")) else f"https://{target}"
    if kind != OTLP_GRPC and not address.endswith("/v1/metrics"):
        address = f"{address.rstrip('/')}/v1/metrics"
    exporter: Exporter = module.OTLPMetricExporter(
        endpoint=address,
        headers={name.lower(): value for name, value in options.exporter_headers.items()},
        timeout=options.metric_grpc_exporter_time_out_in_mills / 1000,
        max_export_batch_size=_BATCH_POINTS,
    )
    return exporter


def instrument_of(family: Family) -> tuple[str, str]:
    """Return the name and unit of Apache's instrument for a metric family."""
    name = family.name
    unit = next((unit for unit in _UNITS if name.endswith(f"_{unit}")), "")
    if not unit or not name.startswith("rocketmq_") or name in _NAMES_WITH_UNIT:
        return name, unit
    return name.removesuffix(f"_{unit}"), unit


def metrics_data(samples: list[Snapshot], common: Mapping[str, str], began_ns: int, now_ns: int) -> MetricsData:
    """Convert samples to the OpenTelemetry SDK's data format.

    :param common: attributes that every sample has.
    """
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    samples = sorted(samples, key=lambda sample: sample[0].name)
    metrics = [
        _metric(family, list(group), common, began_ns, now_ns)
        for family, group in groupby(samples, key=lambda sample: sample[0])
    ]
    resource = Resource({"service.name": "cometmq", "service.instance.id": common.get("node_id", "")})
    scope = ScopeMetrics(InstrumentationScope("cometmq", __version__), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(family: Family, group: list[Snapshot], common: Mapping[str, str], began_ns: int, now_ns: int) -> Metric:
    from opentelemetry.sdk.metrics import export as sdk

    points: list[Any] = []
    for _, labels, value in group:
        if labels == OVERFLOW and family.labels:
            attributes: dict[str, str | bool] = {**common, _OVERFLOW_ATTRIBUTE: True}
        else:
            attributes = {**common, **dict(zip(family.labels, labels, strict=True))}
        if isinstance(value, tuple):
            counts, total = value
            points.append(
                sdk.HistogramDataPoint(
                    attributes, began_ns, now_ns, sum(counts), total, counts, family.bounds, float("inf"), float("-inf")
                )
            )
        else:
            points.append(sdk.NumberDataPoint(attributes, began_ns, now_ns, value))
    cumulative = sdk.AggregationTemporality.CUMULATIVE
    data: Any
    if family.kind is Kind.COUNTER:
        data = sdk.Sum(points, cumulative, is_monotonic=True)
    elif family.kind is Kind.HISTOGRAM:
        data = sdk.Histogram(points, cumulative)
    else:
        data = sdk.Gauge(points)
    name, unit = instrument_of(family)
    return sdk.Metric(name, family.help, unit, data)
