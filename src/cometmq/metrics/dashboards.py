"""A Grafana dashboard, generated from a list of panels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
_WIDTH: Final = 8
_HEIGHT: Final = 8
_ROW_WIDTH: Final = 24
_LAG_LATENCY: Final = "rocketmq_consumer_lag_latency_milliseconds"
_OF_USERS: Final = ',is_system="false"'
_OF: Final = 'cluster=~"$cluster",node_id=~"$broker"'


@dataclass(frozen=True, slots=True)
class Panel:
    """A dashboard panel: its expressions and legends, and its unit in Grafana's notation."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"


def _rate(name: str, by: str, labels: str = "") -> str:
    return f"sum by ({by}) (rate({name}{{{_OF}{labels}}}[$__rate_interval]))"


def _of_sets(name: str, by: str) -> str:
    """Return the sum of a gauge that all brokers of a set report: each set counts once, with the value of its master.

    The slaves of a set without failover are not known as such, so the largest value of its brokers counts.
    """
    masters = f"{name}{{{_OF}}} unless on (cluster, instance) cometmq_failover_is_master == 0"
    labels = ", ".join(dict.fromkeys(("cluster", "node_id", *by.split(", "))))
    return f"sum by ({by}) (max by ({labels}) (sum by (instance, {labels}) ({masters})))"


def _quantile(share: float, name: str, labels: str = "") -> str:
    return f"histogram_quantile({share}, {_rate(f'{name}_bucket', 'node_id, le', labels)})"


ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "Messages",
        (
            Panel("Messages in", ((_rate("rocketmq_messages_in_total", "node_id"), "{{node_id}}"),), "mps"),
            Panel("Messages out", ((_rate("rocketmq_messages_out_total", "node_id"), "{{node_id}}"),), "mps"),
            Panel(
                "Bytes in and out",
                (
                    (_rate("rocketmq_throughput_in_total", "node_id"), "{{node_id}} in"),
                    (_rate("rocketmq_throughput_out_total", "node_id"), "{{node_id}} out"),
                ),
                "Bps",
            ),
            Panel(
                "Topics with the most incoming messages",
                ((f"topk(10, {_rate('rocketmq_messages_in_total', 'topic', _OF_USERS)})", "{{topic}}"),),
                "mps",
            ),
            Panel(
                "Dead letters",
                ((_rate("rocketmq_send_to_dlq_messages_total", "consumer_group"), "{{consumer_group}}"),),
            ),
            Panel(
                "Transactions",
                (
                    (_rate("rocketmq_commit_messages_total", "topic"), "{{topic}} committed"),
                    (_rate("rocketmq_rollback_messages_total", "topic"), "{{topic}} rolled back"),
                    (_of_sets("rocketmq_half_messages", "node_id"), "{{node_id}} open"),
                ),
            ),
        ),
    ),
    (
        "Groups",
        (
            Panel(
                "Messages behind",
                (
                    (
                        f"topk(10, {_of_sets('rocketmq_consumer_lag_messages', 'consumer_group, topic')})",
                        "{{consumer_group}} {{topic}}",
                    ),
                ),
            ),
            Panel(
                "Time behind",
                (
                    (
                        f"topk(10, max by (consumer_group, topic) ({_LAG_LATENCY}{{{_OF}}}))",
                        "{{consumer_group}} {{topic}}",
                    ),
                ),
                "ms",
            ),
            Panel(
                "In flight to consumers",
                (
                    (
                        f"topk(10, {_of_sets('rocketmq_consumer_inflight_messages', 'consumer_group')})",
                        "{{consumer_group}}",
                    ),
                ),
            ),
            Panel(
                "Consumers",
                ((_of_sets("rocketmq_consumer_connections", "consumer_group"), "{{consumer_group}}"),),
            ),
            Panel(
                "Producers",
                ((_of_sets("rocketmq_producer_connections", "node_id, language"), "{{node_id}} {{language}}"),),
            ),
            Panel("Held pulls", ((f"sum by (node_id) (cometmq_held_pulls{{{_OF}}})", "{{node_id}}"),)),
        ),
    ),
    (
        "Requests",
        (
            Panel(
                "Requests",
                ((_rate("rocketmq_rpc_latency_milliseconds_count", "request_code"), "{{request_code}}"),),
                "reqps",
            ),
            Panel(
                "Refused requests",
                (
                    (
                        _rate(
                            "rocketmq_rpc_latency_milliseconds_count",
                            "request_code, response_code",
                            ',result!="success"',
                        ),
                        "{{request_code}} {{response_code}}",
                    ),
                ),
                "reqps",
            ),
            Panel(
                "Send latency, 99 %",
                (
                    (
                        _quantile(0.99, "rocketmq_rpc_latency_milliseconds", ',request_code="send_message_v2"'),
                        "{{node_id}}",
                    ),
                ),
                "ms",
            ),
            Panel(
                "Denied requests",
                (
                    (
                        "sum by (node_id) (rate(cometmq_access_denied_total[$__rate_interval]))",  # nameservers, too
                        "{{node_id}} account or permission",
                    ),
                    (_rate("cometmq_quota_denied_total", "node_id, subject"), "{{node_id}} quota of {{subject}}"),
                ),
                "reqps",
            ),
        ),
    ),
    (
        "Store",
        (
            Panel("Disk", ((f"cometmq_disk_used_ratio{{{_OF}}}", "{{node_id}}"),), "percentunit"),
            Panel("Flushes, 99 %", ((_quantile(0.99, "cometmq_flush_seconds"), "{{node_id}}"),), "s"),
            Panel(
                "Behind the log",
                (
                    (f"rocketmq_storage_flush_behind_bytes{{{_OF}}}", "{{node_id}} flush"),
                    (f"cometmq_slave_behind_bytes{{{_OF}}}", "{{node_id}} slave {{slave}}"),
                ),
                "bytes",
            ),
            Panel("Delayed messages", ((_of_sets("rocketmq_timing_messages", "topic"), "{{topic}}"),)),
            Panel(
                "Delay of overdue messages",
                ((f"rocketmq_timer_dequeue_latency_milliseconds{{{_OF}}}", "{{node_id}}"),),
                "ms",
            ),
            Panel(
                "Oldest message",
                ((f"rocketmq_storage_message_reserve_time_milliseconds{{{_OF}}}", "{{node_id}}"),),
                "ms",
            ),
        ),
    ),
    (
        "Replication and failover",
        (
            Panel(
                "Slaves in sync",
                (
                    (f"sum by (node_id) (cometmq_slave_in_sync{{{_OF}}})", "{{node_id}} in sync"),
                    (f"sum by (node_id) (cometmq_slaves{{{_OF}}})", "{{node_id}} connected"),
                ),
            ),
            Panel(
                "Slaves that fell out of sync",
                (
                    (
                        f"sum by (node_id) (increase(cometmq_slave_in_sync_losses_total{{{_OF}}}[$__rate_interval]))",
                        "{{node_id}}",
                    ),
                ),
            ),
            Panel(
                "Members in sync",
                (
                    (f"max by (node_id) (cometmq_failover_in_sync_members{{{_OF}}})", "{{node_id}} in sync"),
                    (f"max by (node_id) (cometmq_failover_members{{{_OF}}})", "{{node_id}} all"),
                ),
            ),
            Panel("Master", ((f"cometmq_failover_is_master{{{_OF}}}", "{{node_id}} {{instance}}"),)),
            Panel("Epoch", ((f"max by (node_id) (cometmq_failover_epoch{{{_OF}}})", "{{node_id}}"),)),
            Panel(
                "Not confirmed",
                ((f"cometmq_failover_unconfirmed_bytes{{{_OF}}}", "{{node_id}} {{instance}}"),),
                "bytes",
            ),
            Panel(
                "Engine reachable, messages refused",
                (
                    (f"cometmq_failover_engine_reachable{{{_OF}}}", "{{node_id}} {{instance}} engine"),
                    (f"cometmq_failover_refuses_messages{{{_OF}}}", "{{node_id}} {{instance}} refuses"),
                ),
            ),
            Panel(
                "States",
                ((f"count by (node_id, state) (cometmq_failover_state{{{_OF}}} == 1)", "{{node_id}} {{state}}"),),
            ),
            Panel(
                "Time since the last change",
                (
                    (
                        f"time() - max by (node_id) (cometmq_failover_last_change_timestamp_seconds{{{_OF}}})",
                        "{{node_id}}",
                    ),
                ),
                "s",
            ),
        ),
    ),
    (
        "Processes",
        (
            Panel("Processor", ((_rate("cometmq_cpu_seconds_total", "node_id"), "{{node_id}}"),), "percentunit"),
            Panel("Memory", ((f"cometmq_resident_memory_bytes{{{_OF}}}", "{{node_id}}"),), "bytes"),
            Panel(
                "Event loop delay, 99 %",
                ((_quantile(0.99, "cometmq_event_loop_delay_seconds"), "{{node_id}}"),),
                "s",
            ),
            Panel("Connections", ((f"cometmq_connections{{{_OF}}}", "{{node_id}}"),)),
            Panel("Unread answers", ((f"cometmq_unsent_bytes{{{_OF}}}", "{{node_id}}"),), "bytes"),
            Panel("Files and sockets", ((f"cometmq_open_descriptors{{{_OF}}}", "{{node_id}}"),)),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard in Grafana's import format. Grafana asks for the data source on import."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        panels.append({"type": "row", "title": title, "gridPos": {"x": 0, "y": y, "w": _ROW_WIDTH, "h": 1}})
        y += 1
        for number, panel in enumerate(row):
            x = number * _WIDTH % _ROW_WIDTH
            if number and not x:
                y += _HEIGHT
            panels.append(_panel(panel, x, y))
        y += _HEIGHT
    for number, made in enumerate(panels):
        made["id"] = number + 1
    return {
        "title": "CometMQ",
        "uid": "cometmq",
        "tags": ["cometmq", "rocketmq"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"},
                _variable("cluster", "Cluster", "label_values(rocketmq_broker_permission, cluster)"),
                _variable("broker", "Broker", 'label_values(rocketmq_broker_permission{cluster=~"$cluster"}, node_id)'),
            ]
        },
        "panels": panels,
    }


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(panel: Panel, x: int, y: int) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for number, (expression, legend) in enumerate(panel.queries)
        ],
    }
