"""Limits for the gRPC endpoint, with the unit in each name."""

from __future__ import annotations

from typing import Final

MAX_STREAMS: Final = 1_024
"""Maximum number of open calls per HTTP/2 connection; clients delay further calls. Netty clients need at least 100."""
HTTP2_WINDOW_BYTES: Final = 1024 * 1024
"""Maximum number of bytes that a client can send on a stream or connection before it gets a WINDOW_UPDATE."""
MAX_HEADER_LIST_BYTES: Final = 16_384
"""Maximum size of a call's headers, as HTTP/2 counts them; gRPC's own servers have the same limit."""
MAX_HEADER_BLOCK_BYTES: Final = 65_536
"""Maximum size of a call's encoded headers in all frames; a larger block closes the connection."""
HTTP2_CONTROL_FRAMES: Final = 2_000
"""Maximum number of control frames (pings, settings, resets, priorities) that a connection can send in a burst."""
HTTP2_CONTROL_FRAMES_A_SECOND: Final = 200
"""Maximum number of control frames per second after a burst; a client that cancels a thousand calls sends fewer."""
MAX_GRPC_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of a message in a call, enough for a batch of four bodies of maximum size."""
MAX_GRPC_INCOMPLETE_BYTES: Final = 256 * 1024 * 1024
"""Maximum total size of incomplete messages and metadata; beyond it, the connection that holds the most is closed."""
MAX_GRPC_UNSENT_BYTES: Final = 256 * 1024 * 1024
"""Maximum total size of responses waiting for clients' windows; beyond it, the connection with the most is closed."""
MAX_GRPC_CONNECTION_UNSENT_BYTES: Final = 32 * 1024 * 1024
"""Maximum size of a connection's waiting responses; beyond it, new calls get RESOURCE_EXHAUSTED."""
GRPC_ROUND_SECONDS: Final = 0.005
"""Processor time per event loop round after which no more work starts."""
CONNECTION_SHARE_SECONDS: Final = 0.001
"""Maximum time for which a connection can start calls before other connections get their share."""
LARGE_ANSWER_BYTES: Final = 65_536
"""Size of a broker response above which it is passed on alone in its round."""
LARGE_SETTINGS_BYTES: Final = 1_024
"""Size of client settings above which they are handled alone in their round; a thousand topics take 5 ms."""
LARGE_ROUTE_QUEUES: Final = 1_024
"""Number of queues above which a topic's route is built alone in its round; 16,384 queues take 15 ms."""
GRPC_PING_SECONDS: Final = 60.0
"""Time after which an idle connection receives a ping, which the client must answer."""
GRPC_SILENT_SECONDS: Final = 120.0
"""Time after which an idle client is removed (Apache: grpcClientIdleTimeMills)."""
HEARTBEAT_BROKER_SECONDS: Final = 30.0
"""Interval between the heartbeats that the endpoint sends to a broker on behalf of a client."""
HEARTBEATS_AT_ONCE: Final = 200
"""Maximum number of clients whose heartbeats are sent to this process's broker at a time; each takes up to 50 µs."""
HEARTBEATS_PAUSE_SECONDS: Final = 0.25
"""Minimum pause between these times: there is time for 24,000 clients in the interval between their heartbeats."""
MAX_GRPC_CLIENTS: Final = 16_384
"""Maximum number of clients that an endpoint remembers; each uses about 4 KB."""
TOPIC_CACHE_SECONDS: Final = 5.0
"""Time for which `cometmq proxy` caches a topic's or group's configuration."""
MAX_FLEET_TOPICS: Final = 10_000
"""Maximum number of topics and maximum number of groups that `cometmq proxy` caches."""
MAX_ACK_ENTRIES: Final = 1_024
"""Maximum number of messages in a gRPC AckMessage; a client receives 32 messages in one call."""
MAX_RENEWED_HANDLES: Final = 200_000
"""Maximum number of receipt handles that an endpoint renews; each uses 600 bytes."""
MAX_SETTINGS_TOPICS: Final = 1_024
"""Maximum number of topics or subscriptions in a client's settings."""
MAX_TELEMETRY_UNSENT_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of the commands that a client has not read from its Telemetry stream; beyond it, the stream ends."""
MAX_PENDING_COMMANDS: Final = 1_024
"""Maximum number of commands (for thread stacks, or to verify a message) that clients have not answered."""
COMMAND_SECONDS: Final = 10.0
"""Time limit for a client to answer a command; the broker waits for the same time."""
