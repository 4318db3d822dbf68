"""The limits of the console, each with its reason; those of messages and names are in :mod:`cometmq.limits`."""

from __future__ import annotations

from typing import Final

MAX_REQUEST_BYTES: Final = 6 * 1024 * 1024
"""Body of one request: a test message of 4 MiB, with room for form encoding."""
MAX_FIELDS: Final = 2_000
"""Fields of one form: a page of dead letters that are all selected, and more."""
MAX_URL_CHARS: Final = 8_192
"""Longest address: names and search texts are far shorter."""
MAX_CONNECTIONS: Final = 600
"""Concurrent connections and requests; more get 503."""
MAX_STREAMS: Final = 100
"""Concurrent live pages, each a request that stays open."""
MAX_STREAMS_OF_ONE: Final = 24
"""Live pages of one visitor's address."""
MAX_TAILS: Final = 20
"""Concurrent live tails: each polls brokers for messages all the time."""
MAX_SESSIONS: Final = 200
"""Concurrent sessions; the one that has been idle longest ends for a new one."""
SESSION_IDLE_SECONDS: Final = 30 * 60
SESSION_SECONDS: Final = 12 * 3_600
"""Longest session, busy or not."""
LOGINS_PER_MINUTE: Final = 10
"""Attempts from one address, and for one name."""
ALL_LOGINS_PER_MINUTE: Final = 120
"""Attempts from everywhere: each costs 30 ms of processor time."""
PASSWORD_CHECKS_AT_ONCE: Final = 2
MAX_USERS: Final = 1_000
MIN_PASSWORD_CHARS: Final = 10
MAX_PASSWORD_CHARS: Final = 256
MAX_SHOWN_CHARS: Final = 4_000
"""Longest foreign text in a page; message bodies have their own limit."""
PAGE_ROWS: Final = 50
"""Rows of one page of a table."""
ASK_SECONDS: Final = 3.0
"""Timeout of a request to a server of the cluster."""
SAMPLE_SECONDS: Final = 5.0
SAMPLES: Final = 720
"""One hour of figures."""
HEALTH_SECONDS: Final = 30.0
"""Age after which warnings on a page are refreshed by examining the cluster."""
MAX_DEAD_LETTERS: Final = 1_000
"""Dead letters that one page reads, and that one change resends, one after the other."""
AUDIT_LINES: Final = 200
"""Newest entries of the brokers' audit logs that a page shows."""
AUDIT_BYTES_READ: Final = 8 * 1024 * 1024
"""Bytes at the end of those logs that a page searches."""
MAX_REPORTS: Final = 200
"""Newest reports of jobs that the list shows."""
MAX_REPORT_FILES: Final = 10_000
"""Files of the report directory that the console reads."""
MAX_REPORT_BYTES: Final = 2 * 1024 * 1024
"""Largest report that is shown: decoding one takes less than 50 ms."""
MAX_REPORT_TABLES: Final = 30
MAX_REPORT_ROWS: Final = 200
"""Rows of one table of a report."""
MAX_REPORT_COLUMNS: Final = 20
