"""Message tracing: hooks that record traces, a dispatcher that sends them, a reader, and trace context."""

from cometmq.client.trace.context import opentelemetry_context, opentelemetry_headers, trace_context_of
from cometmq.client.trace.reader import Consumption, MessageWay, way_of

__all__ = [
    "Consumption",
    "MessageWay",
    "opentelemetry_context",
    "opentelemetry_headers",
    "trace_context_of",
    "way_of",
]
