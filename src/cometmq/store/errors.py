"""Errors raised by the store."""

from __future__ import annotations

from cometmq.errors import CometMQError


class StoreError(CometMQError):
    """Base class for errors of the store."""


class StoreFullError(StoreError):
    """The disk is full, so no message in the batch was stored. Reads still work, and writes work again once there is
    space.
    """


class StoreFailedError(StoreError):
    """A write or flush failed. The store acknowledges no further messages until it is reopened."""


class StoreClosedError(StoreError):
    """The store is closed or closing."""


class StoreLockedError(StoreError):
    """The store is already open in another process."""
