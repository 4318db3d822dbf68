"""The gRPC endpoint of RocketMQ 5 (``apache.rocketmq.v2.MessagingService``)."""

from cometmq.errors import SERVER, require

require("the gRPC endpoint", SERVER, "google.protobuf")
