"""The broker's limits. Each name contains the unit, and each docstring gives the reason."""

from __future__ import annotations

from typing import Final

# --- Metrics ------------------------------------------------------------------------------------
HALF_MESSAGES_PER_SLICE: Final = 50
"""Maximum number of half messages whose topics are read in one round of the loop: about a millisecond."""
MAX_HALF_MESSAGES_BY_TOPIC: Final = 50_000
"""Maximum number of open transactions that are counted by topic; further transactions are counted together. A broker
usually has a few hundred.
"""
TIMER_COUNT_SECONDS: Final = 60.0
"""Pause between two counts of messages with any delay by topic; each count reads the entire timer log."""

# --- Administration -----------------------------------------------------------------------------
MAX_TOPIC_QUEUES: Final = 16_384
"""Maximum number of queues of one topic on one broker; each becomes a directory. Apache's own largest topic has 1,024.
"""
MAX_RELAYED_REQUESTS: Final = 20_000
"""Maximum number of administrators' requests that are pending until consumers answer, about 2 KB each; a group may have
16,384 members.
"""
MAX_RELAYED_BYTES: Final = 32 * 1024 * 1024
"""Maximum size of headers and bodies of requests that are pending until consumers answer (307, 309): several records of
the largest size.
"""
MAX_RELAYED_BODY_BYTES: Final = 64 * 1024
"""Maximum size of the body of a request for a consumer; tools send empty bodies."""
MAX_STATUS_ANSWERS_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of the offsets from members of all groups that are kept until the last member answers (223)."""
MAX_CONSUMER_STATUS_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of the offsets that one consumer reports (221): 32,000 queues."""
QUEUES_PER_SLICE: Final = 512
"""Number of queues that an answer about a topic reads in one round of the loop: 3 to 15 ms."""
LAGS_PER_ANSWER: Final = 100_000
"""Number of queues of groups that one scrape reads, in addition to those of the groups that are furthest behind: 0.2 s.
"""
LAGS_SLICE_SECONDS: Final = 0.005
"""Time for reading the ages of groups' next messages in one round of the loop; one more file may be opened afterwards.
"""
AGES_PER_ANSWER: Final = 1_000
"""Maximum number of messages whose ages one scrape reads, in addition to those known from the last scrape: 0.3 to 0.7 s
if a file must be opened for each message.
"""
PAIRS_PER_SLICE: Final = 1_000
"""Number of pairs of topic and group whose progress is added up in one round of the loop: 3 ms."""
MAX_PROGRESS_SUMS_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of one answer with the progress of groups; the client requests the rest separately. 200,000 pairs need 5
to 30 MB.
"""
SLICES_SECONDS: Final = 0.005
"""Time for all work in slices in one round of the loop; a slice that has begun is finished."""
SLICED_WORKS: Final = 8
"""Number of sliced works that run a slice in one round of the loop; further works wait."""
CLIENTS_PER_SLICE: Final = 100
"""Number of groups of clients that are added or removed in one round of the loop: 1 ms; 2 ms for new groups."""
LARGE_HEARTBEAT_BYTES: Final = 4 * 1024
"""Larger heartbeats, with some dozen groups, are handled in a later round of the loop, one after the other."""
STATS_ITEMS_PER_SLICE: Final = 10_000
"""Number of statistics items that are checked for idleness in one round of the loop: 6 ms."""
TABLE_ROWS_PER_SLICE: Final = 1_000
"""Number of rows of a table of topics, groups or offsets that are copied, encoded or compared in one round of the loop:
up to 15 ms.
"""
MAX_CONSUME_QUEUE_UNITS: Final = 1_000
"""Maximum number of consume queue units in one answer to QUERY_CONSUME_QUEUE (321); about 100 bytes each as JSON."""

# --- Broker -------------------------------------------------------------------------------------
MAX_TURN_BYTES: Final = 32 * 1024 * 1024
"""Maximum size of the records in one turn; a larger turn is written early. This limits the write buffer."""
MAX_UNFLUSHED_CONNECTION_BYTES: Final = 16 * 1024 * 1024
"""With SYNC_FLUSH: maximum size of unflushed messages from one connection; further sends get SYSTEM_BUSY."""
MAX_UNFLUSHED_TOTAL_BYTES: Final = 256 * 1024 * 1024
"""With SYNC_FLUSH: maximum size of unflushed messages from all connections; further sends get SYSTEM_BUSY."""
MAX_HELD_PULLS: Final = 100_000
"""Maximum number of held pulls, about 1 KB each; the size of Apache's pull queue."""
MAX_HELD_PULL_CHARS: Final = 64 * 1024 * 1024
"""Maximum number of characters in all held pulls, mostly of their subscriptions; usual pulls have fewer than 300."""
HELD_CODE_CHARS: Final = 100
"""Weight of one tag of a held pull's filter in MAX_HELD_PULL_CHARS: the memory that it needs in all tables."""
HELD_SQL_CHARS: Final = 3_000
"""Weight of an SQL92 expression in MAX_HELD_PULL_CHARS; counted once for all held pulls of a queue that have the same
expression.
"""
HELD_SQL_FACTOR: Final = 150
"""Weight of each character in the expression: the memory that it needs once it is compiled."""
HELD_SLICE_SECONDS: Final = 0.002
"""Time for held pulls in one round of the loop; the rest follows in the next round."""
MAX_HELD_PULLS_OF_CONNECTION: Final = 16_384
"""Maximum number of held pulls on one connection: a client has one for each queue, and 1,024 queues in each of 16
topics are many.
"""
MAX_POP_MESSAGES: Final = 32
"""Maximum number of messages in one pop, as in Apache."""
MAX_POP_INVISIBLE_MS: Final = 3 * 86_400_000
"""Maximum time that a popped message stays invisible; it is also the maximum of Apache's timer, which ends the
invisible time in Apache's broker.
"""
MAX_POP_LOG_ENTRIES: Final = 4_096
"""Maximum number of entries in one record of the POP log, about 100 bytes each; further entries are stored in a second
record.
"""
MAX_ACKS: Final = 4_096
"""Maximum number of acknowledgements in one BATCH_ACK_MESSAGE, each for messages from one pop of one queue."""
MAX_BATCH_ACK_BYTES: Final = 1024 * 1024
"""Maximum size of the body of a BATCH_ACK_MESSAGE: 4,096 acknowledgements with long names, parsed in about 10 ms."""
MAX_ACK_BITS_CHARS: Final = 64 * 1024
"""Maximum number of Base64 characters in the bits of one acknowledgement: offsets up to 393,216 after the first one."""
MAX_ACKED_MESSAGES: Final = 16_384
"""Maximum number of messages in one BATCH_ACK_MESSAGE, about 10 ms."""
MAX_ORDERED_MESSAGES: Final = 1_024
"""Maximum number of messages of one queue and group that are handed out in message group order or wait for their
message group; 300 bytes each.
"""
POP_READS_MAX: Final = 4
"""Maximum number of reads of a queue in one round for a pop whose filter rejects messages; the pop continues in the
next round.
"""
POP_SKIPPED_MAX: Final = 4_096
"""Number of rejected messages after which a pop reads no further queue in this round, about 10 ms."""
POP_REVIVE_MESSAGES: Final = 128
"""Number of popped messages that are stored again in one round of the loop, about 5 ms."""
POP_RETRY_SECONDS: Final = 0.1
"""Pause before popped messages that the store refused are stored again."""
POP_SCAN_MESSAGES_PER_MS: Final = 20_000
"""Number of invisible messages in a queue for which the check pauses one millisecond more."""
POP_SCAN_PAUSE_MS: Final = 50
"""Maximum pause after a check of a queue: messages become visible again within 100 ms."""
POP_SAVE_SECONDS: Final = 10.0
"""Time between two snapshots of the popped messages, provided that there were pops."""
POP_SAVE_QUEUES: Final = 500
"""Number of queues of groups in one slice of a snapshot."""
MAX_HELD_POPS_OF_CONNECTION: Final = 16_384
"""Maximum number of waiting pops on one connection, as for pulls: a proxy uses a few connections for the pops of all
its clients.
"""
MAX_ATTRIBUTES_CHARS: Final = 4_096
"""Maximum number of characters in the attributes of one topic in a request."""
MAX_REQUEST_MODES: Final = 100_000
"""Maximum number of pairs of group and topic with a message request mode; each is an entry in
``messageRequestMode.json``.
"""
MAX_ASSIGNMENT_BYTES: Final = 16 * 1024
"""Maximum size of the body of QUERY_ASSIGNMENT and of SET_MESSAGE_REQUEST_MODE."""
MAX_CACHED_ROUTES: Final = 10_000
"""Maximum number of topics whose queues on other brokers are cached."""
ROUTE_SECONDS: Final = 30.0
"""Time for which the queues of a topic on other brokers are cached, as in Apache."""
MAX_HELD_POP_CHARS: Final = 64 * 1024 * 1024
"""Maximum number of characters in all waiting pops."""
MAX_POP_WAIT_MS: Final = 10 * 60_000
"""Maximum wait of a pop for a message."""
MAX_CONSUMER_OFFSET_TABLES: Final = 200_000
"""Maximum number of pairs of topic and group with offsets; each is an entry in ``consumerOffset.json``."""
MAX_CONSUMER_OFFSETS: Final = 2_000_000
"""Maximum number of offsets in all pairs of topic and group, one for each queue: 40 bytes each, or 100 bytes if the
queue numbers are far apart.
"""
OFFSET_EXPIRY_SECONDS: Final = 86_400.0
"""Time after which offsets in a missing topic for a group without members expire: an administrator who deleted the
topic by mistake has created it again within this time.
"""
OFFSET_LOOK_SECONDS: Final = 30.0
"""Pause between two steps of the scan for expired offsets."""
OFFSET_LOOK_KEYS: Final = 2_000
"""Number of pairs that are checked in one step of the scan for expired offsets, about a millisecond: 200,000 pairs take
50 minutes.
"""
MAX_TOPICS: Final = 50_000
"""Maximum number of topics for which clients may create more; administrators may exceed it. Nameservers receive all
topics as one table.
"""
MAX_DELETED_TOPICS: Final = 20_000
"""Maximum number of deleted topics that are remembered, to distinguish a topic that was created again from its earlier
life; the oldest deletion is forgotten first. The complete file is encoded in 4 ms.
"""
EARLIER_READERS_SECONDS: Final = 86_400.0
"""Time for which a deleted topic's consumers are remembered, since they may have offsets from the topic's earlier life.
"""
MAX_GROUPS: Final = 50_000
"""Maximum number of consumer groups that clients may create; each group also has a retry topic."""
MAX_GROUP_MEMBERS: Final = 200_000
"""Maximum number of members of all consumer groups, and of producers of all groups: one for each connection and group,
about 250 bytes each. This allows twelve groups for each connection that a server accepts.
"""
GROUP_NOTICES_SECONDS: Final = 0.001
"""Time for notices of changed groups in one round of the loop; the rest follows in the next round."""
MAX_HEARTBEAT_GROUPS: Final = 1_000
"""Maximum number of groups in one heartbeat, and of topics in one group: each adds an entry to a configuration file."""
MAX_HEARTBEAT_BYTES: Final = 1024 * 1024
"""Maximum size of the body of a heartbeat: 4,000 subscriptions of 250 bytes; common heartbeats have less than 10 KB."""
MAX_CHECK_CLIENT_BYTES: Final = 128 * 1024
"""Maximum size of the body of CHECK_CLIENT_CONFIG (46): the longest subscription with every character escaped."""
MAX_GROUP_CONFIG_BYTES: Final = 64 * 1024
"""Maximum size of the configuration of one consumer group (200); it has about 400 bytes, and more with the attributes
of 5.x.
"""
MAX_LIST_BYTES: Final = 512 * 1024
"""Maximum size of the topics (18) or groups (225) in one request: a thousand of 500 bytes; about 5 ms."""
MAX_LISTED: Final = 1_000
"""Maximum number of topics or groups that one request creates: about 10 ms, with a log line for each."""
MAX_HEARTBEAT_FILTER_CHARS: Final = 49_152
"""Maximum number of characters of SQL92 expressions in one heartbeat: new expressions are compiled before the answer,
in about 1.4 µs a character.
"""
FILTER_CHARS_PER_SLICE: Final = 4_096
"""Number of characters of SQL92 expressions that are compiled in one round of the loop, in about 6 ms; an expression
that exceeds this number is finished.
"""
MAX_CONSUMER_FILTERS: Final = 10_000
"""Maximum number of SQL92 filters in ``consumerFilter.json``, one for each group and topic; a filter expires a day
after its last consumer has left.
"""
MAX_CONSUMER_FILTER_CHARS: Final = 16 * 1024 * 1024
"""Maximum number of characters of all expressions in ``consumerFilter.json``; common expressions have fewer than 300.
"""
MAX_KIND_CHARS: Final = 64
"""Maximum number of characters of an enumeration name in a heartbeat, such as ``CONSUME_FROM_LAST_OFFSET``, or of a
language.
"""
MAX_SUBSCRIPTION_CHARS: Final = 16_384
"""Maximum number of characters of the expression in one subscription, and of its tags and codes in a heartbeat: several
hundred long tags.
"""
LONG_SUBSCRIPTION_CHARS: Final = 256
"""Longer tag expressions are stored in the smaller cache."""
CACHED_SUBSCRIPTIONS: Final = 4_096
"""Number of cached tag expressions; at most about 15 KB each."""
CACHED_LONG_SUBSCRIPTIONS: Final = 64
"""Number of cached long tag expressions; at most about 1 MB each."""
MAX_LIVE_SUBSCRIPTION_CHARS: Final = 64 * 1024 * 1024
"""Maximum number of characters in the subscriptions of all connected consumers: names, expressions and tags; about
500,000 common subscriptions.
"""
SUBSCRIPTION_OVERHEAD_CHARS: Final = 100
"""Weight of a subscription for MAX_LIVE_SUBSCRIPTION_CHARS in addition to its text."""
MAX_PRODUCERS: Final = 50_000
"""Maximum number of producers with sequences on one broker; new producers replace producers that were idle for
PRODUCER_MIN_IDLE_SECONDS.
"""
MAX_PRODUCER_LANES: Final = 200_000
"""Maximum number of queues of all producers with sequences, about 300 bytes each in memory and in
``comet/producers.json``.
"""
PRODUCER_EXPIRY_SECONDS: Final = 7 * 86_400.0
"""Time after which an idle producer is forgotten (Kafka: ``transactional.id.expiration.ms``, 7 days)."""
PRODUCER_MIN_IDLE_SECONDS: Final = 3_600.0
"""Time after a producer's last message during which another producer must not replace it."""
PRODUCER_IDLE_LOOK_SECONDS: Final = 1.0
"""Pause between two scans for idle producers while the table is full; a scan takes some 20 ms."""
PRODUCER_SAVE_SECONDS: Final = 30.0
"""Pause between two writes of the producers' sequences; a restart reads the log since the last write, about 1 µs a
record.
"""
PRODUCER_SAVE_SLICE_BYTES: Final = 64 * 1024
"""Size of the sequences encoded in one round of the loop, in 0.2 ms; all sequences together have at most 60 MB."""
LOCK_SECONDS: Final = 60.0
"""Time after which a queue's lock expires if it was not renewed (Apache:
``rocketmq.broker.rebalance.lockMaxLiveTime``).
"""
MAX_LOCKED_QUEUES: Final = 200_000
"""Maximum number of locked queues in all groups, about 300 bytes each."""
MAX_LOCK_REQUEST_QUEUES: Final = 16_384
"""Maximum number of queues in one lock request: 1,024 queues of 16 topics are many; each takes about 3 µs."""
MAX_LOCK_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of the body of a lock request: MAX_LOCK_REQUEST_QUEUES with names of 200 characters together; about 20
ms.
"""
MAX_OPEN_TRANSACTIONS: Final = 500_000
"""Maximum number of open transactions, about 250 bytes each; further half messages are refused."""
HALF_PROPERTIES_RESERVE_BYTES: Final = 256
"""Space in the properties of a half message for the properties that each check adds."""
MAX_HALF_LAG: Final = 200_000
"""Maximum number of messages after an open half message. When there are more, the half message is copied to the end of
its queue, since a start reads all messages after the oldest one.
"""
TRANSACTION_SLICE: Final = 100
"""Number of half messages that are checked in one round of the loop: about 3 ms."""
MAX_GIVEN_UP_LINES: Final = 100
"""Maximum number of given-up transactions that are logged separately in one round of checks. The last line contains the
total number; all are in TRANS_CHECK_MAX_TIME_TOPIC.
"""
TRANSACTION_PROGRESS_SECONDS: Final = 5.0
"""Pause between two writes of the progress through half messages (Apache writes its offsets every 5 s)."""
MAX_TRANSACTION_MARKS: Final = 256
"""Maximum number of pairs of offsets in op queue and half queue in memory; a start reads the ops after one of them."""
COMMITTED_SCAN_BYTES: Final = 64 * 1024 * 1024
"""Size of the part at the end of the log in which a start searches for committed messages that have no op message: at
most one was written by CometMQ, but a crash of Apache's broker may leave several.
"""
MAX_LISTED_TRANSACTIONS: Final = 1_000
"""Maximum number of open transactions in one answer to GET_OPEN_TRANSACTIONS; about 300 bytes each."""
MAX_SEARCHED_TRANSACTIONS: Final = 5_000
"""Maximum number of open transactions read for one answer to GET_OPEN_TRANSACTIONS: about 50 ms."""
MAX_WAITING_REPLY_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of replies that wait for their requesters, up to 10 s each; further replies get SYSTEM_BUSY."""
CLIENT_EXPIRY_SECONDS: Final = 120.0
"""Time after which a client without a heartbeat leaves its groups (Apache: 120 s)."""
GONE_FOR_RETURN: Final = 5_000
"""Number of removed members and topics after which free memory is returned to the system: about 1 MB."""
CLIENT_SCAN_SECONDS: Final = 10.0
"""Pause between two scans for silent clients (Apache: 10 s)."""
FILTER_SAVE_SECONDS: Final = 10.0
"""Pause between two writes of a changed ``consumerFilter.json`` (Apache: 10 s)."""
TABLE_RETRY_SECONDS: Final = 10.0
"""Pause before a failed write of a table, for example on a full disk, is retried."""
MAX_PENDING_CHANGES: Final = 10_000
"""Maximum number of requests whose changes of topics, groups or modes are not on the disk yet, about 2 kB each; further
requests get SYSTEM_BUSY.
"""
TABLE_WRITE_SECONDS: Final = 0.25
"""Pause between two writes of a changed table's complete file: Apache's broker loads it after a kill."""
TABLE_WRITE_BYTES_PER_SECOND: Final = 512 * 1024
"""Size of a table's complete file for each second of pause: 20,000 topics are written every 8 s, a million offsets
every 28 s, which needs a hundredth of a processor.
"""
JOURNAL_BYTES: Final = 1024 * 1024
"""Size of a journal above which the complete file is written immediately, if the journal is also twice as large as the
table's file.
"""
DELAY_BATCH_MESSAGES: Final = 64
"""Maximum number of delayed messages delivered in one round of the loop, about 1 ms."""
DELAY_BATCH_BYTES: Final = 1024 * 1024
"""Maximum size of the delayed messages delivered in one round of the loop, if there are several."""
DELAY_RECHECK_SECONDS: Final = 10.0
"""Maximum wait of a delay level before it reads the clock again, since the clock may be changed."""
DELAY_RETRY_SECONDS: Final = 0.1
"""Pause before delayed messages that the store refused are delivered again (Apache: ``DELAY_FOR_A_WHILE``)."""

# --- Replication --------------------------------------------------------------------------------
MAX_TRANSFER_BYTES: Final = 4 * 1024 * 1024 - 12
"""Maximum size of one transfer to a slave: with its header of 12 bytes it fills the buffer of Apache's slave
(``READ_MAX_BUFFER_SIZE``), which cannot receive more.
"""
TRANSFER_ROUND_BYTES: Final = 256 * 1024
"""Size of the log sent to one slave in one round of the loop, about 0.1 ms."""
TRANSFER_HIGH_WATER_BYTES: Final = 1024 * 1024
"""Maximum size of unsent data for one slave; no more is queued until the slave has read most of it."""
MAX_PORT: Final = 65_535
"""The last TCP port."""
MAX_SLAVES: Final = 64
"""Maximum number of slaves of one master; each receives every stored byte. One or two are usual."""
SLAVES_CATCH_UP_SECONDS: Final = 10.0
"""Maximum time for which a stopping master sends to slaves that are behind: enough for some GB."""
SLAVE_STILL_SECONDS: Final = 1.0
"""Time without progress of any slave after which a stopping master stops sending."""
REPLICATION_CONNECT_SECONDS: Final = 5.0
"""Time-out of a slave's connection to its master's HA port."""
REPLICATION_RETRY_SECONDS: Final = 5.0
"""Pause before a slave connects again (``HAClient``)."""
SLAVE_SYNC_FIRST_SECONDS: Final = 3.0
"""Delay of a slave's first copy of its master's tables (``BrokerController.handleSlaveSynchronize``)."""
SLAVE_SYNC_SECONDS: Final = 10.0
"""Pause between two copies of a master's tables."""
SLAVE_CHANGES_SECONDS: Final = 1.0
"""Pause between two copies of the changed rows of a CometMQ master, which are cheap."""
MAX_CHANGED_NAMES: Final = 50_000
"""Maximum number of names of changed rows that a master remembers; if there are more, slaves copy the complete table
again.
"""
MAX_CHANGED_PARTS: Final = 64
"""Maximum number of slave requests for which names are remembered: enough for half a minute of two slaves' requests."""
SLAVE_QUESTIONS_AT_ONCE: Final = 16
"""Maximum number of topics whose queues a slave requests from Apache's master concurrently."""
SLAVE_TABLE_SECONDS: Final = 30.0
"""Time-out for copying one table from the master: enough for the largest table at 4 MB a second."""
MAX_TABLE_ANSWER_BYTES: Final = 128 * 1024 * 1024
"""Maximum size of a table that a slave accepts: MAX_CONSUMER_OFFSETS in MAX_CONSUMER_OFFSET_TABLES pairs with the
longest names. A frame of Apache's broker contains fewer than 75,000 pairs.
"""
SLAVE_SYNC_SOON_SECONDS: Final = 1.0
"""Delay of a copy after a message for an unknown topic has arrived."""
STORE_FILE_PART_BYTES: Final = 1024 * 1024
"""Maximum size of a part of a file in one answer to a slave: about 1 ms in a thread."""
MAX_STORE_FILE_READS: Final = 4
"""Maximum number of answers with parts of files in progress; further requests get SYSTEM_BUSY. A slave requests one
part at a time.
"""
MAX_COPIED_FILE_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of a file that a slave copies in one piece: a full table of producers has about 60 MB."""
COPIED_FILE_BYTES_PER_SECOND: Final = 4 * 1024 * 1024
"""Rate of change above which a slave does not copy a large file in each round."""
MAX_TIMER_COPY_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of units, and of records, of waiting messages that a slave copies together; a single record may be
larger.
"""

# --- Any delay ----------------------------------------------------------------------------------
TIMER_BATCH_MESSAGES: Final = 128
"""Maximum number of waiting messages delivered in one round of the loop, about 2 ms."""
TIMER_BATCH_BYTES: Final = 1024 * 1024
"""Maximum size of the waiting messages delivered in one round of the loop, if there are several."""
TIMER_RETRY_SECONDS: Final = 0.5
"""Pause before a retry of due messages that the store refused, or of a failed write of the timer log."""
MAX_TIMER_DELAY_SECONDS: Final = 100 * 365 * 86_400
"""Maximum value of ``timerMaxDelaySec``: a hundred years."""
TIMER_SAVE_SECONDS: Final = 1.0
"""Pause between two flushes of the timer log while messages arrive or are delivered."""
TIMER_SAVE_SHARE: Final = 4
"""The pause before the next save is this many times the duration of the last one; a save flushes two files for each
changed day.
"""
TIMER_SAVE_LOG_BYTES: Final = 64 * 1024 * 1024
"""Growth of the log after which the timer saves its position: a start after a crash reads this much to find deliveries,
in about half a second.
"""
TIMER_WINDOW_MS: Final = 60_000
"""Length of a window: waiting messages due within this time are loaded into memory together, 56 bytes each."""
TIMER_AHEAD_MS: Final = 20_000
"""A window is loaded this long before its first message is due: much longer than it takes to read a day's index."""
MAX_TIMER_LOADED: Final = 1_000_000
"""Maximum number of waiting messages in memory from the timer log, about 60 MB; more are loaded as messages are
delivered.
"""
MAX_TIMER_UNWRITTEN_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of waiting messages that are read from the log but not yet in the timer log; reading continues once they
are written.
"""
MAX_LISTED_WAITING: Final = 1_000
"""Maximum number of waiting messages in one answer to GET_WAITING_MESSAGES; about 200 bytes and one disk read each."""
MAX_TIMER_LOOKS: Final = 8
"""Maximum number of pending requests about waiting messages. Each needs up to 0.1 s in the timer log's thread and 10
MB. Further requests get SYSTEM_BUSY, so that they do not delay deliveries.
"""
TIMER_WRITE_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of waiting messages that are copied into the timer log together."""

# --- Filters ------------------------------------------------------------------------------------
MAX_FILTER_SCAN_UNITS: Final = 2_048
"""Maximum number of new messages that one SQL92 pull evaluates: about 1 ms."""
MAX_FILTER_WORK: Final = 2_000_000
"""Maximum work of one SQL92 pull, about 10 ms: size of the properties read, times the number of terms that read them.
The rest is postponed.
"""
CACHED_FILTER_BLOCKS: Final = 4_096
"""Maximum number of cached results of an expression for blocks of 2,048 messages: at most 5 KB each, usually 1 KB."""

# --- Accounts -----------------------------------------------------------------------------------
MAX_SIGN_IN_BYTES: Final = 65_536
"""Maximum size of a slave's sign-in frame; a key, a token and a signature are far shorter."""

# --- quotas -------------------------------------------------------------------------------------
METER_EXPIRE_SECONDS: Final = 60.0
"""Pause between two scans for idle subjects."""
QUOTA_SAVE_SECONDS: Final = 5.0
"""Pause between two writes of the topics that subjects have created."""
