"""The nameserver: routes of topics, liveness of brokers, KV configuration."""

from cometmq.errors import SERVER, require

require("the nameserver", SERVER, "h11")
