"""Errors raised by the store."""

from __future__ import annotations

from cometmq.errors import CometMQError


class StoreError(CometMQError):
    """The store cannot complete an operation."""


class StoreFullError(StoreError):
    """The disk is full, and no message of the batch was stored. Reads continue, and writes work again once there is
    space."""


class StoreFailedError(StoreError):
    """A write or flush failed. The store acknowledges nothing else until it is reopened."""


class StoreClosedError(StoreError):
    """The store is closed or closing."""


class StoreLockedError(StoreError):
    """Another process has this store open."""
