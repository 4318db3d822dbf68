"""The limits of the gRPC endpoint, each with its unit in the name and its reason beside it."""

from __future__ import annotations

from typing import Final

MAX_STREAMS: Final = 1_024
"""Calls under way of one HTTP/2 connection; clients keep more back themselves. Netty's clients take 100 at least."""
HTTP2_WINDOW_BYTES: Final = 1024 * 1024
"""Bytes that a client may send on one stream, and on one connection, before it gets a WINDOW_UPDATE."""
MAX_HEADER_LIST_BYTES: Final = 16_384
"""Headers of one call, as HTTP/2 counts them; gRPC's own servers take as much."""
MAX_HEADER_BLOCK_BYTES: Final = 65_536
"""The same as the client encodes them, in all frames; above it the connection ends."""
HTTP2_IDLE_FRAMES: Final = 2_000
"""Frames that ask for nothing (pings, settings, resets, priorities) that a connection may send at once."""
HTTP2_IDLE_FRAMES_A_SECOND: Final = 200
"""Such frames that it may send more each second; a client with a thousand calls that end early sends fewer."""
MAX_GRPC_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""One message of a call: a batch of four of the largest bodies."""
MAX_GRPC_UNFINISHED_BYTES: Final = 256 * 1024 * 1024
"""Messages of all calls that have not arrived completely, and the metadata of all open calls; above it the connection
with most of them is closed."""
MAX_GRPC_WAITING_BYTES: Final = 256 * 1024 * 1024
"""Answers of all calls that wait for the windows of clients; above it the connection with most of them is closed."""
MAX_GRPC_CONNECTION_WAITING_BYTES: Final = 32 * 1024 * 1024
"""The same for one connection; above it its new calls get RESOURCE_EXHAUSTED."""
GRPC_ROUND_SECONDS: Final = 0.005
"""Work of calls that begins in one round of the event loop; what comes later waits for the next one."""
LARGE_ANSWER_BYTES: Final = 65_536
"""Answers of brokers above it are passed on one in a round: their digests and copies take about 4 ms a megabyte."""
LARGE_SETTINGS_BYTES: Final = 1_024
"""Settings of a client above it are taken one in a round: a thousand topics take 5 ms."""
LARGE_ROUTE_QUEUES: Final = 1_024
"""Routes of topics with more queues are made one in a round: 16,384 queues take 15 ms."""
GRPC_PING_SECONDS: Final = 60.0
"""A client that is silent for this time gets a ping, which it must answer."""
GRPC_SILENT_SECONDS: Final = 120.0
"""A client that is silent for this time is gone (Apache: grpcClientIdleTimeMills)."""
HEARTBEAT_BROKER_SECONDS: Final = 30.0
"""Between two heartbeats that the endpoint sends to a broker for a client."""
MAX_GRPC_CLIENTS: Final = 16_384
"""Clients that one endpoint remembers; about 4 KB each."""
TOPIC_CACHE_SECONDS: Final = 5.0
"""Time for which `cometmq proxy` keeps the configuration of a topic or group."""
MAX_FLEET_TOPICS: Final = 10_000
"""Topics, and groups, that it remembers."""
MAX_ACK_ENTRIES: Final = 1_024
"""Messages that one AckMessage of gRPC acknowledges; a client receives 32 at once."""
MAX_RENEWED_HANDLES: Final = 200_000
"""Messages whose time one endpoint makes longer while their clients work on them; about 600 bytes each."""
MAX_SETTINGS_TOPICS: Final = 1_024
"""Topics or subscriptions in the settings of one client."""
MAX_TELEMETRY_WAITING_BYTES: Final = 8 * 1024 * 1024
"""Commands that a client does not read from its Telemetry stream; above it the stream ends."""
MAX_WAITING_COMMANDS: Final = 1_024
"""Questions to clients over Telemetry that are not answered: thread stacks, messages to verify."""
COMMAND_SECONDS: Final = 10.0
"""A client answers one in this time; the broker waits as long."""
