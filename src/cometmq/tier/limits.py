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
READING_THREADS: Final = 16
"""Number of requests that are answered at the same time, most of which wait for the storage. LOADING_BYTES limits the
memory that they need."""
THREADS_OF_QUEUE: Final = 4
"""Number of requests that are answered at the same time for one queue."""
READ_AHEAD_THREADS: Final = 1
"""Number of row groups that are loaded in advance at the same time."""
EXTENTS_IN_FRAME: Final = 1_000
"""Number of queues that are reported to the broker in one frame, which its loop takes in within 1 ms."""
EXTENTS_PAUSE_SECONDS: Final = 0.005
"""Pause between two such frames, so that the broker's loop does other work between them."""
WAITING_SECONDS: Final = 5.0
"""Time after which a request that has not been begun is dropped, since the broker no longer waits for it."""
REFRESH_SECONDS: Final = 10.0
"""Pause between two looks for new commits."""
LOOKUP_SECONDS: Final = 4.0
"""Time for a lookup: by key, which reads the columns of keys of all files in the time range, newest first; or by log
offset, which reads the footers of all files of an hour."""
FOUND_BYTES_MAX: Final = 8 * 1024 * 1024
"""Maximum size of the records in the answer to a lookup by key; a single record may be larger."""
FOOTER_BYTES: Final = 64 * 1024
"""Number of bytes at the end of a file that are read first; most footers are smaller."""
FOOTER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum size of a footer, enough for 4,000 row groups."""
ROW_GROUP_BYTES_MAX: Final = 512 * 1024 * 1024
"""Maximum size of a decompressed row group. Those of the archive job have 8 MB, and more only if single messages do."""
MEMORY_BYTES: Final = 4 * 1024 * 1024 * 1024
"""Maximum size of the process's memory, of which pyarrow reserves one gibibyte at its start and uses little. A file may
contain far more than its footer says."""
