"""The broker, with a package for each capability; :mod:`cometmq.broker.controller` connects them."""

from cometmq.errors import SERVER, require

require("the broker", SERVER, "numpy", "h11")
