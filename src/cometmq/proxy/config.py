"""Endpoint configuration: the supported keys of Apache's ``rmq-proxy.json`` (``ProxyConfig``)."""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.limits import MAX_MESSAGE_BYTES
from cometmq.proxy.backend.plain_calls import CallLimits


@dataclass(frozen=True)
class EndpointConfig:
    """The settings that an endpoint sends to clients, and limits on their requests; times are in milliseconds."""

    long_polling_min_ms: int = 5_000
    long_polling_max_ms: int = 20_000
    long_polling_batch: int = 32
    invisible_min_ms: int = 10_000
    invisible_max_ms: int = 12 * 3_600_000
    invisible_default_ms: int = 60_000
    delay_max_ms: int = 86_400_000
    body_max_bytes: int = MAX_MESSAGE_BYTES
    properties_max_bytes: int = 16 * 1024
    properties_max: int = 128
    message_group_max_bytes: int = 64
    recovery_max_ms: int = 3_600_000
    producer_attempts: int = 3
    producer_backoff_ms: int = 10
    producer_backoff_max_ms: int = 1_000
    producer_backoff_factor: float = 2.0
    renew_every_ms: int = 5_000
    renew_ahead_ms: int = 10_000
    renew_most_ms: int = 3 * 3_600_000
    validates_type: bool = True

    @property
    def call_limits(self) -> CallLimits:
        """The limits for messages that the compiled core handles."""
        return CallLimits(self.body_max_bytes, self.properties_max, self.properties_max_bytes)
