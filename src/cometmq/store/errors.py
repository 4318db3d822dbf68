"""Errors of the store."""

from __future__ import annotations

from cometmq.errors import CometMQError


class StoreError(CometMQError):
    """The store cannot complete an operation."""


class StoreFullError(StoreError):
    """The disk is full: nothing of the batch was stored. Reads continue, and writes work again once there is space."""


class StoreFailedError(StoreError):
    """A write or flush failed: nothing else is acknowledged until the store is reopened."""


class StoreClosedError(StoreError):
    """The store is closed or closing."""


class StoreLockedError(StoreError):
    """Another process has this store open."""
