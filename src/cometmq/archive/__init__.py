"""Archives of topics: their commits, and the files that these name. Spark's jobs write them; any process can read them.

:func:`open_archive` opens an archive for reading. Importing this package is cheap, because every Spark worker does it
for its errors: the rest is loaded when a name is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from cometmq.archive.errors import ArchiveError

if TYPE_CHECKING:
    from cometmq.archive.files import DataFile
    from cometmq.archive.reader import Archive, open_archive

_MODULES: Final = {"Archive": "reader", "DataFile": "files", "open_archive": "reader"}

__all__ = ["Archive", "ArchiveError", "DataFile", "open_archive"]


def __getattr__(name: str) -> Any:
    """Import the module that defines a public name, and return the object.

    :raises AttributeError: the name is unknown.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
