"""The limits of the nameserver, each with its unit in the name and its reason."""

from __future__ import annotations

from typing import Final

MAX_REGISTERED_QUEUES: Final = 65_535
"""Maximum number of queues of one topic on one broker in a route; clients create an object for each."""
MAX_NAMESRV_QUEUE_DATA: Final = 500_000
"""Maximum number of (topic, broker) pairs on one nameserver, about 300 bytes each: 100 brokers with 5,000 topics."""
REGISTRATION_BESIDE_BYTES: Final = 16 * 1024
"""Registrations above this size are read in a thread: 100 topics, or 700 with short names, take 3 ms. Compressed
registrations are always read in the thread: a few hundred bytes may contain a hundred thousand topics.
"""
TOPICS_PER_SLICE: Final = 1_000
"""Maximum number of topics that are added, dropped or changed in one round of the event loop, which takes 0.5 to 3 ms.
"""
MAX_WAITING_REGISTRATION_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of all registrations that wait for the thread. Further registrations get SYSTEM_BUSY; the broker
retries.
"""
MAX_NAMESRV_BROKERS: Final = 4_096
"""Maximum number of broker addresses on one nameserver; each keeps a connection and registers every 30 s."""
MAX_KV_ENTRIES: Final = 100_000
"""Maximum number of KV configuration entries and namespaces; each change writes all of them to one file."""
MAX_KV_NAME_CHARS: Final = 255
"""Maximum length of a namespace or key in the KV configuration."""
MAX_KV_VALUE_CHARS: Final = 65_536
"""Maximum length of a value in the KV configuration; an order configuration for 1,000 brokers has about 20 KB."""
MAX_KV_CHARS: Final = 8 * 1024 * 1024
"""Maximum size of the KV configuration; a change writes all of it, and a namespace fits into one answer."""
MAX_WAITING_KV_CHANGES: Final = 1_024
"""Maximum number of KV configuration changes that wait for the disk; further changes get SYSTEM_BUSY."""
