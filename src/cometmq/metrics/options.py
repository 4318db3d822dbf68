"""The keys for metrics of nameserver and broker, as Apache's broker 5.x names them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cometmq.options import option

DISABLE: Final = "DISABLE"
PROM: Final = "PROM"


@dataclass(frozen=True)
class MetricsOptions:
    """Metrics of a server. A base of configurations; without slots, since these have another base with slots."""

    metrics_exporter_type: str = option(
        DISABLE, "PROM: serve metrics for Prometheus, and health checks, by HTTP.", choices=(DISABLE, PROM)
    )
    metrics_prom_exporter_port: int = option(5_557, "Port for them; 0 takes a free one.", maximum=65_535)
    metrics_prom_exporter_host: str = option("", "Address to listen on for them. Empty: bindAddress.")
    metrics_label: str = option(
        "",
        "Labels of every sample, as region:eu,rack:7.",
        pattern=r"(?:[a-zA-Z_]\w*:[^:,]*(?:,[a-zA-Z_]\w*:[^:,]*)*)?",
        form="name:value pairs joined by commas",
    )

    @property
    def metric_labels(self) -> dict[str, str]:
        """The labels in ``metrics_label``."""
        pairs = (pair.partition(":") for pair in self.metrics_label.split(",") if pair)
        return {name: value for name, _, value in pairs}
