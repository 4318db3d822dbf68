"""Archives of topics: their commits, and the files that these name. Spark's jobs write them; any process can read them.

:func:`open_archive` opens an archive for reading.
"""

from cometmq.archive.errors import ArchiveError
from cometmq.archive.files import DataFile
from cometmq.archive.reader import Archive, open_archive

__all__ = ["Archive", "ArchiveError", "DataFile", "open_archive"]
