"""Synchronous clients: each call runs on one event loop in a background thread.

Nothing is implemented twice: a method calls the method of the asynchronous class and waits. The loop is
needed because heartbeats, rebalancing and held pulls continue between two calls.
"""

from __future__ import annotations

from cometmq.client.sync.clients import (
    SyncAdmin,
    SyncLitePullConsumer,
    SyncProducer,
    SyncPullConsumer,
    SyncPushConsumer,
    SyncTransactionProducer,
)
from cometmq.client.sync.lite import SyncLiteTopicConsumer
from cometmq.client.sync.simple import SyncSimpleConsumer

__all__ = [
    "SyncAdmin",
    "SyncLitePullConsumer",
    "SyncLiteTopicConsumer",
    "SyncProducer",
    "SyncPullConsumer",
    "SyncPushConsumer",
    "SyncSimpleConsumer",
    "SyncTransactionProducer",
]
