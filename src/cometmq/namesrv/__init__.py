"""The nameserver: topic routes, broker liveness and KV configuration."""

from cometmq.errors import SERVER, require

require("the nameserver", SERVER, "h11")
