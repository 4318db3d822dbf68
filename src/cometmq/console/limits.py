"""The console's limits, each with its reason. Limits for messages and names are in :mod:`cometmq.limits`."""

from __future__ import annotations

from typing import Final

MAX_REQUEST_BYTES: Final = 6 * 1024 * 1024
"""Maximum size of a request's body. It is enough for a test message of 4 MiB and its form encoding."""
MAX_ALL_REQUESTS_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of the bodies of all requests at a time; beyond it, the largest that is still arriving is refused."""
MAX_FIELDS: Final = 2_000
"""Maximum number of fields in a form. It is more than a page on which all dead letters are selected."""
MAX_URL_CHARS: Final = 8_192
"""Maximum length of an address. Names and search texts are far shorter."""
MAX_CONNECTIONS: Final = 600
"""Maximum number of concurrent connections and requests. Further requests get status 503."""
MAX_STREAMS: Final = 100
"""Maximum number of concurrent live pages. Each is a request that remains open."""
MAX_STREAMS_OF_ONE: Final = 24
"""Maximum number of concurrent live pages for one visitor's address."""
MAX_TAILS: Final = 20
"""Maximum number of concurrent live tails. Each continuously polls brokers for messages."""
MAX_SESSIONS: Final = 200
"""Maximum number of concurrent sessions. Another login ends the session that has been idle longest."""
SESSION_IDLE_SECONDS: Final = 30 * 60
SESSION_SECONDS: Final = 12 * 3_600
"""Maximum duration of a session, even if the visitor is active."""
LOGINS_PER_MINUTE: Final = 10
"""Maximum number of login attempts per minute from one address or for one name."""
ALL_LOGINS_PER_MINUTE: Final = 120
"""Maximum total number of login attempts per minute. Each attempt takes 30 ms of processor time."""
PASSWORD_CHECKS_AT_ONCE: Final = 2
MAX_USERS: Final = 1_000
MIN_PASSWORD_CHARS: Final = 10
MAX_PASSWORD_CHARS: Final = 256
MAX_SHOWN_CHARS: Final = 4_000
"""Maximum length of a text from the cluster on a page. Message bodies have their own limit."""
PAGE_ROWS: Final = 50
"""Number of rows on one page of a table."""
ASK_SECONDS: Final = 3.0
"""Timeout for a request to a server in the cluster."""
SAMPLE_SECONDS: Final = 5.0
SAMPLES: Final = 720
"""Number of samples to keep, which cover one hour."""
SET_SECONDS: Final = 2.0
"""Time that a member of a set has to answer for a sample; a frozen one must not delay the samples."""
HEALTH_SECONDS: Final = 30.0
"""Maximum age of warnings on a page. Older warnings are refreshed by examining the cluster again."""
MAX_DEAD_LETTERS: Final = 1_000
"""Maximum number of dead letters that one page reads, and that one change resends."""
AUDIT_LINES: Final = 200
"""Maximum number of entries from the brokers' audit logs to show on a page, newest first."""
AUDIT_BYTES_READ: Final = 8 * 1024 * 1024
"""Maximum total number of bytes to search at the ends of the audit logs for one page."""
DECODING_PROCESSES: Final = 2
"""Maximum number of bodies that are decoded by a schema at a time. Each has a process of its own."""
DECODING_SECONDS: Final = 5
"""Maximum processor time to decode a body. One of 4 MB takes less than a second."""
DECODING_MEMORY_BYTES: Final = 512 * 1024 * 1024
"""Maximum address space to decode a body. A body of 4 MB takes less than half of it."""
MAX_REPORTS: Final = 200
"""Maximum number of job reports to list, newest first."""
MAX_REPORT_FILES: Final = 10_000
"""Maximum number of files in the report directory that the console reads."""
MAX_REPORT_BYTES: Final = 2 * 1024 * 1024
"""Maximum size of a report that is shown. Decoding a report of this size takes less than 50 ms."""
MAX_REPORT_TABLES: Final = 30
MAX_REPORT_ROWS: Final = 200
"""Maximum number of rows to show from one table in a report."""
MAX_REPORT_COLUMNS: Final = 20
