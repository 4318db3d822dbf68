"""The nameserver: topic routes, broker liveness and the KV configuration."""

from cometmq.errors import SERVER, require

require("the nameserver", SERVER, "h11")
