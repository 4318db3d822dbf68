"""Backups of a broker's store: creation while the broker runs, verification and restore."""

from cometmq.errors import SERVER, require

require("a backup", SERVER, "numpy")
