"""CometMQ: Apache RocketMQ in Python, compatible on the wire and on disk."""

__version__ = "0.1.0"
