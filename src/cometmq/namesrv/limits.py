"""The limits of the nameserver, each with its unit in the name and its reason."""

from __future__ import annotations

from typing import Final

MAX_REGISTERED_QUEUES: Final = 65_535
"""Queues of one topic on one broker that a nameserver passes on; clients make an object of each."""
MAX_NAMESRV_QUEUE_DATA: Final = 500_000
"""Pairs of topic and broker of one nameserver; about 300 bytes each. 100 brokers of 5,000 topics."""
REGISTRATION_BESIDE_BYTES: Final = 16 * 1024
"""Registrations above this are read by a thread: 100 topics, or 700 with the shortest text, take 3 ms. Compressed ones
always are: a few hundred bytes may contain a hundred thousand topics."""
TOPICS_PER_SLICE: Final = 1_000
"""Topics that are added, dropped or changed in one round of the loop: 0.5 to 3 ms."""
MAX_WAITING_REGISTRATION_BYTES: Final = 256 * 1024 * 1024
"""Registrations that wait for that thread; above it SYSTEM_BUSY, and the broker retries."""
MAX_NAMESRV_BROKERS: Final = 4_096
"""Broker addresses of one nameserver; each keeps a connection and registers every 30 s."""
MAX_KV_ENTRIES: Final = 100_000
"""KV configuration entries and namespaces of one nameserver; all are written to one file at each change."""
MAX_KV_NAME_CHARS: Final = 255
"""Namespace or key of a KV configuration entry."""
MAX_KV_VALUE_CHARS: Final = 65_536
"""Value of a KV configuration entry; an order configuration of 1,000 brokers has about 20 KB."""
MAX_KV_CHARS: Final = 8 * 1024 * 1024
"""Names and values of the whole KV configuration; a change writes all of it, and a namespace fits into an answer."""
MAX_WAITING_KV_CHANGES: Final = 1_024
"""Changes of the KV configuration that wait for the disk; above it SYSTEM_BUSY."""
