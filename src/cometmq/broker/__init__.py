"""The broker: a folder for each capability, wired together by :mod:`cometmq.broker.controller`."""

from cometmq.errors import SERVER, require

require("the broker", SERVER, "numpy", "h11")
