"""W3C trace context in messages: the user properties ``traceparent`` and ``tracestate``.

A producer gets a function that returns the headers of the current span (``trace_context=``); a listener reads them
with :func:`trace_context_of`. With the package ``opentelemetry-api`` :func:`opentelemetry_headers` and
:func:`opentelemetry_context` do this for OpenTelemetry.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from cometmq.client.errors import ClientStateError
from cometmq.message.message import Message, MessageExt

log = logging.getLogger(__name__)

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
MAX_TRACESTATE_CHARS: Final = 512
"""Maximum length of a value that the standard requires implementations to propagate."""

TraceHeaders = Callable[[], Mapping[str, str]]
"""A function that returns the headers of the current span, or none if there is no span."""

_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def with_trace_context(message: Message, headers: TraceHeaders) -> Message:
    """Return the message with the current span's headers, unless it already has a ``traceparent``.

    An error in ``headers`` is logged, and invalid headers are ignored: a trace never stops a message.
    """
    if TRACEPARENT in message.properties:
        return message
    try:
        found = valid_headers(headers())
    except BaseException:
        log.exception("cannot add a trace context to a message to %s", message.topic)
        return message
    return msgspec.structs.replace(message, properties={**message.properties, **found}) if found else message


def trace_context_of(message: MessageExt) -> dict[str, str]:
    """Return ``traceparent`` and ``tracestate`` if present, or nothing if the message has no valid context."""
    return valid_headers(message.properties)


def valid_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the two headers if they are valid according to the W3C standard."""
    parent = headers.get(TRACEPARENT)
    if not isinstance(parent, str) or len(parent) > MAX_TRACESTATE_CHARS or _TRACEPARENT.fullmatch(parent) is None:
        return {}
    state = headers.get(TRACESTATE)
    if isinstance(state, str) and 0 < len(state) <= MAX_TRACESTATE_CHARS and state.isascii() and state.isprintable():
        return {TRACEPARENT: parent, TRACESTATE: state}
    return {TRACEPARENT: parent}


def opentelemetry_headers() -> TraceHeaders:
    """Return a function that returns the headers of OpenTelemetry's current span.

    :raises ClientStateError: the package ``opentelemetry-api`` is not installed.
    """
    propagator = _propagator()

    def headers() -> Mapping[str, str]:
        carrier: dict[str, str] = {}
        propagator.inject(carrier)
        return carrier

    return headers


def opentelemetry_context(message: MessageExt) -> Any:
    """Return the OpenTelemetry ``Context`` of the span that sent the message.

    :raises ClientStateError: the package ``opentelemetry-api`` is not installed.
    """
    return _propagator().extract(trace_context_of(message))


def _propagator() -> Any:
    try:
        module = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
    except ImportError as error:
        raise ClientStateError(
            "OpenTelemetry is not installed", next_step="pip install opentelemetry-api, or pass your own headers"
        ) from error
    return module.TraceContextTextMapPropagator()
