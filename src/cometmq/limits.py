"""Limits shared by several packages, each with its reason, and with the unit in its name. The packages' own limits are
in their ``limits`` modules."""

from __future__ import annotations

from typing import Final

# --- Frames and names ---------------------------------------------------------------------------
MAX_FRAME_BYTES: Final = 16_777_216
"""Maximum size of a frame after its length word (Apache's ``com.rocketmq.remoting.frameMaxLength``)."""
MAX_HEADER_BYTES: Final = 1_048_576
"""Maximum size of a frame header. Properties (32 KiB) escaped as JSON need far less; a larger header is an attack."""
MAX_EXT_FIELDS: Final = 256
"""Maximum number of fields in one header. Apache's largest header has 20 fields, and clients add a few."""
MAX_KEPT_VALUE_CHARS: Final = 4_096
"""Maximum length of a value for an Apache key that has no effect here; the longest real values list addresses or
labels."""
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""The default of ``maxMessageSize``, which is the maximum body size of one message or of one batch."""
MAX_PROPERTIES_BYTES: Final = 32_767
"""Maximum size of a message's properties; their length is stored as a signed int16."""
MAX_TTL_MS: Final = 10 * 365 * 24 * 3_600_000
"""Maximum life time of a message in milliseconds: ten years. No log keeps messages for longer; a greater number is a
mistake, for example a point in time."""
MAX_TOPIC_CHARS: Final = 127
"""Maximum length of a topic name; its length is stored as a signed int8."""
MAX_GROUP_CHARS: Final = 120
"""Maximum length of a group name: ``%RETRY%`` and the group's name form a topic name of at most 127 characters."""
MAX_BATCH_MESSAGES: Final = 10_000
"""Maximum number of messages in one batch body, so that one frame cannot block the event loop for long."""
MAX_DECOMPRESSED_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of a decompressed body: sixteen times the largest body sent. A larger body is considered a bomb."""
MAX_LOOSE_BODY_BYTES: Final = 128 * 1024
"""Maximum size of a request's JSON body that does not have exactly the expected form, for example from a C++ client. It
is enough for 500 subscriptions, and takes about 40 ms at worst."""
MAX_PARSED_BODY_BYTES: Final = 16 * 1024
"""Maximum size of a request's body in fastjson's dialect, which no client sends to brokers; it takes about 30 ms."""
MAX_REMARK_CHARS: Final = 4_096
"""Maximum length of an answer's remark. Some remarks repeat the request, and clients refuse headers larger than
MAX_HEADER_BYTES."""
MAX_CONFIG_BYTES: Final = 1024 * 1024
"""Maximum size of a Java properties file; real files have a few kB."""
MAX_CONFIG_UPDATE_BYTES: Final = 64 * 1024
"""Maximum size of properties text that changes a configuration (codes 25 and 318); Apache's complete configuration has
8 KB."""

# --- Metrics ------------------------------------------------------------------------------------
METRIC_SAMPLES_PER_SLICE: Final = 250
"""Number of samples collected or written in one round of the event loop, which takes about a millisecond."""
MAX_RPC_SERIES: Final = 4_096
"""Maximum number of pairs of request and response code that are counted separately; all other pairs share one
counter."""
MAX_MONITOR_CONNECTIONS: Final = 32
"""Maximum number of open connections to the monitoring port."""
MAX_MONITOR_HEAD_BYTES: Final = 16_384
"""Maximum size of a monitoring request's head."""
MONITOR_SECONDS: Final = 10.0
"""Time limit for a monitoring request to arrive, and for its answer to be read; Prometheus has the same timeout."""
STALLED_MONITOR_SECONDS: Final = 1.0
"""Maximum time for which one of several monitors that share a collection may delay the other monitors."""

# --- Server connections -------------------------------------------------------------------------
MAX_CONNECTIONS: Final = 16_384
"""Maximum number of open connections of one server; each connection uses a descriptor and about 10 KB. If ``ulimit -n``
is low, fewer are allowed, since an eighth of the descriptors, and those of open files, remain reserved."""
SERVER_IDLE_SECONDS: Final = 120.0
"""Idle time after which a connection is closed (Apache: NettyServerConfig, all-idle 120 s)."""
FRAME_SECONDS: Final = 30.0
"""Time limit for one frame to arrive completely, so that slow writers do not occupy memory."""
HANDSHAKE_SECONDS: Final = 10.0
"""Time limit for a TLS handshake, from the client's first byte (Netty: 10 s)."""
MAX_HANDSHAKES: Final = 2_048
"""Maximum number of TLS handshakes in progress on one server, with 50 KB each; a further handshake aborts the oldest
one."""
MAX_CLIENT_HELLO_BYTES: Final = 65_536
"""Maximum number of bytes from a client before the server's first answer in a handshake; TLS allows 16 KB."""
TLS_PIECE_BYTES: Final = 16_384
"""Number of bytes that one connection decrypts between two clock reads."""
ROUND_SECONDS: Final = 0.001
"""Maximum time for the work of one connection in one round of a server; the remaining requests continue in the next
round. So other clients wait at most this long for a client that sends a thousand requests at the same time."""
ROUND_OF_ALL_SECONDS: Final = 0.01
"""Maximum time for the work of all connections in one round of a server; the other connections continue in the next
round."""
ROUND_OF_ALL_BYTES: Final = 8 * 1024 * 1024
"""Number of bytes of responses after which the other connections continue in the next round of a server, since writing
them takes longer (about 1 ms per MB) than finding them in the log."""
LATE_SECONDS: Final = 0.005
"""If one request exceeds ROUND_SECONDS by this time, the other connections with bytes that arrived in the meantime
go first.
"""
FRAMES_PER_LOOK: Final = 16
"""Number of sends and offset commits that the server handles on one connection between two clock reads; after other
requests, the clock is always read.
"""
MAX_POSTPONED_BYTES: Final = 64 << 20
"""Maximum total size of the requests that a server postpones, for example sends to a topic that is being written;
further requests get SYSTEM_BUSY."""
MAX_UNFINISHED_BYTES: Final = 256 * 1024 * 1024
"""Maximum total size of the incomplete frames of all connections of one server; beyond it, the connection with the
largest frame is closed."""
WRITE_HIGH_WATER_BYTES: Final = 8 * 1024 * 1024
"""Size of a connection's unsent answers above which the server stops reading from the connection."""
WRITE_LOW_WATER_BYTES: Final = 1 * 1024 * 1024
"""Size of a connection's unsent answers below which the server resumes reading from the connection."""
MAX_UNSENT_BYTES: Final = 256 * 1024 * 1024
"""Total size of a server's unsent answers above which it stops reading from every connection that has unsent answers.
Above twice this size, the connection with the most unsent bytes is closed. The size is that of a thousand clients with
256 KB each."""
UNSENT_CHECK_SECONDS: Final = 0.05
"""Pause between two checks whether the clients of paused connections have read their answers."""
MAX_PENDING_INVOKES: Final = 1_024
"""Maximum number of unanswered requests from a server to one client."""

# --- Nameserver ---------------------------------------------------------------------------------
MAX_NAMESRV_TOPICS: Final = 250_000
"""Maximum number of topics on one nameserver, and in one registration, with about 500 bytes each: 100,000 topics, the
retry topics of as many groups, and some more."""
MAX_ROUTE_QUEUES: Final = 262_144
"""Maximum number of queues in one topic that a client accepts from a nameserver, with about 100 bytes each: 16 brokers
with 16,384 queues each."""
MAX_ADDRESS_CHARS: Final = 300
"""Maximum length of the address of a broker, of its port for slaves, or of a filter server: a host name of 253
characters and a port."""
MAX_LISTENERS: Final = 16
"""Maximum number of listeners on a nameserver, and of addresses advertised by a broker."""
MAX_FILTER_SERVERS: Final = 64
"""Maximum number of filter servers of one broker; Apache has had none since 4.9."""
MAX_DIALECT_REGISTRATION_BYTES: Final = 1024 * 1024
"""Maximum size of a registration with numeric keys, as sent by a 5.x broker with static topics; it takes about 0.6 s in
a thread."""
MAX_REGISTRATION_VALUES_AT_ONCE: Final = 60_000
"""Maximum number of commas in the part of a plain registration that cannot be decoded row by row; it takes at most
45 ms, in which other threads wait. A broker with 5,000 static topics needs that many."""
MAX_DATA_VERSION_BYTES: Final = 4_096
"""Maximum size of a DataVersion (request code 322); Java's has 60 bytes."""
MAX_REGISTRATION_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of a decompressed registration: 250,000 topics with long names."""
COMPRESSED_REGISTRATION_BYTES: Final = 1024 * 1024
"""Size above which a broker compresses its registration: 250,000 topics have 40 MB, and a frame at most 16."""

# --- Spark --------------------------------------------------------------------------------------
SPARK_TASK_BYTES: Final = 512 * 1024 * 1024
"""Maximum memory of a Spark Python worker for any topic: imports 150 MB, records in flight 100 MB, row groups of an
archive 100 MB, decompressed bodies 64 MiB, and a reserve. Tests check the limit; nothing enforces it at run time."""
MAX_SPARK_BATCH_BODY_BYTES: Final = 64 * 1024 * 1024
"""Maximum total size of decompressed bodies in one Arrow batch. Further bodies go into the next batch, so that bombs
cannot fill an executor."""
MAX_SINK_IN_FLIGHT_BYTES: Final = 2 * 1024 * 1024
"""Maximum total size of a sink task's unacknowledged messages, so that they fit into the processor's caches: of 1 KB in
8 or 16 queues, a broker needs 2.3 and 2.2 us of processor time for a message, instead of 2.9 and 3.6 us with 8 MB. Must
be less than MAX_UNFLUSHED_CONNECTION_BYTES."""
MASK_KEYS_CACHED: Final = 100_000
"""Maximum number of subject keys in the cache of a mask job's worker, with about 300 bytes each; a full cache is
emptied."""

# --- Broker and clients -------------------------------------------------------------------------
MAX_CLIENT_ID_CHARS: Final = 1_024
"""Maximum length of a client id in a heartbeat. Real ids consist of an address, a name and a unit, and have fewer than
200 characters."""
MAX_RECALL_HANDLE_CHARS: Final = 4_096
"""Maximum length of a recall handle; with the longest topic and broker names it has about 700 characters."""
MAX_PRODUCER_ID_CHARS: Final = 160
"""Maximum length of the name of a producer with sequences: a query id (36 characters) or a user's name, and a
partition."""
MAX_PRODUCER_NOTE_CHARS: Final = 8_192
"""Maximum length of a note that a producer stores with a queue: the names of 100 brokers, each with its number of
queues.
"""
MAX_QUERY_MESSAGES: Final = 64
"""Maximum number of messages in the result of a query by key (Apache: ``maxMsgsNumBatch``)."""
MAX_QUERY_LOOKS: Final = 8_192
"""Maximum number of messages with the same key hash, including their keys, that one query by key checks in about 30
ms."""
LOCK_TRUST_SECONDS: Final = 30.0
"""Time after the lock request for which a client relies on its queue lock (Apache:
``rocketmq.client.rebalance.lockMaxLiveTime``)."""

# --- Store --------------------------------------------------------------------------------------
INDEX_BLOCK_KEYS: Final = 8_192
"""Number of keys that one round of the event loop adds to the index in about 4 ms; the keys of one message are always
added together."""
MAX_LOST_UNITS: Final = 100_000
"""Maximum number of queue offsets that a slave accepts as lost on its master: 2 MB of units. A larger gap means that it
is a different queue."""
CLOCK_BEHIND_MS: Final = 60_000
"""The clock's lag behind the newest store timestamp is reported if it is at least this large, which is more than a
correction by NTP or a leap second."""
UNIT_SEARCH_UNITS: Final = 4_096
"""Maximum number of damaged units on either side of the requested unit that a search for a sound unit reads."""
UNIT_SEARCH_BYTES: Final = 16 << 20
"""Maximum number of log bytes that one search for the records of damaged units reads, in about 30 ms."""
MAX_INDEX_WAITING_KEYS: Final = 2_000_000
"""Maximum number of pending keys for the index, with about 60 bytes each. If there are more, they are added
immediately, while all requests wait."""
MAX_OPEN_TIMER_DAYS: Final = 16
"""Maximum number of timer log files open for reading, one for each day that is due or listed."""
MAX_LISTED_WAITING_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of the records read for one answer with several records; records are read completely, since properties
follow the body."""
MAX_SEARCHED_WAITING: Final = 1_000_000
"""Maximum number of delayed messages searched for one answer to GET_WAITING_MESSAGES, which takes about 0.1 s in the
timer log's thread."""
MAX_DELAY_LEVELS: Final = 256
"""Maximum number of levels in ``messageDelayLevel``. Each level is a queue with a file of 6 MB; Apache has 18
levels."""

# --- Filters ------------------------------------------------------------------------------------
MAX_FILTER_CHARS: Final = 16_384
"""Maximum length of an SQL92 expression, enough for an IN list of several hundred ids. Apache limits only the frame."""
MAX_FILTER_DEPTH: Final = 50
"""Maximum nesting of an SQL92 expression; each level uses six Python frames while parsing."""
MAX_FILTER_TERMS: Final = 256
"""Maximum number of names and values in an SQL92 expression (an IN list counts as one); evaluating a message takes at
most about 100 µs."""
LONG_FILTER_CHARS: Final = 1_024
"""Length of expressions above which they are stored, once parsed, in the smaller cache."""
CACHED_FILTERS: Final = 256
"""Maximum number of parsed SQL92 expressions in the cache, including failures (Apache: 100); each has a few KB, or 200
KB at worst."""
CACHED_LONG_FILTERS: Final = 32
"""Maximum number of long parsed SQL92 expressions in their cache, with at most about 1 MB each."""

# --- Message trace ------------------------------------------------------------------------------
MAX_WAITING_TRACES: Final = 2_048
"""Maximum number of pending trace records in one client (as in Java); further records are dropped and counted."""
MAX_TRACE_RECORDS: Final = 100
"""Maximum number of records in one trace message (Java: ``batchSize``)."""
MAX_TRACE_BODY_BYTES: Final = 128_000
"""Maximum size of a trace message's body (Java: ``maxMsgSize``)."""
MAX_TRACE_KEY_BYTES: Final = 16_384
"""Maximum total size of the ids and keys in one trace message: half of MAX_PROPERTIES_BYTES."""
MAX_TRACE_IN_FLIGHT: Final = 16
"""Maximum number of a client's trace messages in flight. While a broker does not answer, further records are pending,
and are finally dropped."""
