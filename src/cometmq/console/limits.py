"""The limits of the console, each with its reason; those of messages and names are in :mod:`cometmq.limits`."""

from __future__ import annotations

from typing import Final

MAX_REQUEST_BYTES: Final = 6 * 1024 * 1024
"""Maximum size of a request's body: a test message of 4 MiB, with room for form encoding."""
MAX_FIELDS: Final = 2_000
"""Maximum number of fields in a form: more than a page of dead letters that are all selected."""
MAX_URL_CHARS: Final = 8_192
"""Maximum length of an address; names and search texts are far shorter."""
MAX_CONNECTIONS: Final = 600
"""Maximum number of concurrent connections and requests; further requests get status 503."""
MAX_STREAMS: Final = 100
"""Maximum number of concurrent live pages; each is a request that stays open."""
MAX_STREAMS_OF_ONE: Final = 24
"""Maximum number of live pages for one visitor's address."""
MAX_TAILS: Final = 20
"""Maximum number of concurrent live tails; each polls brokers for messages continuously."""
MAX_SESSIONS: Final = 200
"""Maximum number of concurrent sessions. A further login ends the session that has been idle longest."""
SESSION_IDLE_SECONDS: Final = 30 * 60
SESSION_SECONDS: Final = 12 * 3_600
"""Maximum duration of a session, even if it is in use."""
LOGINS_PER_MINUTE: Final = 10
"""Maximum number of login attempts per minute from one address, and for one name."""
ALL_LOGINS_PER_MINUTE: Final = 120
"""Maximum number of login attempts per minute in total; each takes 30 ms of processor time."""
PASSWORD_CHECKS_AT_ONCE: Final = 2
MAX_USERS: Final = 1_000
MIN_PASSWORD_CHARS: Final = 10
MAX_PASSWORD_CHARS: Final = 256
MAX_SHOWN_CHARS: Final = 4_000
"""Maximum length of a text from the cluster in a page; message bodies have their own limit."""
PAGE_ROWS: Final = 50
"""Number of rows on one page of a table."""
ASK_SECONDS: Final = 3.0
"""Timeout of a request to a server of the cluster."""
SAMPLE_SECONDS: Final = 5.0
SAMPLES: Final = 720
"""One hour of figures."""
HEALTH_SECONDS: Final = 30.0
"""Age of the warnings on a page after which the cluster is examined again."""
MAX_DEAD_LETTERS: Final = 1_000
"""Maximum number of dead letters that one page reads, and that one change resends one after the other."""
AUDIT_LINES: Final = 200
"""Maximum number of entries from the brokers' audit logs that a page shows, newest first."""
AUDIT_BYTES_READ: Final = 8 * 1024 * 1024
"""Maximum number of bytes that a page searches at the ends of all these logs together."""
MAX_REPORTS: Final = 200
"""Maximum number of job reports that the list shows, newest first."""
MAX_REPORT_FILES: Final = 10_000
"""Maximum number of files in the report directory that the console reads."""
MAX_REPORT_BYTES: Final = 2 * 1024 * 1024
"""Maximum size of a report that is shown; decoding it takes less than 50 ms."""
MAX_REPORT_TABLES: Final = 30
MAX_REPORT_ROWS: Final = 200
"""Maximum number of rows of one table in a report."""
MAX_REPORT_COLUMNS: Final = 20
