"""Backups of a broker's store: made while the broker runs, verified, restored."""

from cometmq.errors import SERVER, require

require("a backup", SERVER, "numpy")
