"""Backups of a broker's store: creating them while the broker runs, verifying and restoring them."""

from cometmq.errors import SERVER, require

require("a backup", SERVER, "numpy")
