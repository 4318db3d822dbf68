"""Prometheus alert rules. Each links to the section of docs/alerts.md that explains what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

RUNBOOK: Final = "docs/alerts.md"


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert rule, which fires when ``expression`` has been true for ``minutes``."""

    name: str
    expression: str
    minutes: int
    severity: str
    summary: str


ALERTS: Final = (
    Alert(
        "CometMQServerDown",
        'up{job="cometmq"} == 0',
        1,
        "critical",
        "{{ $labels.instance }} does not answer",
    ),
    Alert(
        "CometMQBrokerNotWritable",
        "rocketmq_broker_permission < 6",
        5,
        "warning",
        "broker {{ $labels.node_id }} has been closed for reading or writing",
    ),
    Alert(
        "CometMQMessagesNotStored",
        "increase(cometmq_messages_not_stored_total[5m]) > 0",
        0,
        "critical",
        "broker {{ $labels.node_id }} cannot store messages",
    ),
    Alert(
        "CometMQMessagesMissing",
        "cometmq_missing_queue_entries > 0",
        0,
        "critical",
        "queues of broker {{ $labels.node_id }} contain entries without a message",
    ),
    Alert(
        "CometMQDiskFull",
        "cometmq_disk_used_ratio > 0.85",
        5,
        "critical",
        "the disk of broker {{ $labels.node_id }} is nearly full",
    ),
    Alert(
        "CometMQDiskFullSoon",
        "predict_linear(cometmq_disk_used_ratio[6h], 86400) > 0.9 and cometmq_disk_used_ratio > 0.5",
        60,
        "warning",
        "the disk of broker {{ $labels.node_id }} will be full within a day",
    ),
    Alert(
        "CometMQSlowFlushes",
        "histogram_quantile(0.99, sum by (node_id, le) (rate(cometmq_flush_seconds_bucket[5m]))) > 0.5",
        10,
        "warning",
        "flushes of broker {{ $labels.node_id }} are slow",
    ),
    Alert(
        "CometMQSlowEventLoop",
        "histogram_quantile(0.99, sum by (node_id, le) (rate(cometmq_event_loop_delay_seconds_bucket[5m]))) > 0.1",
        10,
        "warning",
        "broker {{ $labels.node_id }} answers late",
    ),
    Alert(
        "CometMQAddressWrong",
        "cometmq_advertised_address_wrong > 0",
        10,
        "critical",
        "clients cannot find broker {{ $labels.node_id }} at {{ $labels.address }}",
    ),
    Alert(
        "CometMQNoSlave",
        "(min_over_time(cometmq_slaves[10m]) < max_over_time(cometmq_slaves[1d])) unless cometmq_failover_epoch",
        10,
        "warning",
        "broker {{ $labels.node_id }} has lost a slave",
    ),
    Alert(
        "CometMQSlaveBehind",
        "cometmq_slave_behind_bytes > 268435456",
        5,
        "warning",
        "slave {{ $labels.slave }} of {{ $labels.node_id }} is far behind",
    ),
    Alert(
        "CometMQSlaveNotInSync",
        "cometmq_slave_in_sync == 0",
        5,
        "warning",
        "slave {{ $labels.slave }} of {{ $labels.node_id }} may lack acknowledged messages",
    ),
    Alert(
        "CometMQNoMaster",
        "max by (cluster, node_id) (cometmq_failover_is_master) == 0",
        1,
        "critical",
        "no member of {{ $labels.node_id }} is the master",
    ),
    Alert(
        "CometMQMemberHalted",
        'cometmq_failover_state{state="halted"} == 1',
        0,
        "critical",
        "a member of {{ $labels.node_id }} at {{ $labels.instance }} waits for a person",
    ),
    Alert(
        "CometMQMasterRefusesMessages",
        "cometmq_failover_refuses_messages == 1",
        1,
        "critical",
        "the master of {{ $labels.node_id }} refuses messages",
    ),
    Alert(
        "CometMQMessagesNotConfirmed",
        "min_over_time(cometmq_failover_unconfirmed_bytes[2m]) > 0 "
        "and changes(cometmq_failover_confirmed_offset[2m]) == 0 and cometmq_failover_is_master == 1",
        1,
        "critical",
        "messages to {{ $labels.node_id }} are not acknowledged: a member of the in-sync set lacks them",
    ),
    Alert(
        "CometMQMemberNotInSync",
        "cometmq_failover_in_sync_members < cometmq_failover_members and cometmq_failover_is_master == 1",
        10,
        "warning",
        "a member of {{ $labels.node_id }} is not in sync, so it cannot become the master",
    ),
    Alert(
        "CometMQEngineUnreachable",
        "cometmq_failover_engine_reachable == 0",
        2,
        "warning",
        "etcd or Kubernetes does not answer a member of {{ $labels.node_id }} at {{ $labels.instance }}",
    ),
    Alert(
        "CometMQMasterChanged",
        "increase(cometmq_failover_elections_total[10m]) > 0",
        0,
        "warning",
        "{{ $labels.node_id }} has another master",
    ),
    Alert(
        "CometMQMasterChangesOften",
        "max by (cluster, node_id) (increase(cometmq_failover_elections_total[1h])) > 4",
        0,
        "critical",
        "the master of {{ $labels.node_id }} changes again and again",
    ),
    Alert(
        "CometMQGroupBehind",
        'rocketmq_consumer_lag_latency_milliseconds{is_system="false"} > 600000',
        10,
        "warning",
        "group {{ $labels.consumer_group }} is more than ten minutes behind in {{ $labels.topic }}",
    ),
    Alert(
        "CometMQGroupWithoutConsumers",
        'sum by (node_id, consumer_group) (rocketmq_consumer_lag_messages{is_system="false"}) > 0 '
        "unless on (node_id, consumer_group) "
        "sum by (node_id, consumer_group) (rocketmq_consumer_connections) > 0",
        15,
        "warning",
        "group {{ $labels.consumer_group }} has no consumers",
    ),
    Alert(
        "CometMQDeadLetters",
        "increase(rocketmq_send_to_dlq_messages_total[10m]) > 0",
        0,
        "warning",
        "group {{ $labels.consumer_group }} gives up on messages in {{ $labels.topic }}",
    ),
    Alert(
        "CometMQTransactionsOpen",
        "rocketmq_half_messages > 1000",
        15,
        "warning",
        "producers do not end their transactions on {{ $labels.node_id }}",
    ),
    Alert(
        "CometMQTimerLate",
        "rocketmq_timer_dequeue_latency_milliseconds > 10000",
        5,
        "warning",
        "delayed messages on {{ $labels.node_id }} are late",
    ),
    Alert(
        "CometMQRequestsFail",
        "sum by (node_id, request_code, response_code) "
        '(rate(rocketmq_rpc_latency_milliseconds_count{result!="success"}[5m])) > 1',
        10,
        "warning",
        "{{ $labels.request_code }} on {{ $labels.node_id }} fails with {{ $labels.response_code }}",
    ),
    Alert(
        "CometMQAuditEntriesLost",
        'increase(cometmq_audit_entries_total{outcome="lost"}[10m]) > 0',
        0,
        "critical",
        "{{ $labels.node_id }} cannot write its audit log",
    ),
    Alert(
        "CometMQConnectionsUnread",
        "cometmq_unsent_bytes > 134217728",
        5,
        "warning",
        "clients of {{ $labels.node_id }} do not read their responses",
    ),
)


def rules() -> dict[str, Any]:
    """Return the alert rules in the format of Prometheus rule files."""
    return {
        "groups": [
            {
                "name": "cometmq",
                "rules": [
                    {
                        "alert": alert.name,
                        "expr": alert.expression,
                        "for": f"{alert.minutes}m",
                        "labels": {"severity": alert.severity},
                        "annotations": {
                            "summary": alert.summary,
                            "runbook": f"{RUNBOOK}#{alert.name.lower()}",
                        },
                    }
                    for alert in ALERTS
                ],
            }
        ]
    }
