"""Limits of what is read from an archive, since a damaged or foreign object may contain anything."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

COMMIT_BYTES_MAX: Final = 256 * 1024 * 1024
"""Maximum size of a commit. A commit that lists 100,000 queues and files has about 50 MB."""
CHECKPOINT_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Maximum size of a decompressed checkpoint, enough for three million files."""
_INT64_MAX: Final = 2**63 - 1

Count = Annotated[int, Meta(ge=0, le=_INT64_MAX)]
"""An offset, a size or a number of messages."""
QueueId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Milliseconds = Annotated[int, Meta(ge=-_INT64_MAX, le=_INT64_MAX)]
"""A time in ms since 1970. Brokers with wrong clocks write any time."""
