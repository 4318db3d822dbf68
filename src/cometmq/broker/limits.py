"""The broker's limits. Each name contains the unit, and each docstring gives the reason."""

from __future__ import annotations

from typing import Final

# --- Metrics ------------------------------------------------------------------------------------
HALF_MESSAGES_PER_SLICE: Final = 50
"""Maximum number of half messages whose topics are read in one round of the loop (about 1 ms)."""
MAX_HALF_MESSAGES_BY_TOPIC: Final = 50_000
"""Maximum number of open transactions that are counted by topic; further ones are counted together."""
TIMER_COUNT_SECONDS: Final = 60.0
"""Interval in seconds at which delayed messages are counted by topic, since each count reads the entire timer log."""

# --- Administration -----------------------------------------------------------------------------
MAX_TOPIC_QUEUES: Final = 16_384
"""Maximum number of queues for a topic on one broker, since each queue becomes a directory."""
MAX_RELAYED_REQUESTS: Final = 20_000
"""Maximum number of administrators' requests that are waiting for consumers, about 2 KB each."""
MAX_RELAYED_BYTES: Final = 32 * 1024 * 1024
"""Maximum total size of the requests that are waiting for consumers (request codes 307 and 309)."""
MAX_RELAYED_BODY_BYTES: Final = 64 * 1024
"""Maximum size of the body of a request forwarded to a consumer. Tools send empty bodies."""
MAX_STATUS_ANSWERS_BYTES: Final = 64 * 1024 * 1024
"""Maximum total size of the offsets that are kept until the last member of a group has answered (request code 223)."""
MAX_CONSUMER_STATUS_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of the offsets that a consumer may report (request code 221), enough for 32,000 queues."""
QUEUES_PER_SLICE: Final = 512
"""Number of queues read in one round of the loop for a response about a topic."""
LAGS_PER_ANSWER: Final = 100_000
"""Number of queues whose lag one metrics scrape reads, besides those of the groups that are furthest behind."""
LAGS_SLICE_SECONDS: Final = 0.005
"""Maximum time in one round of the loop for reading how old the next message of each group is."""
AGES_PER_ANSWER: Final = 1_000
"""Maximum number of messages whose ages one metrics scrape reads, in addition to the ages that are already known."""
PAIRS_PER_SLICE: Final = 1_000
"""Number of topic-group pairs whose progress is added up in one round of the loop (3 ms)."""
MAX_PROGRESS_SUMS_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of a response with the progress of groups; the client requests the rest separately."""
SLICES_SECONDS: Final = 0.005
"""Maximum time in one round of the loop for all work that runs in slices (:mod:`cometmq.broker.slices`)."""
SLICED_WORKS: Final = 8
"""Number of sliced jobs that run a slice in one round of the loop; the others wait for a later round."""
CLIENTS_PER_SLICE: Final = 100
"""Number of client groups that are added or removed in one round of the loop (1 to 2 ms)."""
LARGE_HEARTBEAT_BYTES: Final = 4 * 1024
"""Size above which heartbeats are handled one by one in later rounds of the loop."""
SHORT_HEARTBEAT_GROUPS: Final = 8
"""Maximum number of groups in a heartbeat that is handled immediately (about 20 µs)."""
SHORT_HEARTBEATS_PER_ROUND: Final = 128
"""Maximum number of heartbeats that are handled immediately in one round of the loop; the others share its slices."""
STATS_ITEMS_PER_SLICE: Final = 10_000
"""Number of statistics items that are checked for idleness in one round of the loop (6 ms)."""
TABLE_ROWS_PER_SLICE: Final = 1_000
"""Number of table rows that are copied, encoded or compared in one round of the loop (up to 15 ms)."""
MAX_CONSUME_QUEUE_UNITS: Final = 1_000
"""Maximum number of consume queue units in a response to QUERY_CONSUME_QUEUE (321), about 100 bytes each as JSON."""

# --- Broker -------------------------------------------------------------------------------------
MAX_TURN_BYTES: Final = 32 * 1024 * 1024
"""Maximum size of the records in a turn; a larger turn is written early."""
STORED_AGAIN_BYTES: Final = 1024 * 1024
"""Total size of messages that are stored again in one round of the loop, because they are due, were not acknowledged or
are half messages; the last one may exceed it. One of 4 MB takes 5 to 9 ms.
"""
MAX_UNFLUSHED_CONNECTION_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of unflushed messages from one connection with SYNC_FLUSH; further sends get SYSTEM_BUSY."""
MAX_UNFLUSHED_TOTAL_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of unflushed messages from all connections with SYNC_FLUSH; further sends get SYSTEM_BUSY."""
MAX_HELD_PULLS: Final = 100_000
"""Maximum number of held pulls, which wait for messages, about 1 KB each. This is the size of Apache's pull queue."""
MAX_HELD_PULL_CHARS: Final = 64 * 1024 * 1024
"""Maximum number of characters in all held pulls, mostly in their subscriptions."""
HELD_CODE_CHARS: Final = 100
"""Number of characters for which each tag in a held pull's filter counts in MAX_HELD_PULL_CHARS."""
HELD_SQL_CHARS: Final = 3_000
"""Number of characters for which an SQL92 expression counts in MAX_HELD_PULL_CHARS, once for each queue."""
HELD_SQL_FACTOR: Final = 150
"""Number of characters for which each character of an SQL92 expression counts in MAX_HELD_PULL_CHARS."""
HELD_SLICE_SECONDS: Final = 0.002
"""Maximum time in one round of the loop for answering held pulls."""
ARCHIVE_ANSWER_SECONDS: Final = 5.0
"""Maximum time that a request waits for the archive reader before the client is told to retry. It is less than the 10 s
after which clients give up a pull.
"""
ARCHIVE_OPENING_SECONDS: Final = 600.0
"""Maximum time after a broker's start for which pulls below a queue's first offset wait for the archive's storage."""
ARCHIVE_SILENCE_SECONDS: Final = 300.0
"""Time after which an archive reader that does not answer at all is killed and started again. It is more than the three
minutes for which a storage is asked again."""
MAX_ARCHIVE_LOOKUPS: Final = 64
"""Maximum number of lookups by key and by message ID that wait for the archive reader, each of which may take four
seconds; further ones get SYSTEM_BUSY, so that pulls never wait behind them."""
MAX_ARCHIVE_QUESTIONS: Final = 4_096
"""Maximum number of requests that wait for the archive reader, whose responses have up to a megabyte each."""
ARCHIVE_FILTERED_RECORDS: Final = 800
"""Maximum number of archived records that a filtered pull reads (3 ms)."""
ARCHIVE_FILTER_SECONDS: Final = 0.01
"""Time after which no more archived records are filtered for one request in one round of the loop."""
MAX_ARCHIVE_WINDOWS_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of the archived messages that are loaded for pops."""
MAX_ARCHIVE_LOADS_OF_POP: Final = 4
"""Maximum number of queues whose archived messages one pop lets load at the same time."""
MAX_HELD_PULLS_OF_CONNECTION: Final = 16_384
"""Maximum number of held pulls on one connection. A client has one for each queue."""
MAX_POP_MESSAGES: Final = 32
"""Maximum number of messages in one pop, as in Apache's broker."""
MAX_POP_INVISIBLE_MS: Final = 3 * 86_400_000
"""Maximum time in milliseconds for which a popped message remains invisible, as in Apache's broker."""
MAX_POP_LOG_ENTRIES: Final = 4_096
"""Maximum number of entries in a POP log record, about 100 bytes each; further entries are stored in another record."""
MAX_ACKS: Final = 4_096
"""Maximum number of acknowledgements in one BATCH_ACK_MESSAGE, each for messages from one pop from one queue."""
MAX_BATCH_ACK_BYTES: Final = 1024 * 1024
"""Maximum size of the body of BATCH_ACK_MESSAGE, enough for 4,096 acknowledgements with long names."""
MAX_ACK_BITS_CHARS: Final = 64 * 1024
"""Maximum number of Base64 characters in the bits of an acknowledgement."""
MAX_ACKED_MESSAGES: Final = 16_384
"""Maximum number of messages in one BATCH_ACK_MESSAGE (about 10 ms)."""
MAX_ORDERED_MESSAGES: Final = 1_024
"""Maximum number of messages from one queue that a group has in flight, or that wait for earlier messages of their
message group.
"""
EXPIRED_READS_MAX: Final = 32
"""Maximum number of reads for one pull while they find only messages whose life times have ended (about 2 ms)."""
MAX_KNOWN_EXPIRED: Final = 2_048
"""Number of a group's newest dead letters among which those of expired messages are known. One pull finds at most half
as many. Reading their properties after a start takes about 10 ms."""
MAX_GROUPS_WITH_EXPIRED: Final = 256
"""Number of groups whose newest dead letters are known, with up to 200 KB each; those of others are read again."""
EXPIRED_AGAIN_SECONDS: Final = 1.0
"""Pause after which pulls look again at expired messages that could not become dead letters."""
POP_READS_MAX: Final = 4
"""Maximum number of reads from a queue for one attempt to answer a pop with a filter."""
POP_SKIPPED_MAX: Final = 4_096
"""Maximum number of messages that a pop's filter may reject in one round before the pop stops reading."""
POP_REVIVE_MESSAGES: Final = 128
"""Maximum number of popped messages that are stored again in one round of the loop (about 5 ms)."""
POP_RETRY_SECONDS: Final = 0.1
"""Pause before another attempt to store popped messages that the store refused."""
POP_LOAD_SECONDS: Final = 2.0
"""Time after which an expired message is checked again if it must be loaded from the archive first."""
POP_LOAD_SECONDS_MAX: Final = 60.0
"""The same while the archive cannot be read, since each check adds an entry to the POP log."""
POP_SCAN_MESSAGES_PER_MS: Final = 20_000
"""Number of invisible messages that lengthen the pause between two checks of a queue by one millisecond."""
POP_SCAN_PAUSE_MS: Final = 50
"""Maximum pause between two checks of a queue, so that messages become visible again within 100 ms."""
POP_SAVE_SECONDS: Final = 10.0
"""Interval between snapshots of the popped messages, unless nothing was popped."""
POP_SAVE_QUEUES: Final = 500
"""Number of queues in one slice of a snapshot."""
MAX_HELD_POPS_OF_CONNECTION: Final = 16_384
"""Maximum number of waiting pops on one connection. A proxy uses a few connections for the pops of all its clients."""
MAX_OWNED_GROUPS_OF_CONNECTION: Final = 1_000
"""Maximum number of groups for which the pops of one connection have an owner, about 1 KB each."""
MAX_LITE_TOPICS: Final = 5_000_000
"""Maximum number of lite topics on a broker, about 100 bytes each."""
MAX_LITE_LISTED: Final = 10_000
"""Maximum number of lite topics or clients in an answer to a tool, as in Apache's broker."""
MAX_LISTED_LITE_TOPICS: Final = 1_000
"""Maximum number of lite topics in a response to GET_LITE_TOPICS, about 120 bytes and one disk read each."""
MAX_SEARCHED_LITE_TOPICS: Final = 100_000
"""Maximum number of lite topics that one GET_LITE_TOPICS or EXPIRE_LITE_TOPICS compares with its prefix."""
MAX_ATTEMPT_ID_CHARS: Final = 256
"""Maximum length of the attempt ID of a pop of lite topics; the broker keeps it for each lite topic."""
LITE_TOPICS_OF_POP: Final = 1_000
"""Maximum number of ready lite topics at which one pop looks (about 5 ms); it looks at the others in a later round."""
MAX_LITE_SUBSCRIPTION_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of the body of LITE_SUBSCRIPTION_CTL, enough for 100,000 lite topics with long names."""
MAX_LITE_SUBSCRIPTION_VALUES: Final = 200_000
"""Maximum number of commas in the body of LITE_SUBSCRIPTION_CTL, which limits the time of decoding it (about 15 ms)."""
MAX_LITE_SUBSCRIPTIONS_OF_REQUEST: Final = 1_000
"""Maximum number of clients in one LITE_SUBSCRIPTION_CTL."""
LITE_DROPS_AT_ONCE: Final = 1_000
"""Number of idle lite topics that are removed in one slice."""
LITE_RETENTION_SECONDS: Final = 10.0
"""Interval at which messages that retention has deleted are removed from the index of lite topics."""
LITE_SAVE_CHANGES: Final = 100_000
"""Number of changes after which the snapshot of lite topics is written, or a tenth of their number if that is more."""
LITE_SAVE_SECONDS: Final = 60.0
"""Time after which the snapshot of lite topics is written if anything has changed."""
LITE_LOOK_SECONDS: Final = 2.0
"""Interval at which the snapshot of lite topics is written if it is due."""
LITE_SAVE_ENTRIES: Final = 100_000
"""Number of messages of lite topics that one slice of a snapshot copies."""
MAX_ATTRIBUTES_CHARS: Final = 4_096
"""Maximum number of characters in the attributes of a topic in a request."""
MAX_REQUEST_MODES: Final = 100_000
"""Maximum number of topic-group pairs with a message request mode, the entries of ``messageRequestMode.json``."""
MAX_ASSIGNMENT_BYTES: Final = 16 * 1024
"""Maximum size of the bodies of QUERY_ASSIGNMENT and SET_MESSAGE_REQUEST_MODE."""
MAX_CACHED_ROUTES: Final = 10_000
"""Maximum number of topics whose queues on other brokers are cached."""
ROUTE_SECONDS: Final = 30.0
"""Time for which a topic's queues on other brokers are cached, as in Apache's broker."""
MAX_HELD_POP_CHARS: Final = 64 * 1024 * 1024
"""Maximum number of characters in all waiting pops."""
MAX_POP_WAIT_MS: Final = 10 * 60_000
"""Maximum time in milliseconds that a pop may wait for a message."""
MAX_CONSUMER_OFFSET_TABLES: Final = 1_000_000
"""Maximum number of topic-group pairs with offsets, each of which is an entry in ``consumerOffset.json``."""
MAX_CONSUMER_OFFSET_NAMES: Final = 200_000
"""Maximum number of topics, and of groups, with offsets, so that each map of them grows in steps of at most 10 ms."""
MAX_CONSUMER_OFFSETS: Final = 2_000_000
"""Maximum number of offsets in all topic-group pairs, about 40 to 100 bytes each."""
OFFSET_EXPIRY_SECONDS: Final = 86_400.0
"""Time after which offsets in a missing topic expire for a group without members."""
OFFSET_LOOK_SECONDS: Final = 15.0
"""Pause between two slices of the scan for expired offsets."""
MAX_TOPICS: Final = 50_000
"""Maximum number of topics that clients may create; administrators may exceed it."""
MAX_DELETED_TOPICS: Final = 20_000
"""Maximum number of deleted topics that are remembered; the oldest deletion is forgotten first."""
EARLIER_READERS_SECONDS: Final = 86_400.0
"""Time for which consumers of a deleted topic are remembered, since they may have offsets from before it."""
MAX_GROUPS: Final = 50_000
"""Maximum number of consumer groups that clients may create. Each group also has a retry topic."""
MAX_GROUP_MEMBERS: Final = 200_000
"""Maximum number of consumer group members, and of producers, about 250 bytes for each connection and group."""
NOTICES_PER_ROUND: Final = 32
"""Maximum number of notices about changed groups in one round of the loop (0.3 ms with their writes)."""
LARGE_GROUP_MEMBERS: Final = 50
"""Number of members above which a group rests after its notices."""
NOTICES_REST_SECONDS: Final = 0.0001
"""Time that a large group rests for each of its members: a group causes at most 10,000 notices per second."""
MAX_NOTICES_REST_SECONDS: Final = 1.0
"""Maximum time that a group rests; Java's clients, too, rebalance at most once per second."""
MAX_HEARTBEAT_GROUPS: Final = 1_000
"""Maximum number of groups in a heartbeat, and of topics in a group; each adds an entry to a configuration file."""
MAX_HEARTBEAT_BYTES: Final = 1024 * 1024
"""Maximum size of the body of a heartbeat, enough for 4,000 subscriptions of 250 bytes."""
MAX_HEARTBEAT_OBJECTS: Final = 10_000
"""Maximum number of groups and subscriptions in a heartbeat, which limits the time of decoding it (about 10 ms)."""
MAX_CHECK_CLIENT_BYTES: Final = 128 * 1024
"""Maximum size of the body of CHECK_CLIENT_CONFIG (46), enough for the longest subscription with every character
escaped.
"""
MAX_GROUP_CONFIG_BYTES: Final = 64 * 1024
"""Maximum size of a consumer group's configuration (request code 200), which usually has about 400 bytes."""
MAX_LIST_BYTES: Final = 512 * 1024
"""Maximum size of the topics (request code 18) or groups (225) in a request."""
MAX_LISTED: Final = 1_000
"""Maximum number of topics or groups that a request may create. Creating this many takes about 10 ms."""
MAX_HEARTBEAT_FILTER_CHARS: Final = 49_152
"""Maximum number of characters of SQL92 expressions in a heartbeat."""
FILTER_CHARS_PER_SLICE: Final = 4_096
"""Number of characters of SQL92 expressions that are compiled in one round of the loop (about 6 ms)."""
MAX_CONSUMER_FILTERS: Final = 10_000
"""Maximum number of SQL92 filters in ``consumerFilter.json``, one for each group and topic."""
MAX_CONSUMER_FILTER_CHARS: Final = 16 * 1024 * 1024
"""Maximum number of characters in all expressions in ``consumerFilter.json``. Most expressions have fewer than 300."""
MAX_KIND_CHARS: Final = 64
"""Maximum number of characters in a language or enumeration name in a heartbeat."""
MAX_SUBSCRIPTION_CHARS: Final = 16_384
"""Maximum number of characters in a subscription's expression, and in its tags and tag codes in a heartbeat."""
LONG_SUBSCRIPTION_CHARS: Final = 256
"""Length in characters above which tag expressions are stored in the smaller cache."""
CACHED_SUBSCRIPTIONS: Final = 4_096
"""Number of cached tag expressions, at most about 15 KB each."""
CACHED_LONG_SUBSCRIPTIONS: Final = 64
"""Number of cached long tag expressions, at most about 1 MB each."""
MAX_LIVE_SUBSCRIPTION_CHARS: Final = 64 * 1024 * 1024
"""Maximum number of characters in the subscriptions of all connected consumers, enough for about 500,000 common
subscriptions.
"""
SUBSCRIPTION_OVERHEAD_CHARS: Final = 100
"""Number of characters added to a subscription's length when it is counted towards MAX_LIVE_SUBSCRIPTION_CHARS."""
MAX_PRODUCERS: Final = 50_000
"""Maximum number of producers with sequences (producers that number their messages) on a broker."""
MAX_PRODUCER_LANES: Final = 200_000
"""Maximum total number of queues to which producers with sequences send, about 300 bytes each."""
PRODUCER_EXPIRY_SECONDS: Final = 7 * 86_400.0
"""Time after which an idle producer is forgotten (Kafka: ``transactional.id.expiration.ms``, 7 days)."""
PRODUCER_MIN_IDLE_SECONDS: Final = 3_600.0
"""Time after a producer's last message during which another producer must not replace it."""
PRODUCER_IDLE_LOOK_SECONDS: Final = 1.0
"""Pause between two scans for idle producers while the table is full."""
PRODUCER_SAVE_SECONDS: Final = 30.0
"""Interval at which producer sequences are written."""
PRODUCER_SAVE_SLICE_BYTES: Final = 64 * 1024
"""Number of bytes of producer sequences that are encoded in one round of the loop, which takes 0.2 ms."""
LOCK_SECONDS: Final = 60.0
"""Time after which a queue lock expires if it is not renewed (Apache:
``rocketmq.broker.rebalance.lockMaxLiveTime``).
"""
MAX_LOCKED_QUEUES: Final = 200_000
"""Maximum number of locked queues for all groups, about 300 bytes each."""
MAX_LOCK_REQUEST_QUEUES: Final = 16_384
"""Maximum number of queues in a lock request (about 3 µs per queue)."""
MAX_LOCK_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of the body of a lock request, enough for MAX_LOCK_REQUEST_QUEUES with names of 200 characters."""
MAX_OPEN_TRANSACTIONS: Final = 1_000_000
"""Maximum number of open transactions, about 250 bytes each; further half messages are refused."""
HALF_PROPERTIES_RESERVE_BYTES: Final = 256
"""Space reserved in a half message's properties for those that each check adds."""
MAX_HALF_LAG: Final = 200_000
"""Maximum number of messages after an open half message before it is copied to the end of its queue."""
TRANSACTION_SLICE: Final = 100
"""Number of half messages that are checked in one round of the loop (about 3 ms)."""
MAX_GIVEN_UP_LINES: Final = 100
"""Maximum number of transactions given up in one round of checks that are logged separately."""
TRANSACTION_PROGRESS_SECONDS: Final = 5.0
"""Interval at which the progress through half messages is written (Apache: 5 s)."""
MAX_TRANSACTION_MARKS: Final = 256
"""Maximum number of pairs of an op queue and a half queue offset in memory."""
COMMITTED_SCAN_BYTES: Final = 64 * 1024 * 1024
"""Size of the end of the log that is searched for committed messages without an op message after a start."""
MAX_LISTED_TRANSACTIONS: Final = 1_000
"""Maximum number of open transactions in a response to GET_OPEN_TRANSACTIONS, about 300 bytes each."""
MAX_SEARCHED_TRANSACTIONS: Final = 5_000
"""Maximum number of open transactions read for a response to GET_OPEN_TRANSACTIONS (about 50 ms)."""
MAX_WAITING_REPLY_BYTES: Final = 256 * 1024 * 1024
"""Maximum total size of the replies that are waiting for their requesters; further replies get SYSTEM_BUSY."""
CLIENT_EXPIRY_SECONDS: Final = 120.0
"""Time without a heartbeat after which a client leaves its groups (Apache: 120 s)."""
GONE_FOR_RETURN: Final = 5_000
"""Number of removed group members and topics after which free memory is returned to the system."""
CLIENT_SCAN_SECONDS: Final = 10.0
"""Pause between two scans for silent clients (Apache: 10 s)."""
FILTER_SAVE_SECONDS: Final = 10.0
"""Interval at which a changed ``consumerFilter.json`` is written (Apache: 10 s)."""
TABLE_RETRY_SECONDS: Final = 10.0
"""Pause before a failed write of a table is retried, for example on a full disk."""
MAX_PENDING_CHANGES: Final = 10_000
"""Maximum number of requests that are waiting for table changes to be durable; further requests get SYSTEM_BUSY."""
TABLE_WRITE_SECONDS: Final = 0.25
"""Minimum interval at which a changed table's complete file is written."""
TABLE_WRITE_BYTES_PER_SECOND: Final = 512 * 1024
"""Size of a table's complete file, in bytes, that lengthens the pause between two writes of the file by one second."""
JOURNAL_BYTES: Final = 1024 * 1024
"""Size of a journal above which the complete file is written immediately, if the journal is also twice as large as the
file.
"""
DELAY_BATCH_MESSAGES: Final = 64
"""Maximum number of delayed messages delivered in one round of the loop (about 1 ms)."""
DELAY_RECHECK_SECONDS: Final = 10.0
"""Maximum time that a delay level waits before reading the clock again, since the clock may be changed."""
DELAY_RETRY_SECONDS: Final = 0.1
"""Pause before delayed messages are delivered again after the store refused them (Apache: ``DELAY_FOR_A_WHILE``)."""

# --- Replication --------------------------------------------------------------------------------
MAX_TRANSFER_BYTES: Final = 4 * 1024 * 1024 - 12
"""Maximum size of a transfer to a slave, which fits into the buffer of Apache's slave (``READ_MAX_BUFFER_SIZE``)."""
TRANSFER_ROUND_BYTES: Final = 256 * 1024
"""Number of log bytes sent to a slave in one round of the loop, which takes about 0.1 ms."""
TRANSFER_HIGH_WATER_BYTES: Final = 1024 * 1024
"""Maximum size of unsent data for a slave; no more is queued until the slave has read most of it."""
MAX_PORT: Final = 65_535
"""The highest TCP port number."""
MAX_SLAVES: Final = 64
"""Maximum number of slaves of a master, each of which receives every stored byte."""
SLAVES_CATCH_UP_SECONDS: Final = 10.0
"""Maximum time that a stopping master continues sending to slaves that are behind."""
SLAVE_STILL_SECONDS: Final = 1.0
"""Time without progress by any slave after which a stopping master stops sending."""
REPLICATION_CONNECT_SECONDS: Final = 5.0
"""Timeout for a slave's connection to its master's HA port."""
REPLICATION_RETRY_SECONDS: Final = 5.0
"""Pause before a slave reconnects (``HAClient``)."""
SLAVE_SYNC_FIRST_SECONDS: Final = 3.0
"""Delay before a slave copies its master's tables for the first time (``BrokerController.handleSlaveSynchronize``)."""
SLAVE_SYNC_SECONDS: Final = 10.0
"""Interval at which a slave copies its master's tables."""
SLAVE_CHANGES_SECONDS: Final = 1.0
"""Interval at which a slave copies changed rows from a CometMQ master."""
MAX_CHANGED_NAMES: Final = 50_000
"""Maximum number of changed rows whose names a master remembers; beyond it, slaves copy the complete table again."""
MAX_CHANGED_PARTS: Final = 64
"""Maximum number of slave requests for which changed names are remembered."""
OFFSET_PARTS: Final = 16
"""Number of parts in which a slave copies all consumer offsets from a CometMQ master, each in one response."""
SLAVE_QUESTIONS_AT_ONCE: Final = 16
"""Maximum number of topics whose queues a slave requests from Apache's master at the same time."""
SLAVE_TABLE_SECONDS: Final = 30.0
"""Timeout for copying a table from the master, enough for the largest table at 4 MB/s."""
MAX_TABLE_ANSWER_BYTES: Final = 128 * 1024 * 1024
"""Maximum size of a table that a slave accepts."""
SLAVE_SYNC_SOON_SECONDS: Final = 1.0
"""Delay before a slave copies the tables after a message for an unknown topic has arrived."""
STORE_FILE_PART_BYTES: Final = 1024 * 1024
"""Maximum size of a file part in one response to a slave."""
MAX_STORE_FILE_READS: Final = 4
"""Maximum number of concurrent requests for file parts; further requests get SYSTEM_BUSY."""
MAX_COPIED_FILE_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of a file that a slave copies as a whole."""
COPIED_FILE_BYTES_PER_SECOND: Final = 4 * 1024 * 1024
"""Rate of change above which a slave does not copy a large file in every round."""
MAX_TIMER_COPY_BYTES: Final = 4 * 1024 * 1024
"""Maximum total size of delayed messages and their units that a slave copies at once; a single record may be larger."""

# --- Any delay ----------------------------------------------------------------------------------
TIMER_BATCH_MESSAGES: Final = 128
"""Maximum number of messages with arbitrary delays delivered in one round of the loop (about 2 ms)."""
TIMER_RETRY_SECONDS: Final = 0.5
"""Pause before the delivery of refused messages, or a failed write of the timer log, is retried."""
MAX_TIMER_DELAY_SECONDS: Final = 100 * 365 * 86_400
"""Maximum value of ``timerMaxDelaySec``, a hundred years."""
TIMER_SAVE_SECONDS: Final = 1.0
"""Interval at which the timer log is flushed while messages arrive or are delivered."""
TIMER_SAVE_SHARE: Final = 4
"""Ratio of the pause before the next save to the duration of the last save."""
TIMER_SAVE_LOG_BYTES: Final = 64 * 1024 * 1024
"""Growth of the log after which the timer saves its position."""
TIMER_WINDOW_MS: Final = 60_000
"""Length of a window in milliseconds; delayed messages in a window are loaded into memory together."""
TIMER_AHEAD_MS: Final = 20_000
"""Milliseconds before its first message is due at which a window is loaded."""
MAX_TIMER_LOADED: Final = 1_000_000
"""Maximum number of delayed messages loaded from the timer log, about 60 MB; more are loaded as messages are
delivered.
"""
MAX_TIMER_UNWRITTEN_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of delayed messages that have been read from the log but not written to the timer log."""
MAX_LISTED_WAITING: Final = 1_000
"""Maximum number of delayed messages in a response to GET_WAITING_MESSAGES, about 200 bytes and one disk read each."""
MAX_TIMER_LOOKS: Final = 8
"""Maximum number of pending requests about delayed messages; further requests get SYSTEM_BUSY."""
TIMER_WRITE_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of delayed messages that are copied into the timer log at once."""

# --- Filters ------------------------------------------------------------------------------------
MAX_FILTER_SCAN_UNITS: Final = 2_048
"""Maximum number of new messages that an SQL92 pull evaluates (about 1 ms)."""
MAX_FILTER_WORK: Final = 2_000_000
"""Maximum work of an SQL92 pull, in bytes of properties read multiplied by terms that read them (about 10 ms)."""
CACHED_FILTER_BLOCKS: Final = 4_096
"""Maximum number of cached results per expression for blocks of 2,048 messages, at most 5 KB each."""

# --- Accounts -----------------------------------------------------------------------------------
MAX_SIGN_IN_BYTES: Final = 65_536
"""Maximum size of a slave's sign-in frame. A key, a token and a signature are far shorter."""

# --- quotas -------------------------------------------------------------------------------------
METER_EXPIRE_SECONDS: Final = 60.0
"""Interval between scans for idle subjects (accounts, addresses and groups with quotas), which are then forgotten."""
QUOTA_SAVE_SECONDS: Final = 5.0
"""Interval at which the broker saves which topics each subject of a quota has created."""

# --- Failover -----------------------------------------------------------------------------------
MAX_FAILOVER_MEMBERS: Final = 16
"""Maximum number of replicas of a set that have ever signed in; a set has three or five."""
MAX_FAILOVER_MEMBER_CHARS: Final = 63
"""Maximum length of a replica's name, which is part of a key of the engine, and a label in Kubernetes."""
MAX_FAILOVER_REASON_CHARS: Final = 512
"""Maximum length of the sentence that says why a set's document was changed."""
MAX_FAILOVER_DOCUMENT_BYTES: Final = 65_536
"""Maximum size of a set's document; 16 replicas with the longest addresses need 15 KB."""
MAX_FAILOVER_IDENTITY_BYTES: Final = 4_096
"""Maximum size of the file with a member's generation; it has about 200 bytes."""
MAX_FAILOVER_EPOCHS: Final = 65_536
"""Maximum number of epochs in a master's list, about 20 bytes each; with one failover each hour, that is seven
years."""
MAX_SHOWN_EPOCHS: Final = 1_000
"""Maximum number of epochs in an answer to a tool; it gets the newest ones."""
MAX_FAILOVER_CHANGES: Final = 20
"""Number of a set's last changes that a member remembers for people."""
MAX_HISTORY_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a master's answer to a member's sign-in; MAX_FAILOVER_EPOCHS need about 2 MB."""
MAX_SHOWN_REFUSAL_CHARS: Final = 512
"""Maximum length of the reason for which a master refuses a member's sign-in."""
REFUSAL_SHOWN_SECONDS: Final = 3_600.0
"""Time for which a member's status shows that it has refused another one, which may have halted since."""
MAX_MEMBER_HEARTBEAT_MS: Final = 3_600_000
"""Maximum interval of heartbeats that a member or its master may name."""
MEMBER_RETRY_SECONDS: Final = 0.2
"""Pause before a member connects to its master again."""
MEMBER_FIRST_RETRY_SECONDS: Final = 0.05
"""Pause before a member connects again to a master that has just been elected, or that has just closed the connection,
so that the member soon knows whether the master's process is dead."""
MEMBER_OFFSETS_SECONDS: Final = 0.25
"""Interval at which a member copies consumer offsets from its master, so that they are at most one second old."""
MEMBER_CHANGES_SECONDS: Final = 1.0
"""Interval at which a member copies the other changed rows from its master, which also asks for it."""
TABLE_COPY_SECONDS: Final = 3.0
"""Maximum time for which a change of a topic or group waits until the members in sync have copied it."""
TABLE_COPY_LOOK_SECONDS: Final = 0.25
"""Interval at which waiting changes look at the in-sync set, which may have changed."""
CONFIRMED_NEWS_SECONDS: Final = 0.05
"""Time after which members are told about a higher confirmed end, unless a transfer has told them."""
LAST_COPY_SECONDS: Final = 0.4
"""Maximum time that a handover waits until its successor has copied the tables once more."""
MAX_LEARNERS: Final = MAX_SLAVES - MAX_FAILOVER_MEMBERS
"""Maximum number of a master's slaves that its set's document does not name; the other places are for members."""
MAX_SET_CONNECTIONS: Final = 2 * MAX_SLAVES
"""Maximum number of connections to a member's port for slaves. At least half of them are for those that sign in."""
SIGN_IN_SECONDS: Final = 10.0
"""Maximum time for the sign-in of a member, or for the first report of another slave; Apache's takes up to 5 s."""
MAX_ENGINE_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of an answer from etcd or Kubernetes; the documents and presences of one set have less than 100 KB."""
MAX_ENGINE_HEAD_BYTES: Final = 65_536
"""Maximum size of the head of an answer from etcd or Kubernetes."""
MAX_ENGINE_ENDPOINTS: Final = 16
"""Maximum number of endpoints of an engine; clusters of etcd have at most seven."""
ENGINE_TRY_SECONDS: Final = 1.0
"""Time for a request to one endpoint. Without a majority, etcd answers only after seven seconds."""
ENGINE_WATCH_SECONDS: Final = 60.0
"""Time after which a watch without events is opened again, since watches can stop silently."""
