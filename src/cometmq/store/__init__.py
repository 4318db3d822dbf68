"""The message store: the CommitLog, ConsumeQueues, index files and several smaller files."""

from cometmq.errors import SERVER, require

require("the store", SERVER, "numpy")
