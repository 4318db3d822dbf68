"""Broker hooks: functions in installed packages that receive requests and messages."""
