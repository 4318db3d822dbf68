"""Errors of the store."""

from __future__ import annotations

from cometmq.errors import CometMQError


class StoreError(CometMQError):
    """The store cannot carry out the call."""


class StoreFullError(StoreError):
    """The disk has no room: nothing of the batch was stored; reads go on, writes heal when there is room."""


class StoreFailedError(StoreError):
    """A write or a flush failed: nothing more is acknowledged until the store is opened again."""


class StoreClosedError(StoreError):
    """The store is shut, or being shut."""


class StoreLockedError(StoreError):
    """Another process has this store open."""
