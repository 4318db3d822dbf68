"""The nameserver's limits. Each name contains the unit, and each docstring gives the reason."""

from __future__ import annotations

from typing import Final

MAX_REGISTERED_QUEUES: Final = 65_535
"""Maximum number of queues for a topic on one broker in a route."""
MAX_NAMESRV_QUEUE_DATA: Final = 500_000
"""Maximum number of topic-broker pairs on a nameserver, about 300 bytes each."""
REGISTRATION_BESIDE_BYTES: Final = 16 * 1024
"""Registrations larger than this are read in a thread; compressed registrations always are."""
TOPICS_PER_SLICE: Final = 1_000
"""Maximum number of topics that are added, dropped or changed in one round of the event loop (up to 3 ms)."""
MAX_WAITING_REGISTRATION_BYTES: Final = 256 * 1024 * 1024
"""Maximum total size of the registrations that wait for the thread; further ones get SYSTEM_BUSY."""
MAX_NAMESRV_BROKERS: Final = 4_096
"""Maximum number of broker addresses on a nameserver."""
MAX_KV_ENTRIES: Final = 100_000
"""Maximum number of KV entries and namespaces, which are all written on each change."""
MAX_KV_NAME_CHARS: Final = 255
"""Maximum length of a namespace or key in the KV configuration."""
MAX_KV_VALUE_CHARS: Final = 65_536
"""Maximum length of a value in the KV configuration."""
MAX_KV_CHARS: Final = 8 * 1024 * 1024
"""Maximum size of the KV configuration, which is written completely on each change."""
MAX_WAITING_KV_CHANGES: Final = 1_024
"""Maximum number of KV changes that wait for the disk; further changes get SYSTEM_BUSY."""
