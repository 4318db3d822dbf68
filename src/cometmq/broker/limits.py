"""The limits of the broker, each with its unit in the name and its reason beside it."""

from __future__ import annotations

from typing import Final

# --- Metrics ------------------------------------------------------------------------------------
HALF_MESSAGES_PER_SLICE: Final = 50
"""Half messages that one turn reads for their topics: about a millisecond."""
MAX_HALF_MESSAGES_BY_TOPIC: Final = 50_000
"""Open transactions that are counted by topic; more count together. Normally a broker has a few hundred."""
TIMER_COUNT_SECONDS: Final = 60.0
"""Between two counts of messages with any delay by topic, each of which reads the whole timer log."""

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
"""Queues that an answer about a topic reads in one round of the loop: 3 to 15 ms."""
LAGS_PER_ANSWER: Final = 100_000
"""Queues of groups that one answer with metrics looks at, beside those of groups that are furthest behind: 0.2 s."""
LAGS_SLICE_SECONDS: Final = 0.005
"""Time for the ages of messages that groups are behind in one turn of the loop; one file more may be opened then."""
AGES_PER_ANSWER: Final = 1_000
"""Messages that one answer with metrics looks up for their ages, beside those that the last answer knew: 0.3 to 0.7 s
where the file of each one's queue is opened."""
PAIRS_PER_SLICE: Final = 1_000
"""Pairs of topic and group whose progress is added up in one round of the loop: 3 ms."""
MAX_PROGRESS_SUMS_BYTES: Final = 8 * 1024 * 1024
"""One answer with the progress of groups; the client asks again for others. 200,000 pairs have 5 to 30 MB."""
SLICES_SECONDS: Final = 0.005
"""Time for all work in slices in one round of the loop; one slice more may have begun then."""
SLICED_WORKS: Final = 8
"""Works in slices that are under way at a time; others wait for them."""
CLIENTS_PER_SLICE: Final = 100
"""Groups of clients that are entered, or left, in one round of the loop: 1 ms; 2 ms where they are new."""
LARGE_HEARTBEAT_BYTES: Final = 4 * 1024
"""A heartbeat above this, of some dozen groups, is looked at in a later turn, with others like it."""
STATS_ITEMS_PER_SLICE: Final = 10_000
"""Items of the statistics that are sampled in one round of the loop: 6 ms."""
TABLE_ROWS_PER_SLICE: Final = 1_000
"""Rows of a table of topics, groups or offsets that are copied, encoded or compared in one round of the loop: up to
15 ms."""
MAX_CONSUME_QUEUE_UNITS: Final = 1_000
"""Units of a consume queue in one answer to QUERY_CONSUME_QUEUE (321); about 100 bytes each as JSON."""

# --- Broker -------------------------------------------------------------------------------------
MAX_TURN_BYTES: Final = 32 * 1024 * 1024
"""Records of one round of the loop; more are written at once: bounds the write buffer."""
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
"""Work for held pulls in one round of the loop; the rest follows in the next."""
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
MAX_ORDERED_MESSAGES: Final = 1_024
"""Messages of one queue and group that are handed out in the order of message groups, or wait; 300 bytes each."""
POP_READS_MAX: Final = 4
"""Reads of a queue for one pop that finds messages which its filter does not want; it goes on in the next turn."""
POP_SKIPPED_MAX: Final = 4_096
"""Unwanted messages of all its queues behind which a pop looks at no further queue in this turn, about 10 ms."""
POP_REVIVE_MESSAGES: Final = 128
"""Popped messages that are stored again in one round of the loop, about 5 ms."""
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
"""Offsets of all these pairs, one for each queue: 40 bytes each, and 100 bytes where clients name queues whose numbers
are far from each other."""
OFFSET_EXPIRY_SECONDS: Final = 86_400.0
"""Offsets of a missing topic, of a group without members, expire after this: an administrator who deleted the topic by
mistake has created it again by then."""
OFFSET_LOOK_SECONDS: Final = 30.0
"""Pause between two steps of the scan for such offsets."""
OFFSET_LOOK_KEYS: Final = 2_000
"""Pairs of one step, about a millisecond: all 200,000 take 50 minutes."""
MAX_TOPICS: Final = 50_000
"""Topics that clients may create; administrators may create more. Nameservers get them as one table."""
MAX_DELETED_TOPICS: Final = 20_000
"""Deleted topics that are remembered, to tell a topic made anew from its earlier life; the oldest is forgotten. Their
file is written whole for the deletions of a turn, in 4 ms."""
EARLIER_READERS_SECONDS: Final = 86_400.0
"""For so long a consumer of a deleted topic is known to have offsets of its earlier life."""
MAX_GROUPS: Final = 50_000
"""Consumer groups that clients may create; each also has a retry topic."""
MAX_GROUP_MEMBERS: Final = 200_000
"""Members of all consumer groups, and producers of all groups: one for each connection and group, about 250 bytes. As
many connections as a server takes, of twelve groups each."""
GROUP_NOTICES_SECONDS: Final = 0.001
"""Time for notices of changed groups in one round of the loop; the rest follows in the next."""
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
"""SQL92 expressions of one heartbeat: new ones are compiled before the answer, about 1.4 µs a character."""
FILTER_CHARS_PER_SLICE: Final = 4_096
"""SQL92 expressions of one heartbeat that are compiled in one round of the loop, and one more: 6 ms."""
MAX_CONSUMER_FILTERS: Final = 10_000
"""SQL92 filters in ``consumerFilter.json``, one for each group and topic; they expire a day after the last consumer."""
MAX_CONSUMER_FILTER_CHARS: Final = 16 * 1024 * 1024
"""Expressions of all these filters; common ones have fewer than 300 characters."""
MAX_KIND_CHARS: Final = 64
"""An enumeration name in a heartbeat, such as ``CONSUME_FROM_LAST_OFFSET``, or a language."""
MAX_SUBSCRIPTION_CHARS: Final = 16_384
"""Expression of one subscription, and as much for its tags and codes in a heartbeat: several hundred long tags."""
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
"""Bytes of the sequences encoded in one round of the loop, 0.2 ms; all of them are at most 60 MB."""
LOCK_SECONDS: Final = 60.0
"""A queue's lock not renewed for this long is free (Apache: ``rocketmq.broker.rebalance.lockMaxLiveTime``)."""
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
"""Half messages that a round of checks reads in one round of the loop: about 3 ms."""
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
GONE_FOR_RETURN: Final = 5_000
"""Members of groups, and topics, that go before free memory is given back to the system: about 1 MB of them."""
CLIENT_SCAN_SECONDS: Final = 10.0
"""Pause between two scans for silent clients (Apache: 10 s)."""
FILTER_SAVE_SECONDS: Final = 10.0
"""Pause between two writes of a changed ``consumerFilter.json`` (Apache: 10 s)."""
TABLE_RETRY_SECONDS: Final = 10.0
"""Pause before a failed write of a table, on a full disk, is repeated."""
TABLE_WRITE_SECONDS: Final = 0.25
"""Pause between two writes of the whole file of a changed table: Apache's broker reads it after a kill."""
TABLE_WRITE_BYTES_PER_SECOND: Final = 512 * 1024
"""Bytes of such a file for which the pause is a second: 20,000 topics are written every eight seconds, a million
offsets every 28, which takes a hundredth of a processor."""
JOURNAL_BYTES: Final = 1024 * 1024
"""A journal with more, and with twice the bytes of the table's file, lets the file be written whole at once."""
DELAY_BATCH_MESSAGES: Final = 64
"""Delayed messages delivered in one round of the loop, about 1 ms."""
DELAY_BATCH_BYTES: Final = 1024 * 1024
"""Bytes of delayed messages delivered in one round of the loop, if more than one."""
DELAY_RECHECK_SECONDS: Final = 10.0
"""Longest wait of a delay level before it reads the date again, in case somebody has set it."""
DELAY_RETRY_SECONDS: Final = 0.1
"""Pause before delayed messages that the store refused are delivered again (Apache: ``DELAY_FOR_A_WHILE``)."""

# --- Replication --------------------------------------------------------------------------------
MAX_TRANSFER_BYTES: Final = 4 * 1024 * 1024 - 12
"""Bytes of the log in one transfer to a slave: with a head of 12 bytes they fill the buffer of Apache's slave
(``READ_MAX_BUFFER_SIZE``), which never receives more."""
TRANSFER_ROUND_BYTES: Final = 256 * 1024
"""Bytes of the log sent to one slave in one round of the loop, about 0.1 ms."""
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
SLAVE_CHANGES_SECONDS: Final = 1.0
"""… and of the changes in the tables of a master of CometMQ's, which cost next to nothing."""
MAX_CHANGED_NAMES: Final = 50_000
"""Names of changed rows that a master keeps for its slaves; with more they copy the whole table again."""
MAX_CHANGED_PARTS: Final = 64
"""Questions of slaves that such names are kept for: half a minute of two slaves."""
SLAVE_QUESTIONS_AT_ONCE: Final = 16
"""Topics whose queues a slave asks Apache's master for at a time."""
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

# --- Any delay ----------------------------------------------------------------------------------
TIMER_BATCH_MESSAGES: Final = 128
"""Waiting messages delivered in one round of the loop, about 2 ms."""
TIMER_BATCH_BYTES: Final = 1024 * 1024
"""Bytes of waiting messages delivered in one round of the loop, if more than one."""
TIMER_RETRY_SECONDS: Final = 0.5
"""Pause before due messages that the store refused, or a failed write of the timer log, are tried again."""
MAX_TIMER_DELAY_SECONDS: Final = 100 * 365 * 86_400
"""Largest ``timerMaxDelaySec``: a hundred years."""
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
MAX_TIMER_LOADED: Final = 1_000_000
"""Waiting messages loaded from the timer log, about 60 MB; more are loaded as these are delivered."""
MAX_TIMER_UNWRITTEN_BYTES: Final = 64 * 1024 * 1024
"""Waiting messages read from the log and not yet in the timer log; the log is read on when they are written."""
MAX_LISTED_WAITING: Final = 1_000
"""Waiting messages in one answer to GET_WAITING_MESSAGES; about 200 bytes each, and one read of the disk."""
MAX_TIMER_LOOKS: Final = 8
"""Requests about waiting messages in progress at once, each up to 0.1 s of the timer log's thread and 10 MB; above it
SYSTEM_BUSY, so that deliveries do not wait for administrators."""
TIMER_WRITE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of waiting messages that are copied into the timer log at once."""

# --- Filters ------------------------------------------------------------------------------------
MAX_FILTER_SCAN_UNITS: Final = 2_048
"""Messages that one SQL92 pull evaluates for the first time: about 1 ms."""
MAX_FILTER_WORK: Final = 2_000_000
"""Work of one SQL92 pull: bytes of properties read for the first time, times the terms that read them, or as long for a
block of records: about 10 ms; the rest waits."""
CACHED_FILTER_BLOCKS: Final = 4_096
"""Cached results of an expression for blocks of 2,048 messages: 5 KB each at worst, 1 KB in general."""

# --- Accounts -----------------------------------------------------------------------------------
MAX_SIGN_IN_BYTES: Final = 65_536
"""The frame by which a slave signs in; a key, a token and a signature are far shorter."""

# --- quotas -------------------------------------------------------------------------------------
METER_EXPIRE_SECONDS: Final = 60.0
"""Pause between two looks for idle subjects."""
QUOTA_SAVE_SECONDS: Final = 5.0
"""Pause between two writes of the topics that subjects have made."""
