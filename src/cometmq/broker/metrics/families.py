"""A broker's metric families: those of Apache RocketMQ 5 under the same names, and CometMQ's own.

Names that begin with ``rocketmq_`` are those of Apache's broker 5.5.0, with the same labels and bounds.
"""

from __future__ import annotations

from typing import Final

from cometmq.auth import metrics as access
from cometmq.broker.statistics.creation_times import CREATION_BOUNDS_MS
from cometmq.broker.statistics.pop_counts import SCAN_BOUNDS_MS
from cometmq.broker.statistics.traffic import DELAY_BOUNDS_S, FINISH_BOUNDS_S, SIZE_BOUNDS
from cometmq.metrics import process
from cometmq.metrics.family import Family, Kind
from cometmq.remoting import rpc_latency

_STORAGE: Final = ("storage_type", "storage_medium")
STORAGE: Final = ("local", "disk")
"""Values of the storage labels."""
_IN: Final = ("topic", "message_type", "is_system")
_DEAD: Final = ("topic", "consumer_group", "is_system")
_OUT: Final = ("topic", "consumer_group", "is_retry", "is_system")

BROKER_PERMISSION: Final = Family(
    "rocketmq_broker_permission", Kind.GAUGE, "Broker permission for clients: 4 for reading, 2 for writing, 6 for both."
)
TOPIC_NUMBER: Final = Family("rocketmq_topic_number", Kind.GAUGE, "Number of topics.")
GROUP_NUMBER: Final = Family("rocketmq_consumer_group_number", Kind.GAUGE, "Number of consumer groups.")
PROCESSOR_WATERMARK: Final = Family("rocketmq_processor_watermark", Kind.GAUGE, "Pending requests.", ("processor",))

MESSAGES_IN: Final = Family("rocketmq_messages_in_total", Kind.COUNTER, "Stored messages.", _IN)
THROUGHPUT_IN: Final = Family(
    "rocketmq_throughput_in_total", Kind.COUNTER, "Total size of stored messages, in bytes.", _IN
)
MESSAGE_SIZE: Final = Family(
    "rocketmq_message_size", Kind.HISTOGRAM, "Sizes of stored messages, in bytes.", _IN, SIZE_BOUNDS
)
MESSAGES_OUT: Final = Family("rocketmq_messages_out_total", Kind.COUNTER, "Messages sent to consumers.", _OUT)
THROUGHPUT_OUT: Final = Family("rocketmq_throughput_out_total", Kind.COUNTER, "Bytes sent to consumers.", _OUT)
TO_DLQ: Final = Family("rocketmq_send_to_dlq_messages_total", Kind.COUNTER, "Messages that became dead letters.", _DEAD)
EXPIRED: Final = Family(
    "cometmq_expired_messages_total",
    Kind.COUNTER,
    "Messages that a group did not receive because their life times had ended.",
    _DEAD,
)

TOPIC_CREATIONS: Final = Family(
    "rocketmq_topic_create_execution_time_milliseconds",
    Kind.HISTOGRAM,
    "Duration of requests that create or change topics.",
    ("invocation_status", "is_system"),
    CREATION_BOUNDS_MS,
)
GROUP_CREATIONS: Final = Family(
    "rocketmq_consumer_group_create_execution_time_milliseconds",
    Kind.HISTOGRAM,
    "Duration of requests that create or change consumer groups.",
    ("invocation_status",),
    CREATION_BOUNDS_MS,
)

PRODUCER_CONNECTIONS: Final = Family(
    "rocketmq_producer_connections", Kind.GAUGE, "Connected producers.", ("language", "version", "protocol_type")
)
CONSUMER_CONNECTIONS: Final = Family(
    "rocketmq_consumer_connections",
    Kind.GAUGE,
    "Connected consumers.",
    ("consumer_group", "language", "version", "protocol_type", "consume_mode", "is_system"),
)

LAG_MESSAGES: Final = Family(
    "rocketmq_consumer_lag_messages", Kind.GAUGE, "Messages that a group has not consumed.", _OUT
)
LAG_LATENCY: Final = Family(
    "rocketmq_consumer_lag_latency_milliseconds",
    Kind.GAUGE,
    "Age of the oldest message that a group has not consumed; 0 if there is none.",
    _OUT,
)
INFLIGHT: Final = Family(
    "rocketmq_consumer_inflight_messages",
    Kind.GAUGE,
    "Messages that have been sent to a group but not consumed yet.",
    _OUT,
)
READY: Final = Family(
    "rocketmq_consumer_ready_messages", Kind.GAUGE, "Messages that have not been sent to a group yet.", _OUT
)
QUEUEING_LATENCY: Final = Family(
    "rocketmq_consumer_queueing_latency_milliseconds",
    Kind.GAUGE,
    "Age of the oldest message that has not been sent to a group yet; 0 if there is none.",
    _OUT,
)

HALF_MESSAGES: Final = Family("rocketmq_half_messages", Kind.GAUGE, "Open transactions.", ("topic",))
COMMITS: Final = Family("rocketmq_commit_messages_total", Kind.COUNTER, "Committed transactions.", ("topic",))
ROLLBACKS: Final = Family("rocketmq_rollback_messages_total", Kind.COUNTER, "Rolled back transactions.", ("topic",))
FINISH_LATENCY: Final = Family(
    "rocketmq_finish_message_latency_milliseconds",
    Kind.HISTOGRAM,
    "Time from a half message to its commit; in seconds despite the name, as in Apache.",
    ("topic",),
    FINISH_BOUNDS_S,
)

STORAGE_SIZE: Final = Family("rocketmq_storage_size_bytes", Kind.GAUGE, "Size of the commit log.", _STORAGE)
FLUSH_BEHIND: Final = Family(
    "rocketmq_storage_flush_behind_bytes", Kind.GAUGE, "Bytes of the log that have not been flushed.", _STORAGE
)
DISPATCH_BEHIND: Final = Family(
    "rocketmq_storage_dispatch_behind_bytes", Kind.GAUGE, "Bytes of the log that consumers cannot see yet.", _STORAGE
)
RESERVE_TIME: Final = Family(
    "rocketmq_storage_message_reserve_time_milliseconds", Kind.GAUGE, "Age of the oldest message.", _STORAGE
)

TIMER_ENQUEUE: Final = Family(
    "rocketmq_timer_enqueue_total", Kind.COUNTER, "Received messages with arbitrary delays.", ("topic", *_STORAGE)
)
TIMER_DEQUEUE: Final = Family(
    "rocketmq_timer_dequeue_total", Kind.COUNTER, "Delivered messages with arbitrary delays.", ("topic", *_STORAGE)
)
TIMER_ENQUEUE_LAG: Final = Family(
    "rocketmq_timer_enqueue_lag",
    Kind.GAUGE,
    "Messages with arbitrary delays that the timer has not read yet.",
    _STORAGE,
)
TIMER_ENQUEUE_LATENCY: Final = Family(
    "rocketmq_timer_enqueue_latency_milliseconds",
    Kind.GAUGE,
    "Age of the oldest message with an arbitrary delay that the timer has not read yet; 0 if there is none.",
    _STORAGE,
)
TIMER_DEQUEUE_LAG: Final = Family(
    "rocketmq_timer_dequeue_lag",
    Kind.GAUGE,
    "Due messages with arbitrary delays that have not been delivered yet.",
    _STORAGE,
)
TIMER_DEQUEUE_LATENCY: Final = Family(
    "rocketmq_timer_dequeue_latency_milliseconds",
    Kind.GAUGE,
    "Time since the oldest undelivered message with an arbitrary delay became due.",
    _STORAGE,
)
DELAY_LATENCY: Final = Family(
    "rocketmq_delay_message_latency_seconds",
    Kind.HISTOGRAM,
    "Arbitrary delays requested for messages.",
    ("topic", *_STORAGE),
    DELAY_BOUNDS_S,
)
TIMING_MESSAGES: Final = Family(
    "rocketmq_timing_messages", Kind.GAUGE, "Pending messages with arbitrary delays.", ("topic", *_STORAGE)
)
TIMER_SNAPSHOT: Final = Family(
    "rocketmq_timer_message_snapshot",
    Kind.GAUGE,
    "Messages with arbitrary delays that are due within timer_bound_s seconds.",
    ("timer_bound_s", *_STORAGE),
)

POP_REVIVE_LAG: Final = Family(
    "rocketmq_pop_revive_lag_milliseconds",
    Kind.GAUGE,
    "Number of expired popped messages that are not visible again yet; as in Apache, not a time.",
    ("queue_id",),
)
POP_REVIVE_LATENCY: Final = Family(
    "rocketmq_pop_revive_latency_milliseconds",
    Kind.GAUGE,
    "Time since the oldest expired popped message became due.",
    ("queue_id",),
)

POP_IN: Final = Family(
    "rocketmq_pop_revive_in_message_total",
    Kind.COUNTER,
    "Logged pops (CK) and acknowledgements (ACK); a change of the invisible time counts as one of each.",
    ("consumer_group", "topic", "revive_message_type", "put_status"),
)
POP_OUT: Final = Family(
    "rocketmq_pop_revive_out_message_total",
    Kind.COUNTER,
    "Pops and acknowledgements that have taken effect, because they are in the log.",
    ("consumer_group", "topic", "queue_id", "revive_message_type"),
)
POP_RETRIES: Final = Family(
    "rocketmq_pop_revive_retry_messages_total",
    Kind.COUNTER,
    "Popped messages that were stored in the retry topic when their invisible time ended.",
    ("consumer_group", "topic", "put_status"),
)
POP_SCANS: Final = Family(
    "rocketmq_pop_buffer_scan_time_consume_milliseconds",
    Kind.HISTOGRAM,
    "Duration of checks for due popped messages.",
    (),
    SCAN_BOUNDS_MS,
)
POP_CHECKPOINTS: Final = Family("rocketmq_pop_checkpoint_buffer_size", Kind.GAUGE, "Popped messages in memory.")
POP_OFFSETS: Final = Family(
    "rocketmq_pop_offset_buffer_size", Kind.GAUGE, "Pops and acknowledgements that are not in the log yet."
)

QUEUE_LAG: Final = Family(
    "cometmq_consumer_queue_lag_messages",
    Kind.GAUGE,
    "Messages in a queue that a group has not consumed (with metricsPerQueue).",
    ("topic", "consumer_group", "queue_id"),
)
HELD_PULLS: Final = Family("cometmq_held_pulls", Kind.GAUGE, "Pulls that are waiting for messages.")
LOOP_DELAY: Final = Family(
    "cometmq_event_loop_delay_seconds",
    Kind.HISTOGRAM,
    "Delay of an event loop timer, measured ten times a second.",
    (),
    (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1),
)
FLUSHES: Final = Family(
    "cometmq_flush_seconds",
    Kind.HISTOGRAM,
    "Duration of commit log flushes (fdatasync).",
    (),
    (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5),
)
REFUSED_MESSAGES: Final = Family(
    "cometmq_messages_not_stored_total", Kind.COUNTER, "Messages that the store could not write."
)
DISK_RATIO: Final = Family("cometmq_disk_used_ratio", Kind.GAUGE, "Disk usage of the commit log's disk, from 0 to 1.")
MISSING_ENTRIES: Final = Family(
    "cometmq_missing_queue_entries", Kind.GAUGE, "Queue entries that were read but point to no message."
)
SLAVE_BEHIND: Final = Family(
    "cometmq_slave_behind_bytes", Kind.GAUGE, "Bytes of the log that a slave has not confirmed.", ("slave",)
)
ADDRESS_WRONG: Final = Family(
    "cometmq_advertised_address_wrong",
    Kind.GAUGE,
    "1 if the broker cannot reach itself at its advertised address for a listener or for all clients.",
    ("listener", "address"),
)
ARCHIVE_READABLE: Final = Family(
    "cometmq_archive_readable", Kind.GAUGE, "1 if the archive that archive.read names can be read, otherwise 0."
)
ARCHIVE_MESSAGES: Final = Family(
    "cometmq_archive_messages_read_total", Kind.COUNTER, "Messages that were read from the archive."
)
ARCHIVE_FAILURES: Final = Family(
    "cometmq_archive_failures_total",
    Kind.COUNTER,
    "Requests that the archive reader did not answer, or answered with an error.",
)
ARCHIVE_RESTARTS: Final = Family(
    "cometmq_archive_reader_restarts_total", Kind.COUNTER, "Archive readers that ended unexpectedly."
)
ARCHIVE_WAITING: Final = Family(
    "cometmq_archive_waiting_requests", Kind.GAUGE, "Requests that wait for the archive reader."
)
SLAVE_IN_SYNC: Final = Family(
    "cometmq_slave_in_sync",
    Kind.GAUGE,
    "1 if a slave has every message that was acknowledged with SYNC_MASTER, otherwise 0.",
    ("slave",),
)
SLAVE_REMOVALS: Final = Family(
    "cometmq_slave_in_sync_losses_total", Kind.COUNTER, "Times that a connected slave has fallen out of sync."
)
SLAVES: Final = Family("cometmq_slaves", Kind.GAUGE, "Connected slaves.")
FAILOVER_EPOCH: Final = Family(
    "cometmq_failover_epoch", Kind.GAUGE, "The highest epoch that this member of a set has read."
)
FAILOVER_IS_MASTER: Final = Family(
    "cometmq_failover_is_master", Kind.GAUGE, "1 if this member is the master of its set, otherwise 0."
)
FAILOVER_STATE: Final = Family(
    "cometmq_failover_state", Kind.GAUGE, "1 for the state in which this member is, 0 for all others.", ("state",)
)
FAILOVER_MEMBERS: Final = Family("cometmq_failover_members", Kind.GAUGE, "Replicas in the document of the set.")
FAILOVER_IN_SYNC: Final = Family(
    "cometmq_failover_in_sync_members", Kind.GAUGE, "Members in the in-sync set, the master included."
)
FAILOVER_REFUSES: Final = Family(
    "cometmq_failover_refuses_messages",
    Kind.GAUGE,
    "1 if this member is the master and refuses messages: too few members are in sync, or it hands over or doubts.",
)
FAILOVER_CONFIRMED: Final = Family(
    "cometmq_failover_confirmed_offset",
    Kind.GAUGE,
    "Log offset up to which all counted members have the log, as far as this member knows.",
)
FAILOVER_UNCONFIRMED: Final = Family(
    "cometmq_failover_unconfirmed_bytes", Kind.GAUGE, "Bytes at the end of the log that are not confirmed."
)
FAILOVER_ENGINE: Final = Family(
    "cometmq_failover_engine_reachable", Kind.GAUGE, "1 if etcd or Kubernetes has answered the last request."
)
FAILOVER_ELECTIONS: Final = Family(
    "cometmq_failover_elections_total", Kind.COUNTER, "Elections and handovers since this process started."
)
FAILOVER_CHANGED: Final = Family(
    "cometmq_failover_last_change_timestamp_seconds",
    Kind.GAUGE,
    "Time of the last change of the set's document, in seconds since 1970.",
)
_OF_ALL_SERVERS: Final = (access, process, rpc_latency)
FAMILIES: Final = tuple(
    sorted(
        (
            found
            for found in (
                *globals().values(),
                *(value for module in _OF_ALL_SERVERS for value in vars(module).values()),
            )
            if isinstance(found, Family)
        ),
        key=lambda found: found.name,
    )
)
"""All families, by name."""
