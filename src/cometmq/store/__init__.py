"""The store: the CommitLog, ConsumeQueues, index files, and the smaller files beside them."""

from cometmq.errors import SERVER, require

require("the store", SERVER, "numpy")
