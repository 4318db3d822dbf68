"""The delay job: lateness of delivered messages, waiting messages and stuck messages."""
