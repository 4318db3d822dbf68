"""The store: CommitLog, ConsumeQueue, IndexFile and the tables beside them."""

from cometmq.errors import SERVER, require

require("the store", SERVER, "numpy")
