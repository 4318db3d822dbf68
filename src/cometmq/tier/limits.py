"""Limits of the archive reader."""

from __future__ import annotations

from typing import Final

CACHED_RECORDS_BYTES: Final = 128 * 1024 * 1024
"""Maximum size of the rebuilt row groups that are kept: those of 16 queues that are read at the same time, with row
groups of 8 MB."""
LOADING_BYTES: Final = 48 * 1024 * 1024
"""Maximum size of the row groups that are loaded at the same time, if there are several; each needs up to four times
its size."""
CACHED_FOOTERS: Final = 1_024
"""Maximum number of files whose footers are kept; 20 to 100 KB each."""
READING_THREADS: Final = 3
"""Number of requests that are answered at the same time; each may load a row group."""
READ_AHEAD_THREADS: Final = 1
"""Number of row groups that are loaded in advance at the same time."""
REFRESH_SECONDS: Final = 10.0
"""Pause between two looks for new commits."""
KEY_SECONDS: Final = 4.0
"""Time for a lookup by key, which reads the columns of keys of all files in the time range, newest first."""
FOOTER_BYTES: Final = 64 * 1024
"""Number of bytes at the end of a file that are read first; most footers are smaller."""
