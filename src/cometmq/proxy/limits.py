"""The limits of the gRPC endpoint, each with its unit in the name and its reason beside it."""

from __future__ import annotations

from typing import Final

MAX_STREAMS: Final = 1_024
"""Open calls of one HTTP/2 connection; clients hold back further ones. Netty's clients need at least 100."""
HTTP2_WINDOW_BYTES: Final = 1024 * 1024
"""Bytes that a client may send on one stream, and on one connection, before it gets a WINDOW_UPDATE."""
MAX_HEADER_LIST_BYTES: Final = 16_384
"""Headers of one call, as HTTP/2 counts them; gRPC's own servers accept as much."""
MAX_HEADER_BLOCK_BYTES: Final = 65_536
"""The same headers in encoded form, in all frames; a larger block ends the connection."""
HTTP2_CONTROL_FRAMES: Final = 2_000
"""Control frames (pings, settings, resets, priorities) that a connection may send at once."""
HTTP2_CONTROL_FRAMES_A_SECOND: Final = 200
"""Further control frames that it may send each second; a client that cancels a thousand calls sends fewer."""
MAX_GRPC_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""One message of a call: a batch of four of the largest bodies."""
MAX_GRPC_INCOMPLETE_BYTES: Final = 256 * 1024 * 1024
"""Incomplete messages and metadata of all open calls; above it the connection that holds the most is closed."""
MAX_GRPC_UNSENT_BYTES: Final = 256 * 1024 * 1024
"""Answers of all calls that wait for clients' windows; above it the connection that holds the most is closed."""
MAX_GRPC_CONNECTION_UNSENT_BYTES: Final = 32 * 1024 * 1024
"""The same for one connection; above it its new calls get RESOURCE_EXHAUSTED."""
GRPC_ROUND_SECONDS: Final = 0.005
"""Processor time for the work that may begin in one round of the event loop; other work waits for a later round."""
CONNECTION_SHARE_SECONDS: Final = 0.001
"""Time for which one connection begins calls; then it waits until the other connections have had theirs."""
LARGE_ANSWER_BYTES: Final = 65_536
"""Larger answers of brokers are passed on one a round: their digests and copies take about 4 ms a megabyte."""
LARGE_SETTINGS_BYTES: Final = 1_024
"""Larger settings of clients are handled one a round: a thousand topics take 5 ms."""
LARGE_ROUTE_QUEUES: Final = 1_024
"""Routes of topics with more queues are built one a round: 16,384 queues take 15 ms."""
GRPC_PING_SECONDS: Final = 60.0
"""A connection that is silent for this time gets a ping, which the client must answer."""
GRPC_SILENT_SECONDS: Final = 120.0
"""A client that is silent for this time is removed (Apache: grpcClientIdleTimeMills)."""
HEARTBEAT_BROKER_SECONDS: Final = 30.0
"""Interval of the heartbeats that the endpoint sends to a broker for a client."""
MAX_GRPC_CLIENTS: Final = 16_384
"""Clients that one endpoint remembers; about 4 KB each."""
TOPIC_CACHE_SECONDS: Final = 5.0
"""Time for which `cometmq proxy` caches the configuration of a topic or group."""
MAX_FLEET_TOPICS: Final = 10_000
"""Topics, and groups, that it caches."""
MAX_ACK_ENTRIES: Final = 1_024
"""Messages that one AckMessage of gRPC acknowledges; a client receives 32 at once."""
MAX_RENEWED_HANDLES: Final = 200_000
"""Messages whose receipt handles one endpoint renews while their clients work on them; about 600 bytes each."""
MAX_SETTINGS_TOPICS: Final = 1_024
"""Topics or subscriptions in the settings of one client."""
MAX_TELEMETRY_UNSENT_BYTES: Final = 8 * 1024 * 1024
"""Commands that a client has not read from its Telemetry stream; above it the stream ends."""
MAX_PENDING_COMMANDS: Final = 1_024
"""Commands that clients have not answered yet: thread stacks, messages to verify."""
COMMAND_SECONDS: Final = 10.0
"""Time limit of the answer to a command; the broker waits as long."""
