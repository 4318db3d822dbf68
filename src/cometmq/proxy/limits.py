"""The limits of the gRPC endpoint, each with its unit in the name and its reason."""

from __future__ import annotations

from typing import Final

MAX_STREAMS: Final = 1_024
"""Maximum number of open calls on one HTTP/2 connection; clients delay further calls. Netty clients need at least 100.
"""
HTTP2_WINDOW_BYTES: Final = 1024 * 1024
"""Maximum number of bytes from a client on one stream, and on one connection, before it receives a WINDOW_UPDATE."""
MAX_HEADER_LIST_BYTES: Final = 16_384
"""Maximum size of the headers of one call, as HTTP/2 counts them; gRPC's own servers have the same limit."""
MAX_HEADER_BLOCK_BYTES: Final = 65_536
"""Maximum size of the encoded headers of one call, in all frames; a larger block ends the connection."""
HTTP2_CONTROL_FRAMES: Final = 2_000
"""Maximum number of control frames (pings, settings, resets, priorities) that a connection may send in a burst."""
HTTP2_CONTROL_FRAMES_A_SECOND: Final = 200
"""Maximum number of control frames per second after the burst; a client that cancels a thousand calls sends fewer."""
MAX_GRPC_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of one message in a call: a batch of four bodies of the maximum size."""
MAX_GRPC_INCOMPLETE_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of incomplete messages and metadata in all open calls; above it, the connection that holds the most is
closed.
"""
MAX_GRPC_UNSENT_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of all answers that wait for clients' windows; above it, the connection that holds the most is closed.
"""
MAX_GRPC_CONNECTION_UNSENT_BYTES: Final = 32 * 1024 * 1024
"""Maximum size of waiting answers on one connection; above it, new calls get RESOURCE_EXHAUSTED."""
GRPC_ROUND_SECONDS: Final = 0.005
"""Processor time after which no more work begins in a round of the event loop; other work waits for a later round."""
CONNECTION_SHARE_SECONDS: Final = 0.001
"""Maximum time for which one connection may begin calls; then it waits until the other connections have had their
share.
"""
LARGE_ANSWER_BYTES: Final = 65_536
"""Broker answers above this size are passed on one per round: digests and copies take about 4 ms per megabyte."""
LARGE_SETTINGS_BYTES: Final = 1_024
"""Client settings above this size are handled one per round: a thousand topics take 5 ms."""
LARGE_ROUTE_QUEUES: Final = 1_024
"""Routes of topics with more queues than this are built one per round: 16,384 queues take 15 ms."""
GRPC_PING_SECONDS: Final = 60.0
"""Time after which a silent connection receives a ping, which the client must answer."""
GRPC_SILENT_SECONDS: Final = 120.0
"""Time after which a silent client is removed (Apache: grpcClientIdleTimeMills)."""
HEARTBEAT_BROKER_SECONDS: Final = 30.0
"""Interval of the heartbeats that the endpoint sends to a broker for a client."""
MAX_GRPC_CLIENTS: Final = 16_384
"""Maximum number of clients that one endpoint remembers; each takes about 4 KB."""
TOPIC_CACHE_SECONDS: Final = 5.0
"""Time for which `cometmq proxy` caches the configuration of a topic or group."""
MAX_FLEET_TOPICS: Final = 10_000
"""Maximum number of topics, and likewise of groups, that `cometmq proxy` caches."""
MAX_ACK_ENTRIES: Final = 1_024
"""Maximum number of messages in one gRPC AckMessage; a client receives 32 messages in one call."""
MAX_RENEWED_HANDLES: Final = 200_000
"""Maximum number of receipt handles that one endpoint renews while clients handle the messages; each takes 600 bytes.
"""
MAX_SETTINGS_TOPICS: Final = 1_024
"""Maximum number of topics or subscriptions in the settings of one client."""
MAX_TELEMETRY_UNSENT_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of the commands that a client has not read from its Telemetry stream; above it, the stream ends."""
MAX_PENDING_COMMANDS: Final = 1_024
"""Maximum number of commands (for thread stacks, or to verify a message) that clients have not answered yet."""
COMMAND_SECONDS: Final = 10.0
"""Time limit for the answer to a command; the broker waits for the same time."""
