"""Message classes, created on import from the compiled definition.

They belong to a separate pool: the default pool may contain the files of Apache's Python client, and protobuf refuses
two files with the same name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_FILE: Final = Path(__file__).with_name("v2.binpb")


def _load() -> DescriptorPool:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(_FILE.read_bytes()).file:
        pool.Add(file)
    return pool


_POOL: Final = _load()


def message_class(name: str) -> Any:
    """Return the message class with the given full name."""
    return GetMessageClass(_POOL.FindMessageTypeByName(name))
