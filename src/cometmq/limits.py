"""Every limit of CometMQ, with its unit in the name and its reason beside it."""

from __future__ import annotations

from typing import Final

# --- Frames and names -------------------------------------------------------------------------
MAX_FRAME_BYTES: Final = 16_777_216
"""Largest frame after its length word. Apache's ``com.rocketmq.remoting.frameMaxLength``."""

MAX_HEADER_BYTES: Final = 1_048_576
"""Largest frame header. Properties (32 KiB) escaped as JSON stay far below; more is an attack."""

MAX_EXT_FIELDS: Final = 256
"""Fields of one header. Apache's largest header has 20; clients add a few of their own."""

MAX_KEPT_VALUE_CHARS: Final = 4_096
"""Value of a configuration key of Apache's that is only kept: the longest real ones list addresses or labels."""

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
"""A body after decompression; sixteen times the largest body sent. More is taken for a bomb."""

MAX_LOOSE_BODY_BYTES: Final = 128 * 1024
"""A JSON body of a request that is not strictly of its form: about 40 ms at worst. Those of Java's and Go's clients
are, and C++ clients, whose are not, subscribe to 500 topics within it."""

MAX_PARSED_BODY_BYTES: Final = 16 * 1024
"""A body of a request in fastjson's dialect, which no client needs for what it asks of a broker: about 30 ms."""

MAX_REMARK_CHARS: Final = 4_096
"""Remark of an answer: some repeat what was asked, and a client refuses headers above MAX_HEADER_BYTES."""

MAX_CONFIG_UPDATE_BYTES: Final = 64 * 1024
"""Properties text that changes a configuration (codes 25 and 318); tools send one key, Apache's whole one has 8 KB."""

# --- Server connections -----------------------------------------------------------------------
MAX_CONNECTIONS: Final = 16_384
"""Open connections of one server; each costs a file descriptor and about 10 KB. Fewer where the process may have fewer
descriptors (``ulimit -n``): an eighth of them, and what files take, is left free."""

SERVER_IDLE_SECONDS: Final = 120.0
"""A connection without traffic for this long is closed (Apache: NettyServerConfig, all-idle 120 s)."""

FRAME_SECONDS: Final = 30.0
"""Time for one frame to arrive whole once begun, so that slow writers cannot hold memory."""

TURN_SECONDS: Final = 0.001
"""Work for one connection in one turn of a server after which it waits for the next: what others wait for a client
that sends a thousand requests at once."""

LATE_SECONDS: Final = 0.005
"""So long beyond it one request must take for its connection to go on only after what has arrived meanwhile."""

FRAMES_PER_LOOK: Final = 16
"""Sends and commits of offsets of one connection handled between two looks at the clock; after others it is looked at
each time."""

MAX_UNFINISHED_BYTES: Final = 256 * 1024 * 1024
"""Frames of all connections of one server that have not arrived whole; beyond it the largest is cut off."""

WRITE_HIGH_WATER_BYTES: Final = 8 * 1024 * 1024
"""Unsent answers of one connection above which its requests are no longer read."""

WRITE_LOW_WATER_BYTES: Final = 1 * 1024 * 1024
"""Unsent answers of one connection below which its requests are read again."""

MAX_UNSENT_BYTES: Final = 256 * 1024 * 1024
"""Unsent answers of all connections of one server above which those that have any are not read until they have none;
above twice as much the connection that has most is closed. A thousand readers of 256 KB each have as much."""

UNSENT_LOOK_SECONDS: Final = 0.05
"""How often it is looked whether such connections have read their answers."""

MAX_PENDING_INVOKES: Final = 1_024
"""Requests of a server to one client that wait for their answer."""

# --- Nameserver -------------------------------------------------------------------------------
MAX_NAMESRV_TOPICS: Final = 100_000
"""Topics of one nameserver; about 500 bytes each."""

MAX_REGISTERED_QUEUES: Final = 65_535
"""Queues of one topic on one broker that a nameserver passes on; clients make an object of each."""

MAX_ROUTE_QUEUES: Final = 262_144
"""Queues of one topic that a client believes a nameserver; about 100 bytes each. 16 brokers of 16,384 each."""

MAX_NAMESRV_QUEUE_DATA: Final = 500_000
"""Pairs of a topic and a broker that has it, of one nameserver; about 300 bytes each. 100 brokers of 5,000 topics."""

MAX_ADDRESS_CHARS: Final = 300
"""An address of a broker, its port for slaves, or a filter server: the longest name of a host (253) and a port."""

MAX_FILTER_SERVERS: Final = 64
"""Filter servers of one broker; Apache gave them up in 4.9."""

MAX_DIALECT_REGISTRATION_BYTES: Final = 1024 * 1024
"""A registration with numbers as keys, which a broker of 5.x with static topics sends: about 0.6 s of a thread."""

REGISTRATION_BESIDE_BYTES: Final = 64 * 1024
"""Registrations above this are read by a thread: about 400 topics, or a few thousand compressed, in 2 ms."""

MAX_WAITING_REGISTRATION_BYTES: Final = 256 * 1024 * 1024
"""Registrations that wait for that thread; above it SYSTEM_BUSY, and the broker tries again."""

MAX_NAMESRV_BROKERS: Final = 4_096
"""Broker addresses of one nameserver; each keeps a connection and registers every 30 s."""

MAX_KV_ENTRIES: Final = 100_000
"""KV configuration entries and namespaces of one nameserver; all are written to one file at each change."""

MAX_KV_NAME_CHARS: Final = 255
"""Namespace or key of a KV configuration entry."""

MAX_KV_VALUE_CHARS: Final = 65_536
"""Value of a KV configuration entry; an order configuration of 1,000 brokers has about 20 KB."""

MAX_KV_CHARS: Final = 8 * 1024 * 1024
"""Names and values of the whole KV configuration, all written when something changes: so a namespace fits into an
answer."""

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
"""Questions of administrators that wait for consumers' answers, about 2 KB each; a group may have 16,384 members."""

MAX_RELAYED_BYTES: Final = 32 * 1024 * 1024
"""Headers and bodies of such questions (307, 309): several records of the largest size."""

MAX_RELAYED_BODY_BYTES: Final = 64 * 1024
"""Body that an administrator gives such a question; tools send none."""

MAX_STATUS_ANSWERS_BYTES: Final = 64 * 1024 * 1024
"""Offsets of all members of all groups that are kept until the last member has answered (223)."""

MAX_CONSUMER_STATUS_BYTES: Final = 4 * 1024 * 1024
"""Offsets that one consumer says it holds (221): 32,000 queues."""

QUEUES_PER_SLICE: Final = 512
"""Queues that an answer about a topic looks at in one turn of the loop: 3 to 15 ms."""

STATS_ITEMS_PER_SLICE: Final = 10_000
"""Items of the statistics that are sampled in one turn of the loop: 6 ms."""

TABLE_ROWS_PER_SLICE: Final = 1_000
"""Rows of a table of topics, groups or offsets that are copied, encoded or compared in one turn of the loop: up to
15 ms."""

MAX_CONSUME_QUEUE_UNITS: Final = 1_000
"""Units of a consume queue in one answer to QUERY_CONSUME_QUEUE (321); about 100 bytes each as JSON."""

# --- Spark ------------------------------------------------------------------------------------
SPARK_TASK_BYTES: Final = 512 * 1024 * 1024
"""What a Python worker of Spark needs at most, whatever a topic holds: imports 150 MB, records on their way 100 MB, row
groups of an archive 100 MB, unpacked bodies 64 MiB, and room. Not an order to anybody: tests measure it."""
MAX_SPARK_BATCH_BODY_BYTES: Final = 64 * 1024 * 1024
"""Unpacked bodies in one Arrow batch; what goes beyond begins the next, so that bombs cannot fill an executor."""

MAX_SINK_IN_FLIGHT_BYTES: Final = 8 * 1024 * 1024
"""Messages of one sink task that wait for their acknowledgement; half of MAX_UNFLUSHED_CONNECTION_BYTES."""

MASK_KEYS_CACHED: Final = 100_000
"""Keys of subjects that a worker of the mask job keeps at hand, about 300 bytes each; more begin anew."""

# --- Broker -------------------------------------------------------------------------------------
MAX_TURN_BYTES: Final = 32 * 1024 * 1024
"""Records put in one turn of the loop before they are written at once: bounds the write buffer."""

INDEX_BLOCK_KEYS: Final = 8_192
"""Keys of messages that are put into the index in one turn of the loop, of one message at least: about 4 ms."""

MAX_LOST_UNITS: Final = 100_000
"""Queue offsets that a slave takes for those of messages lost at its master: 2 MB of units; more is another queue."""

UNIT_SEARCH_UNITS: Final = 4_096
"""Damaged units of a queue, to either side of the one that is read, beyond which no sound one is looked for."""

UNIT_SEARCH_BYTES: Final = 16 << 20
"""Bytes of the log that are searched for the records of damaged units of a queue, once: about 30 ms."""

MAX_INDEX_WAITING_KEYS: Final = 2_000_000
"""Keys that wait for it, about 60 bytes each: what is more is put into the index at once, while everybody waits."""

MAX_UNFLUSHED_CONNECTION_BYTES: Final = 16 * 1024 * 1024
"""SYNC_FLUSH: messages of one connection that may wait for their flush; above it SYSTEM_BUSY."""

MAX_UNFLUSHED_TOTAL_BYTES: Final = 256 * 1024 * 1024
"""SYNC_FLUSH: messages of all connections that may wait for their flush; above it SYSTEM_BUSY."""

MAX_HELD_PULLS: Final = 100_000
"""Pulls that wait for a message, about 1 KB each; Apache's pull queue holds as many."""

MAX_HELD_PULL_CHARS: Final = 64 * 1024 * 1024
"""Texts of all pulls that wait, mostly their subscriptions; common ones have below 300."""

HELD_CODE_CHARS: Final = 100
"""What a tag of a filter that pulls wait with counts of them: with its places in tables it takes so many bytes."""

HELD_SQL_CHARS: Final = 3_000
"""What an expression of SQL92 counts of them, once for all pulls of a queue that wait with the same."""

HELD_SQL_FACTOR: Final = 150
"""What each character of it counts: compiled it takes so many bytes."""

HELD_SLICE_SECONDS: Final = 0.002
"""Work for waiting pulls in one turn of the loop; what is left goes on in the next."""

MAX_HELD_PULLS_OF_CONNECTION: Final = 16_384
"""Pulls of one connection that wait: a client asks once per queue, and 1,024 queues of 16 topics are much."""

MAX_CONSUMER_OFFSET_TABLES: Final = 200_000
"""Pairs of topic and group with offsets; each is an entry of ``consumerOffset.json``."""

MAX_CONSUMER_OFFSETS: Final = 2_000_000
"""Offsets of all these pairs, one for each queue, about 100 bytes each: clients may name any number of a queue."""

OFFSET_EXPIRY_SECONDS: Final = 86_400.0
"""Offsets of a topic that is not there, of a group without members, are kept so long: an administrator who deleted the
topic by mistake has made it again by then."""

OFFSET_LOOK_SECONDS: Final = 30.0
"""How often some of the offsets are looked at for that."""

OFFSET_LOOK_KEYS: Final = 2_000
"""Pairs looked at each time, about a millisecond of work: all 200,000 in 50 minutes."""

MAX_TOPICS: Final = 50_000
"""Topics that clients may bring into being; administrators may go on. The table is one file, written on each change."""

MAX_GROUPS: Final = 50_000
"""Consumer groups that clients may bring into being; each also has a retry topic."""

MAX_GROUP_MEMBERS: Final = 200_000
"""Members of all consumer groups, and producers of all groups: one for each connection and group, about 250 bytes. As
many connections as a server takes, of twelve groups each."""

GROUP_NOTICES_SECONDS: Final = 0.001
"""Notices of changed groups are written for so long in one turn of the loop; what is left is in the next."""

MAX_CLIENT_ID_CHARS: Final = 1_024
"""Client id in a heartbeat; real ones have an address, a name and a unit, below 200."""

MAX_HEARTBEAT_GROUPS: Final = 1_000
"""Groups of one heartbeat, and topics of one group: each makes an entry in a configuration file."""

MAX_HEARTBEAT_BYTES: Final = 1024 * 1024
"""Body of a heartbeat: 4,000 subscriptions of 250 bytes; common ones have below 10 KB."""

MAX_CHECK_CLIENT_BYTES: Final = 128 * 1024
"""Body of CHECK_CLIENT_CONFIG (46): the longest subscription, each of its characters escaped."""

MAX_GROUP_CONFIG_BYTES: Final = 64 * 1024
"""Configuration of one consumer group (200); Apache's has 400 bytes, with attributes of 5.x some more."""

MAX_HEARTBEAT_FILTER_CHARS: Final = 49_152
"""SQL92 expressions of one heartbeat: new ones are compiled while everybody waits, at about 1.4 µs a character."""

MAX_CONSUMER_FILTERS: Final = 10_000
"""SQL92 filters, one for a group and a topic, in ``consumerFilter.json``, those of the last day's groups included."""

MAX_CONSUMER_FILTER_CHARS: Final = 16 * 1024 * 1024
"""Expressions of all these filters; common ones have below 300 characters."""

MAX_KIND_CHARS: Final = 64
"""One of RocketMQ's words in a heartbeat, such as ``CONSUME_FROM_LAST_OFFSET``, or a name of a language."""

MAX_SUBSCRIPTION_CHARS: Final = 16_384
"""Expression of one subscription, and its tags and codes in a heartbeat: several hundred long tags."""

LONG_SUBSCRIPTION_CHARS: Final = 256
"""Tag expressions above this length are kept in the smaller cache of parsed ones."""

CACHED_SUBSCRIPTIONS: Final = 4_096
"""Parsed tag expressions kept; at most about 15 KB each."""

CACHED_LONG_SUBSCRIPTIONS: Final = 64
"""Long parsed tag expressions kept; at most about 1 MB each."""

MAX_LIVE_SUBSCRIPTION_CHARS: Final = 64 * 1024 * 1024
"""What all connected consumers subscribe to, names, expressions and tags; about 500,000 common subscriptions."""

SUBSCRIPTION_OVERHEAD_CHARS: Final = 100
"""What a subscription counts beside its text."""

MAX_PRODUCERS: Final = 50_000
"""Producers with sequences of one broker; those idle for PRODUCER_MIN_IDLE_SECONDS give way to new ones."""

MAX_PRODUCER_LANES: Final = 200_000
"""Queues of all of them, about 300 bytes each in memory and in ``comet/producers.json``."""

PRODUCER_EXPIRY_SECONDS: Final = 7 * 86_400.0
"""A producer that sent nothing for so long is forgotten (Kafka: ``transactional.id.expiration.ms``, 7 days)."""

PRODUCER_MIN_IDLE_SECONDS: Final = 3_600.0
"""A producer that sent within this time does not give way to another one."""

PRODUCER_IDLE_LOOK_SECONDS: Final = 1.0
"""Between two looks through all producers for idle ones, some 20 ms each, while requests are refused."""

PRODUCER_SAVE_SECONDS: Final = 30.0
"""How often the sequences of producers are written; a restart reads the log since then, about 1 µs a record."""

PRODUCER_SAVE_SLICE_BYTES: Final = 64 * 1024
"""So much of the sequences is encoded while everybody waits, 0.2 ms; all of them at their limits are 60 MB."""

MAX_PRODUCER_ID_CHARS: Final = 160
"""Name of a producer with sequences: the id of a query (36), or a name of the user's, and a partition."""

MAX_PRODUCER_NOTE_CHARS: Final = 8_192
"""What a producer has the broker keep with a queue: names of 100 brokers with their numbers of queues."""

MAX_QUERY_MESSAGES: Final = 64
"""Messages found by one query by key (Apache: ``maxMsgsNumBatch``)."""

LOCK_SECONDS: Final = 60.0
"""A queue's lock not renewed for this long is free (Apache: ``rocketmq.broker.rebalance.lockMaxLiveTime``)."""

LOCK_TRUST_SECONDS: Final = 30.0
"""So long clients trust a lock since they asked for it (Apache: ``rocketmq.client.rebalance.lockMaxLiveTime``)."""

MAX_LOCKED_QUEUES: Final = 200_000
"""Locks of queues of all groups, about 300 bytes each."""

MAX_LOCK_REQUEST_QUEUES: Final = 16_384
"""Queues of one request to lock: 1,024 queues of 16 topics are much; each takes about 3 µs."""

MAX_LOCK_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Body of such a request: MAX_LOCK_REQUEST_QUEUES with names of 200 characters together; about 20 ms."""

MAX_OPEN_TRANSACTIONS: Final = 500_000
"""Half messages that are neither committed nor rolled back, about 250 bytes each; beyond it more are refused."""

HALF_PROPERTIES_RESERVE_BYTES: Final = 256
"""Room in the properties of a half message for what is added each time that it is put back."""

MAX_HALF_LAG: Final = 200_000
"""Half messages behind one that is open until it is put back to the end: a start reads those that follow it."""

TRANSACTION_SLICE: Final = 100
"""Half messages looked at before a round of checks lets the loop do other work: about 3 ms."""

MAX_GIVEN_UP_LINES: Final = 100
"""Transactions of one round of checks that are given up with a line of the log each: enough to begin with; the last
line has their number, and all of them are in TRANS_CHECK_MAX_TIME_TOPIC."""

TRANSACTION_PROGRESS_SECONDS: Final = 5.0
"""How often it is noted how far half messages are done with (Apache writes its offsets every 5 s)."""

MAX_TRANSACTION_MARKS: Final = 256
"""Places in the op queue remembered beside a place in the half queue; a start reads the ops after one of them."""

COMMITTED_SCAN_BYTES: Final = 64 * 1024 * 1024
"""End of the log that a start searches for committed messages without their op: here at most one, with a crashed
Apache broker those of its last moments."""

MAX_LISTED_TRANSACTIONS: Final = 1_000
"""Open transactions in one answer to GET_OPEN_TRANSACTIONS; about 300 bytes each."""

MAX_SEARCHED_TRANSACTIONS: Final = 5_000
"""Open transactions looked at for one answer to GET_OPEN_TRANSACTIONS: about 50 ms."""

MAX_WAITING_REPLY_BYTES: Final = 256 * 1024 * 1024
"""Replies that wait for their requesters to take them, 10 s at most; above it SYSTEM_BUSY."""

CLIENT_EXPIRY_SECONDS: Final = 120.0
"""A client without a heartbeat for this long is taken out of its groups (Apache: 120 s)."""

CLIENT_SCAN_SECONDS: Final = 10.0
"""How often silent clients are looked for (Apache: 10 s)."""

FILTER_SAVE_SECONDS: Final = 10.0
"""How often ``consumerFilter.json`` is written when it changed (Apache: 10 s)."""

TABLE_RETRY_SECONDS: Final = 10.0
"""How often a table that could not be written, on a full disk, is tried again."""

MAX_DELAY_LEVELS: Final = 256
"""Levels of ``messageDelayLevel``: each is a queue with a file of 6 MB, and is delivered by itself. Apache's has 18."""

DELAY_BATCH_MESSAGES: Final = 64
"""Delayed messages delivered in one turn of the loop, about 1 ms of work: others are answered in between."""

DELAY_BATCH_BYTES: Final = 1024 * 1024
"""Delayed messages delivered in one turn of the loop, if more than one."""

DELAY_RECHECK_SECONDS: Final = 10.0
"""How often a delay level that waits is looked at all the same: so soon it is noticed that the date was set."""

DELAY_RETRY_SECONDS: Final = 0.1
"""Until delayed messages that the store did not take are delivered again (Apache: ``DELAY_FOR_A_WHILE``)."""

# --- Replication ------------------------------------------------------------------------------------
MAX_TRANSFER_BYTES: Final = 4 * 1024 * 1024 - 12
"""Bytes of the log in one transfer to a slave: with its head of 12 they fill the buffer that Apache's slave reads into
(``READ_MAX_BUFFER_SIZE``); more would never be whole there."""

TRANSFER_TURN_BYTES: Final = 256 * 1024
"""Bytes of the log sent to one slave in one turn of the loop, about 0.1 ms: clients are answered in between."""

TRANSFER_HIGH_WATER_BYTES: Final = 1024 * 1024
"""Unsent bytes of one slave above which it is sent no more until it has read most of them."""

MAX_SLAVES: Final = 64
"""Slaves of one master; each gets every byte that is stored. Real sets have one or two."""

SLAVES_CATCH_UP_SECONDS: Final = 10.0
"""How long a master that stops goes on sending its slaves what they lack: some GB, a hundred times what is usual …"""

SLAVE_STILL_SECONDS: Final = 1.0
"""… unless none of them comes nearer to the end of the log for so long."""

REPLICATION_CONNECT_SECONDS: Final = 5.0
"""How long a slave tries to connect to its master's port for slaves."""

REPLICATION_RETRY_SECONDS: Final = 5.0
"""Until a slave connects again after its connection ended (``HAClient``)."""

SLAVE_SYNC_FIRST_SECONDS: Final = 3.0
"""Until a slave first copies its master's tables (``BrokerController.handleSlaveSynchronize``) …"""

SLAVE_SYNC_SECONDS: Final = 10.0
"""… and then from one copy to the next."""

SLAVE_TABLE_SECONDS: Final = 30.0
"""How long one of the master's tables may take to arrive: the largest at 4 MB a second."""

MAX_TABLE_ANSWER_BYTES: Final = 128 * 1024 * 1024
"""Largest table that a slave takes: MAX_CONSUMER_OFFSETS in MAX_CONSUMER_OFFSET_TABLES pairs of the longest names.
75,000 pairs are more than a frame of Apache's holds."""

SLAVE_SYNC_SOON_SECONDS: Final = 1.0
"""Until they are copied after a message came of a topic that the slave does not know."""

STORE_FILE_PART_BYTES: Final = 1024 * 1024
"""Bytes of a file in one answer to a slave that copies it: about 1 ms of reading in a thread."""

MAX_STORE_FILE_READS: Final = 4
"""Such answers under way at once; above it SYSTEM_BUSY. A slave asks for one at a time."""

MAX_COPIED_FILE_BYTES: Final = 256 * 1024 * 1024
"""Bytes of a file that a slave takes over whole: a full table of producers has about 60 MB."""

COPIED_FILE_BYTES_PER_SECOND: Final = 4 * 1024 * 1024
"""How fast large files may change and still be copied each time; others are copied less often."""

MAX_TIMER_COPY_BYTES: Final = 4 * 1024 * 1024
"""Bytes of units, and of records, that a slave copies at once of the messages that wait; one record may have more."""

# --- Any delay ------------------------------------------------------------------------------------
TIMER_BATCH_MESSAGES: Final = 128
"""Waiting messages delivered in one turn of the loop, about 2 ms of work: others are answered in between."""

TIMER_BATCH_BYTES: Final = 1024 * 1024
"""Waiting messages delivered in one turn of the loop, if more than one."""

TIMER_RETRY_SECONDS: Final = 0.5
"""Until due messages that the store did not take, or a timer log that could not be written, are tried again."""

MAX_TIMER_DELAY_SECONDS: Final = 100 * 365 * 86_400
"""Most that ``timerMaxDelaySec`` may be set to: a hundred years."""

MAX_RECALL_HANDLE_CHARS: Final = 4_096
"""A recall handle; with the longest names of topic and broker one has about 700 characters."""

TIMER_SAVE_SECONDS: Final = 1.0
"""Between two flushes of the timer log while messages come or are delivered."""

TIMER_SAVE_SHARE: Final = 4
"""The next save waits so many times as long as the last one took: a save flushes two files of each day that changed."""

TIMER_SAVE_LOG_BYTES: Final = 64 * 1024 * 1024
"""So much of the log is read after a crash at most, to find what was delivered; about half a second."""

TIMER_WINDOW_MS: Final = 60_000
"""Waiting messages due within this are loaded into memory at once, 56 bytes each."""

TIMER_AHEAD_MS: Final = 20_000
"""So long before its first message is due a window is loaded: many times what reading a day's index takes."""

MAX_OPEN_TIMER_DAYS: Final = 16
"""Files of the timer log kept open for reading, one for each day: days that are due, and those that are listed."""

MAX_TIMER_LOADED: Final = 1_000_000
"""Waiting messages in memory that the timer log gave, about 60 MB; more are loaded as these are delivered."""

MAX_TIMER_UNWRITTEN_BYTES: Final = 64 * 1024 * 1024
"""Waiting messages read from the log and not yet in the timer log: more are not read until it can be written."""

MAX_LISTED_WAITING: Final = 1_000
"""Waiting messages in one answer to GET_WAITING_MESSAGES; about 200 bytes each, and one read of the disk."""

MAX_LISTED_WAITING_BYTES: Final = 16 * 1024 * 1024
"""Records read for one such answer, if more than one: what is shown of a message stands behind its body."""

MAX_SEARCHED_WAITING: Final = 1_000_000
"""Waiting messages looked through for one such answer: about 0.1 s, in which the timer log does nothing else."""

MAX_TIMER_LOOKS: Final = 8
"""Requests about waiting messages under way at once, each up to 0.1 s of the timer log's thread and 10 MB; above it
SYSTEM_BUSY, so that delayed messages do not wait for those who look at them."""

TIMER_WRITE_BYTES: Final = 4 * 1024 * 1024
"""From so many bytes on waiting messages are copied into the timer log at once."""

# --- Filters --------------------------------------------------------------------------------------
MAX_FILTER_CHARS: Final = 16_384
"""An SQL92 expression: an IN list of several hundred ids. Apache bounds only the frame."""

MAX_FILTER_DEPTH: Final = 50
"""Nesting of an SQL92 expression; each level costs six Python frames while parsing."""

MAX_FILTER_TERMS: Final = 256
"""Names and values of an SQL92 expression (a list of IN is one), so that no message takes more than about 100 µs."""

LONG_FILTER_CHARS: Final = 1_024
"""Expressions above this length are kept in the smaller cache of parsed ones."""

CACHED_FILTERS: Final = 256
"""Parsed SQL92 expressions kept, failures too (Apache: 100); a few KB each, 200 KB at worst."""

CACHED_LONG_FILTERS: Final = 32
"""Long parsed SQL92 expressions kept; at most about 1 MB each."""

MAX_FILTER_SCAN_UNITS: Final = 2_048
"""Messages that one pull by SQL92 looks at for the first time: about 1 ms in which nobody else is served."""

MAX_FILTER_WORK: Final = 2_000_000
"""Bytes of properties that one pull reads one by one for the first time, times the terms that read them, or what takes
as long for many records together: about 10 ms; what is more has to wait."""

CACHED_FILTER_BLOCKS: Final = 4_096
"""Blocks of 2,048 messages of which is known what an expression finds: 5 KB each at worst, 1 KB in general."""

# --- Message trace --------------------------------------------------------------------------------
MAX_WAITING_TRACES: Final = 2_048
"""Trace records of one client that wait to be sent (Java's queue); more are dropped and counted."""

MAX_TRACE_RECORDS: Final = 100
"""Records of one trace message (Java: ``batchSize``)."""

MAX_TRACE_BODY_BYTES: Final = 128_000
"""Body of one trace message (Java: ``maxMsgSize``)."""

MAX_TRACE_KEY_BYTES: Final = 16_384
"""Ids and keys that one trace message can be found by; half of what properties may take."""

MAX_TRACE_IN_FLIGHT: Final = 16
"""Trace messages of one client on their way: with a broker that stands still their records wait, then are dropped."""
