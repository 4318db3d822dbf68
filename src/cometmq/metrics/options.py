"""The metrics keys for nameservers and brokers, under the names that Apache's 5.x broker uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cometmq.message.ports import METRICS_PORT
from cometmq.options import option
from cometmq.options.forms import one_of, text

DISABLE: Final = "DISABLE"
PROM: Final = "PROM"
OTLP_GRPC: Final = "OTLP_GRPC"
OTLP_HTTP: Final = "OTLP_HTTP"
"""An exporter type that only CometMQ supports; Apache's brokers export only over gRPC."""


@dataclass(frozen=True)
class MetricsOptions:
    """The metrics options of a server, as a base class for configurations."""

    metrics_exporter_type: str = option(
        DISABLE,
        "PROM: serve Prometheus metrics and health checks over HTTP. OTLP_GRPC, OTLP_HTTP: also send metrics to an "
        "OpenTelemetry collector.",
        form=one_of(DISABLE, PROM, OTLP_GRPC, OTLP_HTTP),
    )
    metrics_prom_exporter_port: int = option(METRICS_PORT, "Port for metrics. 0 selects a free port.", maximum=65_535)
    metrics_prom_exporter_host: str = option("", "Address on which metrics are served. Empty: bindAddress.")
    metrics_grpc_exporter_target: str = option(
        "", "OTLP: address of the collector. TLS is used unless the address begins with http://."
    )
    metrics_grpc_exporter_header: str = option(
        "",
        "OTLP: headers for requests to the collector, as name:value,name:value.",
        form=text(r"(?:[\w.-]+:[^,]*(?:,[\w.-]+:[^,]*)*)?", "name:value pairs joined by commas"),
        secret=True,
    )
    metric_grpc_exporter_time_out_in_mills: int = option(
        3_000, "OTLP: timeout for requests to the collector, in milliseconds.", minimum=100, maximum=60_000
    )
    metric_grpc_exporter_interval_in_mills: int = option(
        60_000, "OTLP: interval between requests to the collector, in milliseconds.", minimum=100, maximum=3_600_000
    )
    metrics_label: str = option(
        "",
        "Labels that are added to every sample, such as region:eu,rack:7.",
        form=text(r"(?:[a-zA-Z_]\w*:[^:,]*(?:,[a-zA-Z_]\w*:[^:,]*)*)?", "name:value pairs joined by commas"),
    )

    @property
    def metric_labels(self) -> dict[str, str]:
        """The labels in ``metrics_label``."""
        return _pairs(self.metrics_label)

    @property
    def exporter_headers(self) -> dict[str, str]:
        """The headers in ``metrics_grpc_exporter_header``."""
        return _pairs(self.metrics_grpc_exporter_header)

    @property
    def has_metrics(self) -> bool:
        """Return whether metrics are enabled."""
        return self.metrics_exporter_type != DISABLE

    @property
    def sends_metrics(self) -> bool:
        """Return whether metrics are sent to a collector."""
        return self.metrics_exporter_type in (OTLP_GRPC, OTLP_HTTP)


def _pairs(text: str) -> dict[str, str]:
    """Parse ``name:value,name:value``."""
    pairs = (pair.partition(":") for pair in text.split(",") if pair)
    return {name.strip(): value.strip() for name, _, value in pairs}
