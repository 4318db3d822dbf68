"""The store: CommitLog, ConsumeQueue, IndexFile and their accompanying tables."""

from cometmq.errors import SERVER, require

require("the store", SERVER, "numpy")
