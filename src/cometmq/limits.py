"""Every limit of CometMQ, with its unit in the name and its reason beside it."""

from __future__ import annotations

from typing import Final

# --- Frames and names -------------------------------------------------------------------------
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
MAX_CONFIG_UPDATE_BYTES: Final = 64 * 1024
"""Properties text that changes a configuration (codes 25 and 318); tools send one key, Apache's whole one has 8 KB."""

# --- Metrics ----------------------------------------------------------------------------------
METRIC_SAMPLES_PER_SLICE: Final = 250
"""Samples that one turn collects or writes: about a millisecond."""
MAX_METRIC_SAMPLES: Final = 250_000
"""Samples of one family in one answer; cometmq_metrics_left_out tells of more. Prometheus refuses answers that are
larger by far, and 10,000 topics with eight groups each stay below."""
HALF_MESSAGES_PER_SLICE: Final = 50
"""Half messages that one turn reads for their topics: about a millisecond."""
MAX_HALF_MESSAGES_BY_TOPIC: Final = 50_000
"""Open transactions that are counted by topic; more count together. Normally a broker has a few hundred."""
MAX_RPC_SERIES: Final = 4_096
"""Pairs of request and response code that are counted; others count together."""
TIMER_COUNT_SECONDS: Final = 60.0
"""Between two counts of messages with any delay by topic, each of which reads the whole timer log."""
MAX_MONITOR_CONNECTIONS: Final = 32
"""Open connections of the port for monitoring."""
MAX_MONITOR_HEAD_BYTES: Final = 16_384
"""Head of a request for monitoring."""
MONITOR_SECONDS: Final = 10.0
"""Time for a request for monitoring to arrive, and for its answer to be read; Prometheus waits as long."""
STALLED_MONITOR_SECONDS: Final = 1.0
"""Time that one of several monitors, which get one collection together, may keep the others waiting."""

# --- Server connections -----------------------------------------------------------------------
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
TURN_SECONDS: Final = 0.001
"""Work for one connection in one turn of a server; its other requests wait for the next turn. So long the others wait
for a client that sends a thousand requests at once."""
LATE_SECONDS: Final = 0.005
"""A connection whose one request exceeds TURN_SECONDS by this goes on only after everything that has arrived since."""
FRAMES_PER_LOOK: Final = 16
"""Sends and commits of offsets of one connection between two reads of the clock; after other requests it is read each
time."""
MAX_UNFINISHED_BYTES: Final = 256 * 1024 * 1024
"""Incomplete frames of all connections of one server; above it the connection with the largest is closed."""
WRITE_HIGH_WATER_BYTES: Final = 8 * 1024 * 1024
"""Unsent answers of one connection; above it no request of the connection is read."""
WRITE_LOW_WATER_BYTES: Final = 1 * 1024 * 1024
"""Unsent answers of one connection; below it its requests are read again."""
MAX_UNSENT_BYTES: Final = 256 * 1024 * 1024
"""Unsent answers of all connections of one server. Above it no connection with unsent answers is read; above twice as
much the one with most is closed. A thousand readers of 256 KB each have as much."""
UNSENT_LOOK_SECONDS: Final = 0.05
"""Pause between two checks whether such connections have read their answers."""
MAX_PENDING_INVOKES: Final = 1_024
"""Requests of a server to one client that wait for their answer."""

# --- gRPC ---------------------------------------------------------------------------------------
MAX_STREAMS: Final = 1_024
"""Calls under way of one HTTP/2 connection; clients keep more back themselves. Netty's clients take 100 at least."""
HTTP2_WINDOW_BYTES: Final = 1024 * 1024
"""Bytes that a client may send on one stream, and on one connection, before it is told of room for more."""
MAX_HEADER_LIST_BYTES: Final = 16_384
"""Headers of one call, as HTTP/2 counts them; gRPC's own servers take as much."""
MAX_HEADER_BLOCK_BYTES: Final = 65_536
"""The same as the client encodes them, in all frames; above it the connection ends."""
HTTP2_IDLE_FRAMES: Final = 2_000
"""Frames that ask for nothing (pings, settings, resets, priorities) that a connection may send at once."""
HTTP2_IDLE_FRAMES_A_SECOND: Final = 200
"""Such frames that it may send more each second; a client with a thousand calls that end early sends fewer."""
MAX_GRPC_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""One message of a call: a batch of four of the largest bodies."""
MAX_GRPC_UNFINISHED_BYTES: Final = 256 * 1024 * 1024
"""Messages of all calls that have not arrived completely; above it the connection with most of them is closed."""
MAX_GRPC_WAITING_BYTES: Final = 256 * 1024 * 1024
"""Answers of all calls that wait for the windows of clients; above it the connection with most of them is closed."""
MAX_GRPC_CONNECTION_WAITING_BYTES: Final = 32 * 1024 * 1024
"""The same for one connection; above it its new calls get RESOURCE_EXHAUSTED."""
GRPC_PING_SECONDS: Final = 60.0
"""A client that sends nothing for so long is asked for a sign of life by a ping."""
GRPC_SILENT_SECONDS: Final = 120.0
"""A client that has sent nothing for so long is gone (Apache: grpcClientIdleTimeMills)."""
HEARTBEAT_BROKER_SECONDS: Final = 30.0
"""Between two heartbeats that the endpoint sends to a broker for a client."""
MAX_GRPC_CLIENTS: Final = 16_384
"""Clients that one endpoint remembers; about 4 KB each."""
TOPIC_LOOK_SECONDS: Final = 5.0
"""How long `cometmq proxy` takes a topic or group for what it was when it asked last."""
MAX_FLEET_TOPICS: Final = 10_000
"""Topics, and groups, that it remembers."""
MAX_ACK_ENTRIES: Final = 1_024
"""Messages that one AckMessage of gRPC acknowledges; a client receives 32 at once."""
MAX_RENEWED_HANDLES: Final = 200_000
"""Messages whose time one endpoint makes longer while their clients work on them; about 600 bytes each."""
MAX_SETTINGS_TOPICS: Final = 1_024
"""Topics or subscriptions in the settings of one client."""
MAX_TELEMETRY_WAITING_BYTES: Final = 8 * 1024 * 1024
"""Commands that a client does not read from its Telemetry stream; above it the stream ends."""

# --- Nameserver -------------------------------------------------------------------------------
MAX_NAMESRV_TOPICS: Final = 100_000
"""Topics of one nameserver; about 500 bytes each."""
MAX_REGISTERED_QUEUES: Final = 65_535
"""Queues of one topic on one broker that a nameserver passes on; clients make an object of each."""
MAX_ROUTE_QUEUES: Final = 262_144
"""Queues of one topic that a client accepts from a nameserver; about 100 bytes each. 16 brokers of 16,384 each."""
MAX_NAMESRV_QUEUE_DATA: Final = 500_000
"""Pairs of topic and broker of one nameserver; about 300 bytes each. 100 brokers of 5,000 topics."""
MAX_ADDRESS_CHARS: Final = 300
"""An address of a broker, its port for slaves, or a filter server: the longest name of a host (253) and a port."""
MAX_LISTENERS: Final = 16
"""Listeners of a nameserver, and addresses that a broker advertises."""
MAX_FILTER_SERVERS: Final = 64
"""Filter servers of one broker; Apache gave them up in 4.9."""
MAX_DIALECT_REGISTRATION_BYTES: Final = 1024 * 1024
"""A registration with numbers as keys, as a 5.x broker with static topics sends: about 0.6 s of a thread."""
REGISTRATION_BESIDE_BYTES: Final = 64 * 1024
"""Registrations above this are read by a thread: about 400 topics, or a few thousand compressed, in 2 ms."""
MAX_WAITING_REGISTRATION_BYTES: Final = 256 * 1024 * 1024
"""Registrations that wait for that thread; above it SYSTEM_BUSY, and the broker retries."""
MAX_NAMESRV_BROKERS: Final = 4_096
"""Broker addresses of one nameserver; each keeps a connection and registers every 30 s."""
MAX_KV_ENTRIES: Final = 100_000
"""KV configuration entries and namespaces of one nameserver; all are written to one file at each change."""
MAX_KV_NAME_CHARS: Final = 255
"""Namespace or key of a KV configuration entry."""
MAX_KV_VALUE_CHARS: Final = 65_536
"""Value of a KV configuration entry; an order configuration of 1,000 brokers has about 20 KB."""
MAX_KV_CHARS: Final = 8 * 1024 * 1024
"""Names and values of the whole KV configuration; a change writes all of it, and a namespace fits into an answer."""
MAX_WAITING_KV_CHANGES: Final = 1_024
"""Changes of the KV configuration that wait for the disk; above it SYSTEM_BUSY."""
MAX_DATA_VERSION_BYTES: Final = 4_096
"""A DataVersion (322); Java's has 60 bytes."""
MAX_REGISTRATION_BYTES: Final = 64 * 1024 * 1024
"""A registration's body after decompression: 100,000 topics with long names."""

# --- Administration -----------------------------------------------------------------------------
MAX_TOPIC_QUEUES: Final = 16_384
"""Queues of one topic on one broker; each becomes a directory. Apache's own largest topic has 1,024."""
MAX_RELAYED_REQUESTS: Final = 20_000
"""Requests of administrators that wait for consumers' answers, about 2 KB each; a group may have 16,384 members."""
MAX_RELAYED_BYTES: Final = 32 * 1024 * 1024
"""Headers and bodies of requests that wait for consumers (307, 309): several records of the largest size."""
MAX_RELAYED_BODY_BYTES: Final = 64 * 1024
"""Body of a request that waits for a consumer; tools send none."""
MAX_STATUS_ANSWERS_BYTES: Final = 64 * 1024 * 1024
"""Offsets from members of all groups that wait for the last member's answer (223)."""
MAX_CONSUMER_STATUS_BYTES: Final = 4 * 1024 * 1024
"""Offsets that one consumer says it holds (221): 32,000 queues."""
QUEUES_PER_SLICE: Final = 512
"""Queues that an answer about a topic reads in one turn of the loop: 3 to 15 ms."""
STATS_ITEMS_PER_SLICE: Final = 10_000
"""Items of the statistics that are sampled in one turn of the loop: 6 ms."""
TABLE_ROWS_PER_SLICE: Final = 1_000
"""Rows of a table of topics, groups or offsets that are copied, encoded or compared in one turn of the loop: up to
15 ms."""
MAX_CONSUME_QUEUE_UNITS: Final = 1_000
"""Units of a consume queue in one answer to QUERY_CONSUME_QUEUE (321); about 100 bytes each as JSON."""

# --- Spark ------------------------------------------------------------------------------------
SPARK_TASK_BYTES: Final = 512 * 1024 * 1024
"""Most memory of a Python worker of Spark, whatever a topic has: imports 150 MB, records in flight 100 MB, row groups
of an archive 100 MB, decompressed bodies 64 MiB, and room. Nothing enforces it; tests measure it."""
MAX_SPARK_BATCH_BODY_BYTES: Final = 64 * 1024 * 1024
"""Decompressed bodies in one Arrow batch; more goes into the next batch, so that bombs cannot fill an executor."""
MAX_SINK_IN_FLIGHT_BYTES: Final = 8 * 1024 * 1024
"""Messages of one sink task that wait for their acknowledgement; half of MAX_UNFLUSHED_CONNECTION_BYTES."""
MASK_KEYS_CACHED: Final = 100_000
"""Keys of subjects in the cache of a worker of the mask job, about 300 bytes each; a full cache is emptied."""

# --- Broker -------------------------------------------------------------------------------------
MAX_TURN_BYTES: Final = 32 * 1024 * 1024
"""Records of one turn of the loop; more are written at once: bounds the write buffer."""
INDEX_BLOCK_KEYS: Final = 8_192
"""Keys that one turn of the loop adds to the index, of one message at least: about 4 ms."""
MAX_LOST_UNITS: Final = 100_000
"""Queue offsets that a slave accepts as lost at its master: 2 MB of units; a larger gap means another queue."""
UNIT_SEARCH_UNITS: Final = 4_096
"""Damaged units of a queue, on either side of the requested one, that a search for a sound unit reads."""
UNIT_SEARCH_BYTES: Final = 16 << 20
"""Bytes of the log that one search for the records of damaged units reads: about 30 ms."""
MAX_INDEX_WAITING_KEYS: Final = 2_000_000
"""Keys that wait for the index, about 60 bytes each; more are added at once, while all requests wait."""
MAX_UNFLUSHED_CONNECTION_BYTES: Final = 16 * 1024 * 1024
"""SYNC_FLUSH: messages of one connection that may wait for their flush; above it SYSTEM_BUSY."""
MAX_UNFLUSHED_TOTAL_BYTES: Final = 256 * 1024 * 1024
"""SYNC_FLUSH: messages of all connections that may wait for their flush; above it SYSTEM_BUSY."""
MAX_HELD_PULLS: Final = 100_000
"""Pulls that wait for a message, about 1 KB each; Apache's pull queue holds as many."""
MAX_HELD_PULL_CHARS: Final = 64 * 1024 * 1024
"""Texts of all held pulls, mostly their subscriptions; common ones have fewer than 300."""
HELD_CODE_CHARS: Final = 100
"""Weight of one tag of a held pull's filter in MAX_HELD_PULL_CHARS: its bytes in all tables."""
HELD_SQL_CHARS: Final = 3_000
"""Weight of an SQL92 expression there, once for all held pulls of a queue with the same expression."""
HELD_SQL_FACTOR: Final = 150
"""Weight of each of its characters: its bytes once compiled."""
HELD_SLICE_SECONDS: Final = 0.002
"""Work for held pulls in one turn of the loop; the rest follows in the next."""
MAX_HELD_PULLS_OF_CONNECTION: Final = 16_384
"""Held pulls of one connection: a client has one per queue, and 1,024 queues of 16 topics are many."""
MAX_POP_MESSAGES: Final = 32
"""Messages of one pop, as in Apache."""
MAX_POP_INVISIBLE_MS: Final = 3 * 86_400_000
"""Longest time that a popped message stays invisible; Apache's timer, which ends that time there, takes as much."""
MAX_POP_LOG_ENTRIES: Final = 4_096
"""Entries of one record of the POP log, about 100 bytes each; more make a second one."""
MAX_ACKS: Final = 4_096
"""Acknowledgements of one BATCH_ACK_MESSAGE, each of messages of one pop from one queue."""
MAX_BATCH_ACK_BYTES: Final = 1024 * 1024
"""Body of one BATCH_ACK_MESSAGE: 4,096 acks with long names, read in about 10 ms."""
MAX_ACK_BITS_CHARS: Final = 64 * 1024
"""Base64 of the bits of one of them: offsets up to 393,216 behind the first one."""
MAX_ACKED_MESSAGES: Final = 16_384
"""Messages of one BATCH_ACK_MESSAGE, about 10 ms."""
POP_READS_MAX: Final = 4
"""Reads of a queue for one pop that finds messages which its filter does not want; then it waits a turn."""
POP_REVIVE_MESSAGES: Final = 128
"""Popped messages that are stored again in one turn of the loop, about 5 ms."""
POP_RETRY_SECONDS: Final = 0.1
"""Pause before popped messages that the store refused are stored again."""
POP_SCAN_MESSAGES_PER_MS: Final = 20_000
"""Invisible messages of a queue for which the timer pauses a millisecond after it has looked at them."""
POP_SCAN_PAUSE_MS: Final = 50
"""The longest such pause: messages are visible again within 100 ms."""
POP_SAVE_SECONDS: Final = 10.0
"""Time between two snapshots of the popped messages, if there were any."""
POP_SAVE_QUEUES: Final = 500
"""Queues of groups in one slice of a snapshot."""
MAX_HELD_POPS_OF_CONNECTION: Final = 16_384
"""Waiting pops of one connection, as of pulls: a proxy has those of all its clients on a few connections."""
MAX_ATTRIBUTES_CHARS: Final = 4_096
"""Attributes of a topic in one request."""
MAX_REQUEST_MODES: Final = 100_000
"""Groups and topics with a message request mode; each is an entry of ``messageRequestMode.json``."""
MAX_ASSIGNMENT_BYTES: Final = 16 * 1024
"""Body of QUERY_ASSIGNMENT and of SET_MESSAGE_REQUEST_MODE."""
MAX_CACHED_ROUTES: Final = 10_000
"""Topics whose queues on other brokers are remembered."""
ROUTE_SECONDS: Final = 30.0
"""Time for which they are, as in Apache."""
MAX_HELD_POP_CHARS: Final = 64 * 1024 * 1024
"""Texts of all waiting pops."""
MAX_POP_WAIT_MS: Final = 10 * 60_000
"""Longest wait of a pop for a message."""
MAX_CONSUMER_OFFSET_TABLES: Final = 200_000
"""Pairs of topic and group with offsets; each is an entry of ``consumerOffset.json``."""
MAX_CONSUMER_OFFSETS: Final = 2_000_000
"""Offsets of all these pairs, one for each queue, about 100 bytes each: clients may name any number of a queue."""
OFFSET_EXPIRY_SECONDS: Final = 86_400.0
"""Offsets of a missing topic, of a group without members, expire after this: an administrator who deleted the topic by
mistake has created it again by then."""
OFFSET_LOOK_SECONDS: Final = 30.0
"""Pause between two steps of the scan for such offsets."""
OFFSET_LOOK_KEYS: Final = 2_000
"""Pairs of one step, about a millisecond: all 200,000 take 50 minutes."""
MAX_TOPICS: Final = 50_000
"""Topics that clients may create; administrators may create more. The table is one file, written on each change."""
MAX_GROUPS: Final = 50_000
"""Consumer groups that clients may create; each also has a retry topic."""
MAX_GROUP_MEMBERS: Final = 200_000
"""Members of all consumer groups, and producers of all groups: one for each connection and group, about 250 bytes. As
many connections as a server takes, of twelve groups each."""
GROUP_NOTICES_SECONDS: Final = 0.001
"""Time for notices of changed groups in one turn of the loop; the rest follows in the next."""
MAX_CLIENT_ID_CHARS: Final = 1_024
"""Client id in a heartbeat; real ones have an address, a name and a unit, fewer than 200."""
MAX_HEARTBEAT_GROUPS: Final = 1_000
"""Groups of one heartbeat, and topics of one group: each makes an entry in a configuration file."""
MAX_HEARTBEAT_BYTES: Final = 1024 * 1024
"""Body of a heartbeat: 4,000 subscriptions of 250 bytes; common ones have below 10 KB."""
MAX_CHECK_CLIENT_BYTES: Final = 128 * 1024
"""Body of CHECK_CLIENT_CONFIG (46): the longest subscription with every character escaped."""
MAX_GROUP_CONFIG_BYTES: Final = 64 * 1024
"""Configuration of one consumer group (200); Apache's has 400 bytes, with attributes of 5.x some more."""
MAX_LIST_BYTES: Final = 512 * 1024
"""Topics (18) or groups (225) of one request: a thousand of 500 bytes; about 5 ms."""
MAX_LISTED: Final = 1_000
"""Topics or groups that one request makes: about 10 ms, with a line in the log for each."""
MAX_HEARTBEAT_FILTER_CHARS: Final = 49_152
"""SQL92 expressions of one heartbeat: new ones are compiled at once, about 1.4 µs a character."""
MAX_CONSUMER_FILTERS: Final = 10_000
"""SQL92 filters in ``consumerFilter.json``, one for each group and topic; they expire a day after the last consumer."""
MAX_CONSUMER_FILTER_CHARS: Final = 16 * 1024 * 1024
"""Expressions of all these filters; common ones have fewer than 300 characters."""
MAX_KIND_CHARS: Final = 64
"""An enumeration name in a heartbeat, such as ``CONSUME_FROM_LAST_OFFSET``, or a language."""
MAX_SUBSCRIPTION_CHARS: Final = 16_384
"""Expression of one subscription, and its tags and codes in a heartbeat: several hundred long tags."""
LONG_SUBSCRIPTION_CHARS: Final = 256
"""Tag expressions above this length go to the smaller cache of parsed ones."""
CACHED_SUBSCRIPTIONS: Final = 4_096
"""Cached parsed tag expressions; at most about 15 KB each."""
CACHED_LONG_SUBSCRIPTIONS: Final = 64
"""Cached long parsed tag expressions; at most about 1 MB each."""
MAX_LIVE_SUBSCRIPTION_CHARS: Final = 64 * 1024 * 1024
"""Subscriptions of all connected consumers: names, expressions and tags; about 500,000 common ones."""
SUBSCRIPTION_OVERHEAD_CHARS: Final = 100
"""Weight of a subscription there in addition to its text."""
MAX_PRODUCERS: Final = 50_000
"""Producers with sequences of one broker; those idle for PRODUCER_MIN_IDLE_SECONDS give way to new ones."""
MAX_PRODUCER_LANES: Final = 200_000
"""Queues of all these producers, about 300 bytes each in memory and in ``comet/producers.json``."""
PRODUCER_EXPIRY_SECONDS: Final = 7 * 86_400.0
"""A producer that sent nothing for this time is forgotten (Kafka: ``transactional.id.expiration.ms``, 7 days)."""
PRODUCER_MIN_IDLE_SECONDS: Final = 3_600.0
"""A producer that sent in this time does not give way to another one."""
PRODUCER_IDLE_LOOK_SECONDS: Final = 1.0
"""Pause between two scans for idle producers, some 20 ms each, while requests are refused."""
PRODUCER_SAVE_SECONDS: Final = 30.0
"""Pause between two writes of the producers' sequences; a restart reads the log since then, about 1 µs a record."""
PRODUCER_SAVE_SLICE_BYTES: Final = 64 * 1024
"""Bytes of the sequences encoded in one turn of the loop, 0.2 ms; all of them are at most 60 MB."""
MAX_PRODUCER_ID_CHARS: Final = 160
"""Name of a producer with sequences: the id of a query (36), or a name of the user's, and a partition."""
MAX_PRODUCER_NOTE_CHARS: Final = 8_192
"""Note that a producer stores with a queue: names of 100 brokers with their numbers of queues."""
MAX_QUERY_MESSAGES: Final = 64
"""Messages found by one query by key (Apache: ``maxMsgsNumBatch``)."""
LOCK_SECONDS: Final = 60.0
"""A queue's lock not renewed for this long is free (Apache: ``rocketmq.broker.rebalance.lockMaxLiveTime``)."""
LOCK_TRUST_SECONDS: Final = 30.0
"""A client trusts its lock this long after the request (Apache: ``rocketmq.client.rebalance.lockMaxLiveTime``)."""
MAX_LOCKED_QUEUES: Final = 200_000
"""Locks of queues of all groups, about 300 bytes each."""
MAX_LOCK_REQUEST_QUEUES: Final = 16_384
"""Queues of one lock request: 1,024 queues of 16 topics are many; each takes about 3 µs."""
MAX_LOCK_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Body of a lock request: MAX_LOCK_REQUEST_QUEUES with names of 200 characters together; about 20 ms."""
MAX_OPEN_TRANSACTIONS: Final = 500_000
"""Open transactions, about 250 bytes each; above it half messages are refused."""
HALF_PROPERTIES_RESERVE_BYTES: Final = 256
"""Room in the properties of a half message for those that each put-back adds."""
MAX_HALF_LAG: Final = 200_000
"""An open half message with this many behind it is put back to the end: a start reads those that follow it."""
TRANSACTION_SLICE: Final = 100
"""Half messages that a round of checks reads in one turn of the loop: about 3 ms."""
MAX_GIVEN_UP_LINES: Final = 100
"""Given-up transactions of one round of checks with a log line each; the last line has their number, and all of them
are in TRANS_CHECK_MAX_TIME_TOPIC."""
TRANSACTION_PROGRESS_SECONDS: Final = 5.0
"""Pause between two writes of the progress through half messages (Apache writes its offsets every 5 s)."""
MAX_TRANSACTION_MARKS: Final = 256
"""Pairs of offsets in op queue and half queue in memory; a start reads the ops after one of them."""
COMMITTED_SCAN_BYTES: Final = 64 * 1024 * 1024
"""Bytes at the end of the log that a start searches for committed messages without op: at most one here, several after
a crash of an Apache broker."""
MAX_LISTED_TRANSACTIONS: Final = 1_000
"""Open transactions in one answer to GET_OPEN_TRANSACTIONS; about 300 bytes each."""
MAX_SEARCHED_TRANSACTIONS: Final = 5_000
"""Open transactions searched for one answer to GET_OPEN_TRANSACTIONS: about 50 ms."""
MAX_WAITING_REPLY_BYTES: Final = 256 * 1024 * 1024
"""Replies that wait for their requesters, 10 s at most; above it SYSTEM_BUSY."""
CLIENT_EXPIRY_SECONDS: Final = 120.0
"""A client without a heartbeat for this long leaves its groups (Apache: 120 s)."""
CLIENT_SCAN_SECONDS: Final = 10.0
"""Pause between two scans for silent clients (Apache: 10 s)."""
FILTER_SAVE_SECONDS: Final = 10.0
"""Pause between two writes of a changed ``consumerFilter.json`` (Apache: 10 s)."""
TABLE_RETRY_SECONDS: Final = 10.0
"""Pause before a failed write of a table, on a full disk, is repeated."""
MAX_DELAY_LEVELS: Final = 256
"""Levels of ``messageDelayLevel``: each is a queue with a file of 6 MB. Apache has 18."""
DELAY_BATCH_MESSAGES: Final = 64
"""Delayed messages delivered in one turn of the loop, about 1 ms."""
DELAY_BATCH_BYTES: Final = 1024 * 1024
"""Bytes of delayed messages delivered in one turn of the loop, if more than one."""
DELAY_RECHECK_SECONDS: Final = 10.0
"""Longest wait of a delay level before it reads the date again, in case somebody has set it."""
DELAY_RETRY_SECONDS: Final = 0.1
"""Pause before delayed messages that the store refused are delivered again (Apache: ``DELAY_FOR_A_WHILE``)."""

# --- Replication ------------------------------------------------------------------------------------
MAX_TRANSFER_BYTES: Final = 4 * 1024 * 1024 - 12
"""Bytes of the log in one transfer to a slave: with a head of 12 bytes they fill the buffer of Apache's slave
(``READ_MAX_BUFFER_SIZE``), which never receives more."""
TRANSFER_TURN_BYTES: Final = 256 * 1024
"""Bytes of the log sent to one slave in one turn of the loop, about 0.1 ms."""
TRANSFER_HIGH_WATER_BYTES: Final = 1024 * 1024
"""Unsent bytes of one slave; above it nothing is sent until it has read most of them."""
MAX_PORT: Final = 65_535
"""The last port of TCP."""
MAX_SLAVES: Final = 64
"""Slaves of one master; each gets every byte that is stored. Real sets have one or two."""
SLAVES_CATCH_UP_SECONDS: Final = 10.0
"""A stopping master goes on sending to slaves that are behind for this long, enough for some GB …"""
SLAVE_STILL_SECONDS: Final = 1.0
"""… unless no slave makes progress for this long."""
REPLICATION_CONNECT_SECONDS: Final = 5.0
"""Time-out of a slave's connection to its master's HA port."""
REPLICATION_RETRY_SECONDS: Final = 5.0
"""Pause before a slave connects again (``HAClient``)."""
SLAVE_SYNC_FIRST_SECONDS: Final = 3.0
"""Delay of a slave's first copy of its master's tables (``BrokerController.handleSlaveSynchronize``) …"""
SLAVE_SYNC_SECONDS: Final = 10.0
"""… and pause between later copies."""
SLAVE_TABLE_SECONDS: Final = 30.0
"""Time-out of one table of the master: the largest at 4 MB a second."""
MAX_TABLE_ANSWER_BYTES: Final = 128 * 1024 * 1024
"""Largest table that a slave accepts: MAX_CONSUMER_OFFSETS in MAX_CONSUMER_OFFSET_TABLES pairs of the longest names.
A frame of Apache's has room for fewer than 75,000 pairs."""
SLAVE_SYNC_SOON_SECONDS: Final = 1.0
"""Delay of a copy after a message of a topic that the slave does not know."""
STORE_FILE_PART_BYTES: Final = 1024 * 1024
"""Bytes of a file in one answer to a slave that copies it: about 1 ms in a thread."""
MAX_STORE_FILE_READS: Final = 4
"""Such answers in progress at once; above it SYSTEM_BUSY. A slave requests one at a time."""
MAX_COPIED_FILE_BYTES: Final = 256 * 1024 * 1024
"""Bytes of a file that a slave copies as a whole: a full table of producers has about 60 MB."""
COPIED_FILE_BYTES_PER_SECOND: Final = 4 * 1024 * 1024
"""Large files that change faster are not copied every time."""
MAX_TIMER_COPY_BYTES: Final = 4 * 1024 * 1024
"""Bytes of units, and of records, of waiting messages that a slave copies at once; one record may have more."""

# --- Any delay ------------------------------------------------------------------------------------
TIMER_BATCH_MESSAGES: Final = 128
"""Waiting messages delivered in one turn of the loop, about 2 ms."""
TIMER_BATCH_BYTES: Final = 1024 * 1024
"""Bytes of waiting messages delivered in one turn of the loop, if more than one."""
TIMER_RETRY_SECONDS: Final = 0.5
"""Pause before due messages that the store refused, or a failed write of the timer log, are tried again."""
MAX_TIMER_DELAY_SECONDS: Final = 100 * 365 * 86_400
"""Largest ``timerMaxDelaySec``: a hundred years."""
MAX_RECALL_HANDLE_CHARS: Final = 4_096
"""A recall handle; with the longest names of topic and broker one has about 700 characters."""
TIMER_SAVE_SECONDS: Final = 1.0
"""Pause between two flushes of the timer log while messages arrive or are delivered."""
TIMER_SAVE_SHARE: Final = 4
"""The next save waits this many times the duration of the last one, which flushes two files of each changed day."""
TIMER_SAVE_LOG_BYTES: Final = 64 * 1024 * 1024
"""Bytes of the log that a start after a crash reads to find deliveries: about half a second."""
TIMER_WINDOW_MS: Final = 60_000
"""Waiting messages due in this time are loaded into memory together, 56 bytes each."""
TIMER_AHEAD_MS: Final = 20_000
"""A window is loaded this time before its first message is due: many times the reading of a day's index."""
MAX_OPEN_TIMER_DAYS: Final = 16
"""Open files of the timer log for reading, one for each day that is due or listed."""
MAX_TIMER_LOADED: Final = 1_000_000
"""Waiting messages loaded from the timer log, about 60 MB; more are loaded as these are delivered."""
MAX_TIMER_UNWRITTEN_BYTES: Final = 64 * 1024 * 1024
"""Waiting messages read from the log and not yet in the timer log; the log is read on when they are written."""
MAX_LISTED_WAITING: Final = 1_000
"""Waiting messages in one answer to GET_WAITING_MESSAGES; about 200 bytes each, and one read of the disk."""
MAX_LISTED_WAITING_BYTES: Final = 16 * 1024 * 1024
"""Bytes of records read for one answer, if more than one record: properties stand behind the body."""
MAX_SEARCHED_WAITING: Final = 1_000_000
"""Waiting messages searched for one answer to GET_WAITING_MESSAGES: about 0.1 s of the timer log's thread."""
MAX_TIMER_LOOKS: Final = 8
"""Requests about waiting messages in progress at once, each up to 0.1 s of the timer log's thread and 10 MB; above it
SYSTEM_BUSY, so that deliveries do not wait for administrators."""
TIMER_WRITE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of waiting messages that are copied into the timer log at once."""

# --- Filters --------------------------------------------------------------------------------------
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
MAX_FILTER_SCAN_UNITS: Final = 2_048
"""Messages that one SQL92 pull evaluates for the first time: about 1 ms."""
MAX_FILTER_WORK: Final = 2_000_000
"""Work of one SQL92 pull: bytes of properties read for the first time, times the terms that read them, or as long for a
block of records: about 10 ms; the rest waits."""
CACHED_FILTER_BLOCKS: Final = 4_096
"""Cached results of an expression for blocks of 2,048 messages: 5 KB each at worst, 1 KB in general."""

# --- Message trace --------------------------------------------------------------------------------
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

# --- Accounts -------------------------------------------------------------------------------------
MAX_ACL_FILE_BYTES: Final = 4 * 1024 * 1024
"""One file of accounts (``plain_acl.yml``): ten thousand of them; parsed in about a second, in a thread."""
MAX_ACL_FILE_DEPTH: Final = 16
"""Nesting of a file of accounts; four levels are needed."""
MAX_ACL_FILE_VALUES: Final = 400_000
"""Values, keys and brackets of a file of accounts."""
MAX_ACL_FILES: Final = 1_000
"""Files of accounts below one directory."""
MAX_SIGN_IN_BYTES: Final = 65_536
"""The frame by which a slave signs in; a key, a token and a signature are far shorter."""
MAX_ACL_BODY_BYTES: Final = 262_144
"""Body of a request that changes a user or policies: a thousand entries."""
MAX_USERS: Final = 10_000
"""Users of ACL 2.0; about 1 KB each with a few policies."""
SIGNATURE_SECONDS: Final = 300.0
"""A signed request with a stamp is taken for so long, by the clock of the server: Kerberos has the same bound."""
SIGNATURE_AHEAD_SECONDS: Final = 60.0
"""The clock of a client may be so far ahead of the server's."""
SIGNATURE_WINDOW: Final = 1_024
"""A request may come so many requests of its signer late; they come in order, except while it connects."""
MAX_SIGNERS: Final = 50_000
"""Signers whose last requests are remembered; about 500 bytes each."""
ACL_LOOK_SECONDS: Final = 1.0
"""Pause between two looks at the files of accounts; a change counts when two looks agree, so within 3 s."""
MAX_CACHED_DECISIONS: Final = 4_096
"""Remembered permissions of one connection's account; beyond it, each request is decided anew."""

# --- audit log ----------------------------------------------------------------------------------
MAX_AUDIT_QUEUE_BYTES: Final = 8_388_608
"""Entries that wait to be written: some 25,000; the last quarter is for administration."""
MAX_AUDIT_TEXT_CHARS: Final = 512
"""One text of an entry: a name, a reason, a body; longer ones are cut."""
MAX_AUDIT_ENTRY_CHARS: Final = 16_384
"""One entry; a longer one is written without its details."""
MAX_AUDIT_RESOURCES: Final = 20
"""Resources in one entry."""
MAX_AUDIT_KINDS: Final = 200
"""Different denials and logins in one second that get an entry of their own; further ones are only counted."""

# --- quotas -------------------------------------------------------------------------------------
MAX_QUOTAS: Final = 10_000
"""Quotas of one broker; all of a kind, or of a network, share one."""
MAX_QUOTA_FILE_BYTES: Final = 16_777_216
"""The file of quotas: the most quotas with the longest names."""
MAX_METERS: Final = 100_000
"""Accounts, addresses and groups that are counted at a time, about 1 KB each; beyond it the oldest is forgotten."""
METER_SECONDS: Final = 600.0
"""A subject that was idle for so long is forgotten; its buckets were full long before."""
MAX_GROUPS_OF_CONNECTION: Final = 1_000
"""Groups that one connection counts for; as many as one heartbeat has (MAX_HEARTBEAT_GROUPS)."""
MAX_METERED_GROUPS: Final = 200_000
"""Pairs of a connection and a group that it counts for, as MAX_GROUP_MEMBERS."""
MAX_DELAYED_REQUESTS: Final = 10_000
"""Requests that wait for room in a quota, for a second at most; further ones are denied at once."""
MAX_DELAYED_BYTES: Final = 67_108_864
"""The same in bytes of their frames."""
MAX_SHOWN_SUBJECTS: Final = 1_000
"""Subjects in one list of those that are counted."""
METER_EXPIRE_SECONDS: Final = 60.0
"""Pause between two looks for idle subjects."""
QUOTA_SAVE_SECONDS: Final = 5.0
"""Pause between two writes of the topics that subjects have made."""
