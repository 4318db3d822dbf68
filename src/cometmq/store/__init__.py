"""The store: CommitLog, ConsumeQueue, IndexFile and the files that accompany them."""

from cometmq.errors import SERVER, require

require("the store", SERVER, "numpy")
