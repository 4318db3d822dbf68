"""The storages of all kinds, for stores in them."""

from tests.storage.conftest import servers

__all__ = ["servers"]
