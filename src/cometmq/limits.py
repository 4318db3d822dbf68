"""Limits that several packages share, with units in names and reasons next to them; others are in the packages'
``limits``."""

from __future__ import annotations

from typing import Final

# --- Frames and names ---------------------------------------------------------------------------
MAX_FRAME_BYTES: Final = 16_777_216
"""Largest frame after its length word. Apache's ``com.rocketmq.remoting.frameMaxLength``."""
MAX_HEADER_BYTES: Final = 1_048_576
"""Largest frame header. Properties (32 KiB) escaped as JSON stay far below; more is an attack."""
MAX_EXT_FIELDS: Final = 256
"""Fields of one header. Apache's largest header has 20; clients add a few."""
MAX_KEPT_VALUE_CHARS: Final = 4_096
"""Value of a configuration key of Apache's without effect here: the longest real ones list addresses or labels."""
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""Default of ``maxMessageSize``: the body of one message, or of one batch."""
MAX_PROPERTIES_BYTES: Final = 32_767
"""Properties of one message: their length is stored as a signed int16."""
MAX_TOPIC_CHARS: Final = 127
"""Topic name. Its length is stored as a signed int8."""
MAX_GROUP_CHARS: Final = 120
"""Group name: ``%RETRY%`` + group must still be a topic name of at most 127 characters."""
MAX_BATCH_MESSAGES: Final = 10_000
"""Messages in one batch body, so that one frame cannot hold the loop for long."""
MAX_DECOMPRESSED_BYTES: Final = 64 * 1024 * 1024
"""A body after decompression: sixteen times the largest body sent. More counts as a bomb."""
MAX_LOOSE_BODY_BYTES: Final = 128 * 1024
"""A JSON body of a request that is not strictly of its form, as those of C++ clients: about 40 ms at worst, and
room for 500 subscriptions."""
MAX_PARSED_BODY_BYTES: Final = 16 * 1024
"""A body of a request in fastjson's dialect, which no client uses for requests to brokers: about 30 ms."""
MAX_REMARK_CHARS: Final = 4_096
"""Remark of an answer: some repeat the request, and a client refuses headers above MAX_HEADER_BYTES."""
MAX_CONFIG_BYTES: Final = 1024 * 1024
"""A file of Java properties; real ones have a few kB."""
MAX_CONFIG_UPDATE_BYTES: Final = 64 * 1024
"""Properties text that changes a configuration (codes 25 and 318); tools send one key, Apache's whole one has 8 KB."""

# --- Metrics ------------------------------------------------------------------------------------
METRIC_SAMPLES_PER_SLICE: Final = 250
"""Samples that one round collects or writes: about a millisecond."""
MAX_RPC_SERIES: Final = 4_096
"""Pairs of request and response code that are counted; others count together."""
MAX_MONITOR_CONNECTIONS: Final = 32
"""Open connections of the port for monitoring."""
MAX_MONITOR_HEAD_BYTES: Final = 16_384
"""Head of a request for monitoring."""
MONITOR_SECONDS: Final = 10.0
"""Time for a request for monitoring to arrive, and for its answer to be read; Prometheus waits as long."""
STALLED_MONITOR_SECONDS: Final = 1.0
"""Time that one of several monitors, which get one collection together, may keep the others waiting."""

# --- Server connections -------------------------------------------------------------------------
MAX_CONNECTIONS: Final = 16_384
"""Open connections of one server; each costs a file descriptor and about 10 KB. With a low ``ulimit -n`` fewer: an
eighth of the descriptors, and those of open files, stay free."""
SERVER_IDLE_SECONDS: Final = 120.0
"""A connection without traffic for this long is closed (Apache: NettyServerConfig, all-idle 120 s)."""
FRAME_SECONDS: Final = 30.0
"""Time for one frame to arrive completely, so that slow writers cannot hold memory."""
HANDSHAKE_SECONDS: Final = 10.0
"""Time for a TLS handshake, from the client's first byte (Netty: 10 s)."""
MAX_HANDSHAKES: Final = 2_048
"""TLS handshakes of one server that wait for their clients, 50 KB each; above it the oldest ends."""
MAX_CLIENT_HELLO_BYTES: Final = 65_536
"""Bytes that a client may send before the server's first answer in a handshake; TLS allows its first message 16 KB."""
TLS_PIECE_BYTES: Final = 16_384
"""Bytes that one connection decrypts between two reads of the clock."""
ROUND_SECONDS: Final = 0.001
"""Work for one connection in one round of a server; its other requests wait for the next round. So long the others wait
for a client that sends a thousand requests at once."""
LATE_SECONDS: Final = 0.005
"""A connection whose one request exceeds ROUND_SECONDS by this goes on only after everything that has arrived since."""
FRAMES_PER_LOOK: Final = 16
"""Sends and commits of offsets of one connection between two reads of the clock; after other requests it is read each
time."""
MAX_POSTPONED_BYTES: Final = 64 << 20
"""Maximum size of all requests that a server postpones, such as sends to a topic that is being written; further ones
get SYSTEM_BUSY."""
MAX_UNFINISHED_BYTES: Final = 256 * 1024 * 1024
"""Incomplete frames of all connections of one server; above it the connection with the largest is closed."""
WRITE_HIGH_WATER_BYTES: Final = 8 * 1024 * 1024
"""Unsent answers of one connection; above it no request of the connection is read."""
WRITE_LOW_WATER_BYTES: Final = 1 * 1024 * 1024
"""Unsent answers of one connection; below it its requests are read again."""
MAX_UNSENT_BYTES: Final = 256 * 1024 * 1024
"""Unsent answers of all connections of one server. Above it no connection with unsent answers is read; above twice as
much the one with most is closed. A thousand readers of 256 KB each have as much."""
UNSENT_CHECK_SECONDS: Final = 0.05
"""Pause between two checks whether such connections have read their answers."""
MAX_PENDING_INVOKES: Final = 1_024
"""Requests of a server to one client that wait for their answer."""

# --- Nameserver ---------------------------------------------------------------------------------
MAX_NAMESRV_TOPICS: Final = 100_000
"""Topics of one nameserver; about 500 bytes each."""
MAX_ROUTE_QUEUES: Final = 262_144
"""Queues of one topic that a client accepts from a nameserver; about 100 bytes each. 16 brokers of 16,384 each."""
MAX_ADDRESS_CHARS: Final = 300
"""An address of a broker, its port for slaves, or a filter server: the longest name of a host (253) and a port."""
MAX_LISTENERS: Final = 16
"""Listeners of a nameserver, and addresses that a broker advertises."""
MAX_FILTER_SERVERS: Final = 64
"""Filter servers of one broker; Apache gave them up in 4.9."""
MAX_DIALECT_REGISTRATION_BYTES: Final = 1024 * 1024
"""A registration with numbers as keys, as a 5.x broker with static topics sends: about 0.6 s of a thread."""
MAX_DATA_VERSION_BYTES: Final = 4_096
"""A DataVersion (322); Java's has 60 bytes."""
MAX_REGISTRATION_BYTES: Final = 64 * 1024 * 1024
"""A registration's body after decompression: 100,000 topics with long names."""

# --- Spark --------------------------------------------------------------------------------------
SPARK_TASK_BYTES: Final = 512 * 1024 * 1024
"""Most memory of a Python worker of Spark, whatever a topic has: imports 150 MB, records in flight 100 MB, row groups
of an archive 100 MB, decompressed bodies 64 MiB, and room. Nothing enforces it; tests measure it."""
MAX_SPARK_BATCH_BODY_BYTES: Final = 64 * 1024 * 1024
"""Decompressed bodies in one Arrow batch; more goes into the next batch, so that bombs cannot fill an executor."""
MAX_SINK_IN_FLIGHT_BYTES: Final = 8 * 1024 * 1024
"""Messages of one sink task that wait for their acknowledgement; half of MAX_UNFLUSHED_CONNECTION_BYTES."""
MASK_KEYS_CACHED: Final = 100_000
"""Keys of subjects in the cache of a worker of the mask job, about 300 bytes each; a full cache is emptied."""

# --- Broker and clients -------------------------------------------------------------------------
MAX_CLIENT_ID_CHARS: Final = 1_024
"""Client id in a heartbeat; real ones have an address, a name and a unit, fewer than 200."""
MAX_RECALL_HANDLE_CHARS: Final = 4_096
"""A recall handle; with the longest names of topic and broker one has about 700 characters."""
MAX_PRODUCER_ID_CHARS: Final = 160
"""Name of a producer with sequences: the id of a query (36), or a name of the user's, and a partition."""
MAX_PRODUCER_NOTE_CHARS: Final = 8_192
"""Note that a producer stores with a queue: names of 100 brokers with their numbers of queues."""
MAX_QUERY_MESSAGES: Final = 64
"""Messages found by one query by key (Apache: ``maxMsgsNumBatch``)."""
MAX_QUERY_LOOKS: Final = 8_192
"""Messages, and keys of them, that one query by key looks at because their hash is the same: about 30 ms."""
LOCK_TRUST_SECONDS: Final = 30.0
"""A client trusts its lock this long after the request (Apache: ``rocketmq.client.rebalance.lockMaxLiveTime``)."""

# --- Store --------------------------------------------------------------------------------------
INDEX_BLOCK_KEYS: Final = 8_192
"""Keys that one round of the loop adds to the index, of one message at least: about 4 ms."""
MAX_LOST_UNITS: Final = 100_000
"""Queue offsets that a slave accepts as lost at its master: 2 MB of units; a larger gap means another queue."""
CLOCK_BEHIND_MS: Final = 60_000
"""A clock further behind the newest store time is told of: more than NTP or a leap second sets it back."""
UNIT_SEARCH_UNITS: Final = 4_096
"""Damaged units of a queue, on either side of the requested one, that a search for a sound unit reads."""
UNIT_SEARCH_BYTES: Final = 16 << 20
"""Bytes of the log that one search for the records of damaged units reads: about 30 ms."""
MAX_INDEX_WAITING_KEYS: Final = 2_000_000
"""Keys that wait for the index, about 60 bytes each; more are added at once, while all requests wait."""
MAX_OPEN_TIMER_DAYS: Final = 16
"""Open files of the timer log for reading, one for each day that is due or listed."""
MAX_LISTED_WAITING_BYTES: Final = 16 * 1024 * 1024
"""Bytes of records read for one answer, if more than one record: properties stand after the body."""
MAX_SEARCHED_WAITING: Final = 1_000_000
"""Waiting messages searched for one answer to GET_WAITING_MESSAGES: about 0.1 s of the timer log's thread."""
MAX_DELAY_LEVELS: Final = 256
"""Levels of ``messageDelayLevel``: each is a queue with a file of 6 MB. Apache has 18."""

# --- Filters ------------------------------------------------------------------------------------
MAX_FILTER_CHARS: Final = 16_384
"""An SQL92 expression: an IN list of several hundred ids. Apache bounds only the frame."""
MAX_FILTER_DEPTH: Final = 50
"""Nesting of an SQL92 expression; each level costs six Python frames while parsing."""
MAX_FILTER_TERMS: Final = 256
"""Names and values of an SQL92 expression (an IN list is one); a message takes about 100 µs at most."""
LONG_FILTER_CHARS: Final = 1_024
"""Expressions above this length go to the smaller cache of parsed ones."""
CACHED_FILTERS: Final = 256
"""Cached parsed SQL92 expressions, failures included (Apache: 100); a few KB each, 200 KB at worst."""
CACHED_LONG_FILTERS: Final = 32
"""Cached long parsed SQL92 expressions; at most about 1 MB each."""

# --- Message trace ------------------------------------------------------------------------------
MAX_WAITING_TRACES: Final = 2_048
"""Waiting trace records of one client (Java's queue); more are dropped and counted."""
MAX_TRACE_RECORDS: Final = 100
"""Records of one trace message (Java: ``batchSize``)."""
MAX_TRACE_BODY_BYTES: Final = 128_000
"""Body of one trace message (Java: ``maxMsgSize``)."""
MAX_TRACE_KEY_BYTES: Final = 16_384
"""Ids and keys of one trace message; half of MAX_PROPERTIES_BYTES."""
MAX_TRACE_IN_FLIGHT: Final = 16
"""Trace messages of one client in flight; while a broker does not answer, records wait and then are dropped."""
