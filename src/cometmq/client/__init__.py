"""The client: producers, consumers and administration, for CometMQ and Apache RocketMQ alike."""
